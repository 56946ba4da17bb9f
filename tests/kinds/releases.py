"""Files as other releases of PyTorch write them: rebuild functions and arguments that this one may lack."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import assembler as asm
import torch

from kinds.kind import Group, Kind, write_bytes
from kinds.subclasses import Tagged

NUMBERS = struct.pack("<4f", 1, 2, 3, 4)
INDICES = struct.pack("<8q", 0, 1, 2, 0, 1, 2, 1, 1)


def written(value: asm.Code) -> bytes:
    """Return a checkpoint of one value, over storages "0" of floats and "1" of int64."""
    return asm.checkpoint(asm.pickle(value), {"0": NUMBERS, "1": INDICES})


def utils(function: str, *arguments: Any, module: str = "torch._utils") -> asm.Code:
    return asm.call(asm.name(module, function), *arguments)


def floats() -> asm.Code:
    return asm.storage("0", numel=4)


def untyped(numel: int = 16) -> asm.Code:
    return asm.storage("0", asm.name("torch.storage", "UntypedStorage"), numel=numel)


def plain(*, size: Any = (4,), stride: Any = (1,)) -> asm.Code:
    return asm.tensor(floats(), size=size, stride=stride)


def indices(offset: int, *size: int) -> asm.Code:
    stride = (size[1], 1) if len(size) == 2 else (1,)
    return asm.tensor(asm.storage("1", "LongStorage", numel=8), offset, size, stride)


def layout(name: str) -> asm.Code:
    return utils("_get_layout", f"torch.{name}", module="torch.serialization")


def dtype(name: str) -> asm.Code:
    return asm.name("torch", name)


def numbers(*size: int) -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0, 4.0]).view(size or (4,))


def entry(name: str, value: Callable[[], asm.Code], expected: Callable[[], Any], **more: Any) -> Kind:
    return Kind(name, lambda: written(value()), write=write_bytes, expected=expected, **more)


def same_values(loaded: Any, expected: Any) -> None:
    """Compare tensors whose parts lie on one storage in the file, and on several as made here."""
    for name in ("dtype", "layout", "is_nested", "requires_grad", "is_leaf"):
        assert getattr(loaded, name) == getattr(expected, name), name
    if loaded.layout is torch.sparse_coo:
        assert loaded.is_coalesced() == expected.is_coalesced()
    pairs = zip(loaded.unbind(), expected.unbind(), strict=True) if loaded.is_nested else [(loaded, expected)]
    for a, b in pairs:
        assert a.shape == b.shape and torch.equal(a.to_dense(), b.to_dense())


def v3(name: str, *metadata: Any) -> asm.Code:
    width = torch.empty(0, dtype=getattr(torch, name)).element_size()
    hooks = asm.ordered_dict()
    return utils(
        "_rebuild_tensor_v3", untyped(), 0, (16 // width,), (1,), False, hooks, dtype(name), *metadata
    )


def viewed(name: str) -> torch.Tensor:
    return numbers().view(getattr(torch, name))


def noted(made: Any) -> Any:
    made.note = "kept"
    return made


def from_type(
    function: str, module: str = "torch._tensor", cls: type = Tagged, state: Any = None
) -> asm.Code:
    """Return a call that makes a tensor of a class, with attributes."""
    v2 = asm.name("torch._utils", "_rebuild_tensor_v2")
    arguments = (floats(), 0, (4,), (1,), False, asm.ordered_dict())
    name = asm.name(cls.__module__, cls.__qualname__)
    return utils(function, v2, name, arguments, state or {"note": "kept"}, module=module)


def conjugate(*, typed: bool) -> asm.Code:
    if not typed:
        return v3("complex64", {"conj": True})
    storage = asm.storage("0", "ComplexFloatStorage", numel=2)
    return asm.tensor(storage, 0, (2,), (1,), False, None, {"conj": True})


def with_state() -> asm.Code:
    return utils("_rebuild_parameter_with_state", plain(), True, asm.ordered_dict(), {"note": "kept"})


def coo(*coalesced: bool) -> asm.Code:
    parts = (indices(0, 1, 3), plain(size=(3,)), (4,), *coalesced)
    return utils("_rebuild_sparse_tensor", layout("sparse_coo"), parts)


def compressed(function: str, name: str) -> asm.Code:
    parts = (indices(0, 3), indices(3, 2), plain(size=(2,)), (2, 2))
    return utils(function, layout(name), parts)


def nested() -> asm.Code:
    shapes = indices(1, 2, 1), indices(6, 2, 1), indices(0, 2)
    return utils("_rebuild_nested_tensor", plain(size=(3,)), *shapes)


def from_cpu() -> asm.Code:
    return utils("_rebuild_device_tensor_from_cpu_tensor", plain(), dtype("float32"), "cpu", True)


def meta() -> asm.Code:
    return utils("_rebuild_meta_tensor_no_storage", dtype("float32"), (2, 3), (3, 1), False)


def coo_made() -> torch.Tensor:
    return torch.sparse_coo_tensor([[0, 1, 2]], [1.0, 2.0, 3.0], (4,))


def compressed_made(name: str) -> torch.Tensor:
    parts = torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.tensor([1.0, 2.0])
    return torch.sparse_compressed_tensor(*parts, (2, 2), layout=getattr(torch, name))


def nested_made() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.tensor([1.0]), torch.tensor([2.0, 3.0])])


RELEASES = Group(
    "Files of other releases",
    (
        entry(
            "_rebuild_tensor (until 0.3)",
            lambda: utils("_rebuild_tensor", floats(), 1, (3,), (1,)),
            lambda: numbers()[1:],
        ),
        entry(
            "_rebuild_tensor_v2 with metadata (from 2.0)",
            lambda: conjugate(typed=True),
            lambda: viewed("complex64").conj(),
        ),
        *(
            entry(
                f"_rebuild_tensor_v3 of {name} (from 2.1)",
                lambda name=name: v3(name),
                lambda name=name: viewed(name),
                needs=f"torch.{name}",
            )
            for name in ("complex32", "float32", "int16", "uint16", "float8_e4m3fn")
        ),
        entry(
            "_rebuild_tensor_v3 with metadata (from 2.1)",
            lambda: conjugate(typed=False),
            lambda: viewed("complex64").conj(),
        ),
        entry(
            "_rebuild_parameter_with_state (from 2.0)",
            with_state,
            lambda: noted(torch.nn.Parameter(numbers())),
        ),
        entry(
            "_rebuild_sparse_csr_tensor (1.9 to 1.13)",
            lambda: compressed("_rebuild_sparse_csr_tensor", "sparse_csr"),
            lambda: compressed_made("sparse_csr"),
            same=same_values,
        ),
        *(
            entry(
                f"_rebuild_sparse_tensor of {name} (from 2.0)",
                lambda name=name: compressed("_rebuild_sparse_tensor", f"sparse_{name.lower()}"),
                lambda name=name: compressed_made(f"sparse_{name.lower()}"),
                same=same_values,
            )
            for name in ("CSR", "CSC")
        ),
        entry("_rebuild_sparse_tensor of COO (until 2.0)", coo, coo_made, same=same_values),
        entry(
            "_rebuild_sparse_tensor of coalesced COO (from 2.1)",
            lambda: coo(True),
            lambda: coo_made().coalesce(),
            same=same_values,
        ),
        entry(
            "_rebuild_sparse_tensor of uncoalesced COO (from 2.1)",
            lambda: coo(False),
            coo_made,
            same=same_values,
        ),
        entry(
            "_rebuild_from_type (1.7 to 1.11)",
            lambda: from_type("_rebuild_from_type"),
            lambda: noted(numbers().as_subclass(Tagged)),
        ),
        entry(
            "torch.tensor._rebuild_from_type (1.7)",
            lambda: from_type("_rebuild_from_type", "torch.tensor"),
            lambda: noted(numbers().as_subclass(Tagged)),
        ),
        entry(
            "_rebuild_from_type_v2 (from 1.12)",
            lambda: from_type("_rebuild_from_type_v2"),
            lambda: noted(numbers().as_subclass(Tagged)),
        ),
        entry("_rebuild_nested_tensor (from 2.0)", nested, nested_made, same=same_values),
        entry("_rebuild_meta_tensor_no_storage", meta, lambda: torch.empty(2, 3, device="meta")),
        entry(
            "_rebuild_device_tensor_from_cpu_tensor (from 2.6)",
            from_cpu,
            lambda: numbers().requires_grad_(),
        ),
    ),
)
