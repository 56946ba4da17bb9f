"""Tensors that are not dense: sparse, quantized, nested, and those without data."""

from __future__ import annotations

from typing import Any

import torch

from kinds.kind import Group, Kind


def coo(**options: Any) -> torch.Tensor:
    return torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0], (2, 3), **options)


def compressed(layout: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return [[1, 0, 2, 0], [0, 0, 0, 3]] or its blocks, by the constructor that 1.13 has too."""
    by_column, blocks = layout in ("csc", "bsc"), layout in ("bsr", "bsc")
    starts, inner = ([0, 1, 1, 2, 3], [0, 0, 1]) if by_column else ([0, 2, 3], [0, 2, 3])
    values = torch.tensor([1, 2, 3]).to(dtype)
    size = (2, 4)
    if blocks:
        values, size = values.view(3, 1, 1).repeat(1, 2, 2), (4, 8)
    return torch.sparse_compressed_tensor(
        torch.tensor(starts), torch.tensor(inner), values, size, layout=getattr(torch, f"sparse_{layout}")
    )


def batched_csr() -> torch.Tensor:
    return torch.stack([torch.eye(3), torch.eye(3)]).to_sparse_csr()


def int32_csr() -> torch.Tensor:
    starts, inner = (torch.tensor(x, dtype=torch.int32) for x in ([0, 1, 2], [1, 0]))
    return torch.sparse_csr_tensor(starts, inner, torch.ones(2), (2, 2))


SPARSE = Group(
    "Sparse tensors",
    (
        Kind("COO", coo),
        Kind("COO, coalesced", lambda: coo().coalesce()),
        Kind(
            "COO with an index twice",
            lambda: torch.sparse_coo_tensor([[0, 0], [2, 2]], [1.0, 2.0], (2, 3)),
        ),
        Kind(
            "COO, hybrid",
            lambda: torch.sparse_coo_tensor([[0, 2]], torch.arange(8.0).view(2, 4), (3, 4)),
        ),
        Kind("COO without values", lambda: torch.sparse_coo_tensor(size=(2, 0))),
        Kind("COO, 0-dim", lambda: torch.tensor(3.0).to_sparse()),
        Kind("COO of complex numbers", lambda: coo().to(torch.complex64)),
        Kind("COO of bool", lambda: coo().to(torch.bool)),
        Kind("COO that requires grad", lambda: coo(requires_grad=True)),
        Kind("COO, transposed", lambda: coo().t()),
        *(Kind(layout.upper(), lambda layout=layout: compressed(layout)) for layout in ("csr", "csc")),
        *(Kind(layout.upper(), lambda layout=layout: compressed(layout)) for layout in ("bsr", "bsc")),
        Kind("CSR of float64", lambda: compressed("csr", torch.float64)),
        Kind("CSR with 32-bit indices", int32_csr),
        Kind("CSR, batched", batched_csr, needs="torch.Tensor.untyped_storage"),  # from 2.0
        Kind("CSR that requires grad", lambda: compressed("csr").requires_grad_()),
        Kind("sparse tensors in a state dict, tied", lambda: {"a": (made := coo()), "b": made}),
    ),
)


def per_tensor(dtype: str, zero_point: int = 0) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.arange(6.0).view(2, 3), 0.5, zero_point, getattr(torch, dtype))


def per_channel(
    dtype: torch.dtype, axis: int = 0, zero: type = int, scale_dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    channels = (2, 4)[axis]
    scales = torch.arange(1, channels + 1).to(scale_dtype) / 4
    zero_points = torch.arange(channels, dtype=torch.int64 if zero is int else torch.float32)
    return torch.quantize_per_channel(torch.arange(8.0).view(2, 4), scales, zero_points, axis, dtype)


def packed(dtype: str) -> torch.Tensor:
    made = torch._empty_affine_quantized([8], scale=0.5, zero_point=1, dtype=getattr(torch, dtype))
    storage = made.untyped_storage() if hasattr(made, "untyped_storage") else made.storage()._storage
    storage.fill_(0x5A)  # of uninitialised memory no two copies are alike
    return made


QUANTIZED = Group(
    "Quantized tensors",
    (
        Kind("qint8 per tensor", lambda: per_tensor("qint8", -3)),
        Kind("quint8 per tensor", lambda: per_tensor("quint8", 3)),
        Kind("qint32 per tensor", lambda: per_tensor("qint32", 9)),
        Kind("quint4x2 per tensor", lambda: packed("quint4x2")),
        Kind("quint2x4 per tensor", lambda: packed("quint2x4")),
        Kind("qint8 per tensor, transposed", lambda: per_tensor("qint8").t()),
        Kind("qint8 per tensor, a row of it", lambda: per_tensor("qint8")[1]),
        Kind("qint8 per channel", lambda: per_channel(torch.qint8)),
        Kind("quint8 per channel of axis 1", lambda: per_channel(torch.quint8, axis=1)),
        Kind("qint32 per channel", lambda: per_channel(torch.qint32)),
        Kind("quint8 per channel, float zero points", lambda: per_channel(torch.quint8, zero=float)),
        Kind("quint4x2 per channel", lambda: per_channel(torch.quint4x2, zero=float)),
        Kind("quint2x4 per channel", lambda: per_channel(torch.quint2x4, zero=float)),
        Kind("quantized, in several places", lambda: [(made := per_tensor("qint8")), made, made[0]]),
    ),
)


def parts(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.arange(6, dtype=dtype).view(2, 3), torch.arange(3, dtype=dtype).view(1, 3)]


#: Before it came, jagged tensors were a prototype, which cannot be compared.
JAGGED = "torch.nested.nested_tensor_from_jagged"


def jagged(**options: Any) -> torch.Tensor:
    return torch.nested.nested_tensor(parts(), layout=torch.jagged, **options)


NESTED = Group(
    "Nested tensors",
    (
        Kind("nested", lambda: torch.nested.nested_tensor(parts())),
        Kind("nested, of int64", lambda: torch.nested.nested_tensor(parts(torch.int64))),
        Kind("nested, that requires grad", lambda: torch.nested.nested_tensor(parts(), requires_grad=True)),
        Kind("nested, transposed", lambda: torch.nested.nested_tensor(parts()).transpose(1, 2)),
        Kind("nested, of nothing", lambda: torch.nested.nested_tensor([])),
        Kind("jagged nested", jagged, needs=JAGGED),
        Kind("jagged nested, that requires grad", lambda: jagged(requires_grad=True), needs=JAGGED),
        Kind(
            "jagged nested, with holes",
            lambda: torch.nested.narrow(
                torch.arange(24.0).view(2, 4, 3), 1, torch.tensor([0, 1]), torch.tensor([2, 3]), torch.jagged
            ),
            needs=f"{JAGGED} torch.nested.narrow",
        ),
    ),
)


def fake() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(2, 3)


def masked() -> torch.Tensor:
    return torch.masked.masked_tensor(torch.arange(3.0), torch.tensor([True, False, True]))


WITHOUT_DATA = Group(
    "Meta, fake and masked tensors",
    (
        Kind("meta", lambda: torch.empty(3, 2, device="meta").t()),
        Kind("meta, expanded", lambda: torch.empty(3, 1, device="meta").expand(3, 2**20)),
        Kind("meta, of bfloat16", lambda: torch.empty(3, device="meta", dtype=torch.bfloat16)),
        Kind("meta parameter", lambda: torch.nn.Parameter(torch.empty(3, 2, device="meta"))),
        Kind("meta module", lambda: torch.nn.Linear(2, 3, device="meta").state_dict()),
        Kind("meta storage", lambda: torch.empty(3, device="meta").storage()),
        Kind("fake", fake),
        Kind("masked", masked, needs="torch.masked.masked_tensor"),
    ),
)
