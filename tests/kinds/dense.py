"""Dense tensors: dtypes, shapes, views, ties."""

from __future__ import annotations

from typing import Any

import torch

from kinds.kind import Group, Kind

PLAIN = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
)
FLOAT8 = (
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    "float4_e2m1fn_x2",
)
BITS = (
    *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "bcomplex32"),
    *(f"{sign}int{bits}" for sign in ("u", "") for bits in range(1, 8)),
)


def of_dtype(name: str) -> torch.Tensor:
    """Return a vector of all bit patterns of a byte."""
    dtype = getattr(torch, name)
    return torch.arange(256).remainder(2 if dtype is torch.bool else 256).to(torch.uint8).view(dtype)


def dtypes(*names: str) -> tuple[Kind, ...]:
    """Return an entry a dtype, together with a 0-dim tensor of it."""
    return tuple(
        Kind(name, lambda name=name: [of_dtype(name), of_dtype(name)[3]], needs=f"torch.{name}")
        for name in names
    )


DTYPES = Group(
    "Dense tensors, by dtype",
    (
        *dtypes(*PLAIN, *FLOAT8, *BITS),
        *(
            Kind(
                f"{name} that requires grad",
                lambda name=name: of_dtype(name).requires_grad_(),
                expected=lambda name=name: of_dtype(name).requires_grad_(),
                needs=f"torch.{name}",
            )
            for name in ("float16", "bfloat16", "float64", "complex64", "float8_e4m3fn")
        ),
    ),
)


def base(*size: int) -> torch.Tensor:
    """Return 0, 1, 2, ... in a shape."""
    return torch.arange(float(torch.Size(size).numel())).view(size)


def imaginary() -> torch.Tensor:
    """Return a complex vector whose parts are all different."""
    return torch.complex(base(5), -base(5) - 7)


def channels_last(size: tuple[int, ...], memory_format: torch.memory_format) -> torch.Tensor:
    return base(*size).to(memory_format=memory_format)


SHAPES = Group(
    "Dense tensors, by shape and view",
    (
        Kind("0-dim", lambda: torch.tensor(2.5)),
        Kind("empty, of a storage of no bytes", lambda: torch.empty(0)),
        Kind("empty in one of three dimensions", lambda: torch.empty(2, 0, 3, dtype=torch.int16)),
        Kind("empty view of a full storage", lambda: base(6)[3:3]),
        Kind("empty columns that begin behind an empty storage", lambda: torch.empty(0, 8).chunk(2, 1)[1]),
        Kind("transposed", lambda: base(3, 4).t()),
        Kind("permuted", lambda: base(2, 3, 4).permute(2, 0, 1)),
        Kind("every other row", lambda: base(6, 2)[1::2]),
        Kind("one element in the middle", lambda: base(9)[4]),
        Kind("expanded, stride 0", lambda: base(3, 1).expand(3, 5)),
        Kind("overlapping windows", lambda: base(6).unfold(0, 3, 1)),
        Kind("as_strided out of order", lambda: base(20).as_strided((2, 3), (1, 7), 2)),
        Kind("64 dimensions", lambda: base(4).view(*(1,) * 62, 2, 2)),
        Kind("channels_last", lambda: channels_last((2, 3, 4, 5), torch.channels_last)),
        Kind("channels_last_3d", lambda: channels_last((2, 3, 2, 2, 2), torch.channels_last_3d)),
        Kind("a view of another dtype", lambda: base(4).view(torch.int16)),
        Kind("conjugate view", lambda: imaginary().conj()),
        Kind("negative view", lambda: torch._neg_view(base(4))),
        Kind("imaginary part of a conjugate", lambda: imaginary().conj().imag),
        Kind("conjugate and negative view", lambda: torch._neg_view(imaginary().conj())),
        Kind("complex as real", lambda: torch.view_as_real(imaginary())),
        Kind("larger than a page", lambda: base(300, 1001)),
        Kind("NaNs of all sorts, infinities, denormals", lambda: odd_numbers()),
        Kind("made in inference mode", lambda: in_inference_mode()),
        Kind(
            "with named dimensions",
            lambda: base(2, 3).refine_names("a", "b"),
            needs="torch.Tensor.refine_names",
        ),
    ),
)


def odd_numbers() -> torch.Tensor:
    bits = [0x7FC00000, 0x7F800001, -1, 0x7F800000, -0x800000, 1, -0x80000000]
    return torch.tensor(bits, dtype=torch.int32).view(torch.float32)


def in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return base(3)


def twice() -> dict[str, Any]:
    weight = base(3)
    return {"a": weight, "b": [weight, {"c": weight}]}


def overlapping() -> list[torch.Tensor]:
    whole = base(10)
    return [whole[2:6], whole[4:], whole.view(2, 5).t(), whole]


def parameter_and_views() -> dict[str, Any]:
    parameter = torch.nn.Parameter(base(2, 3))
    return {"p": parameter, "data": parameter.data, "row": parameter.detach()[1], "again": parameter}


def tensors_as_keys() -> dict[str, Any]:
    parameter, buffer = torch.nn.Parameter(base(2, 3)), base(4)
    state = {parameter: {"step": 1, "mean": base(2)}, buffer: 2, (buffer, "of a tuple"): 3}
    return {"weight": parameter, "state": state, "buffer": buffer}


def tensor_and_storages() -> list[Any]:
    whole = base(4)
    typed = whole.storage()
    return [whole, typed, typed, typed.untyped() if hasattr(typed, "untyped") else typed]


TIES = Group(
    "Ties",
    (
        Kind("the same tensor in several places", twice),
        Kind("overlapping views of one storage", overlapping),
        Kind("a parameter, its data and a view", parameter_and_views),
        Kind("tensors as keys", tensors_as_keys),
        Kind("tied modules", lambda: tied_module().state_dict()),
        Kind("a tensor and its storages", tensor_and_storages),
        Kind("empty views of one storage", lambda: [(whole := base(4))[:0], whole[2:2], whole]),
        Kind("one storage seen as two dtypes", lambda: [(whole := base(4)), whole.view(torch.int32)]),
        Kind("equal but not tied", lambda: [base(4), base(4)]),
        Kind("a container in several places", lambda: [(inner := [base(2), {}]), inner, {"inner": inner}]),
    ),
)


def tied_module() -> torch.nn.Module:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    module[1].weight = module[0].weight
    return module
