"""Sparse tensors whose indices, values and sizes do not fit together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from assembler import Code, call, code, name, storage, tensor

from attacks.attack import Attack, Expected
from attacks.tensor_parts import FLOATS, REPEATED, UTILS, attacks, doubled, file, floats, layout, longs

EQUAL, FORMAT = Expected.EQUAL, Expected.FORMAT


def coo(
    indices: tuple[int, ...] | Code = (0, 2),
    values: Any = None,
    size: Any = (4,),
    rows: int = 1,
    more: tuple[Any, ...] = (),
) -> bytes:
    """Return a file of a sparse tensor; `rows` of indices one behind the other."""
    shape = () if isinstance(indices, Code) else (rows, len(indices) // rows)
    over = longs("indices", indices, shape)
    data = (over, floats() if values is None else values, size, *more)
    return file(call(name(UTILS, "_rebuild_sparse_tensor"), layout(), data), {"indices": indices})


def _coo(indices: list[Any], values: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor(indices), values, size)


def _valid_coo() -> Iterable[Attack]:
    def valid(title: str, value: Callable[[], torch.Tensor], **fields: Any) -> Attack:
        return Attack(title, lambda: coo(**fields), EQUAL, value=value)

    yield valid("a valid COO tensor", lambda: _coo([[0, 2]], FLOATS[:2], (4,)))
    yield valid(
        "a valid COO tensor of two dimensions",
        lambda: _coo([[0, 2], [1, 0]], FLOATS[:2], (3, 2)),
        indices=(0, 2, 1, 0), rows=2, size=(3, 2),
    )  # fmt: skip
    yield valid(
        "a valid COO tensor of dense rows",
        lambda: _coo([[0, 2]], FLOATS.view(2, 8), (4, 8)),
        values=tensor(None, 0, (2, 8), (8, 1)), size=(4, 8),
    )  # fmt: skip
    yield valid(
        "a valid COO tensor with an index twice", lambda: _coo([[1, 1]], FLOATS[:2], (4,)), indices=(1, 1)
    )
    yield valid(
        "a valid COO tensor of 2^40 places", lambda: _coo([[0, 2]], FLOATS[:2], (2**40,)), size=(2**40,)
    )
    narrow = longs("narrow", (0, 2), (1, 2), item="i")
    yield valid(
        "a valid COO tensor, indices of 32 bits", lambda: _coo([[0, 2]], FLOATS[:2], (4,)), indices=narrow
    )
    floating = tensor(None, 0, (1, 2), (2, 1))
    yield valid(
        "a valid COO tensor, indices in floats", lambda: _coo([[0, 1]], FLOATS[:2], (4,)), indices=floating
    )
    yield valid(
        "a valid COO tensor that is coalesced",
        lambda: _coo([[0, 2]], FLOATS[:2], (4,))._coalesced_(True),
        more=(True,),
    )


def sparse_tensor() -> Code:
    """Return a sparse tensor of 2^40 zeros, which needs no storage of its own."""
    none = tensor(storage("bytes", "LongStorage", numel=8), 0, (1, 0), (1, 1))
    return call(name(UTILS, "_rebuild_sparse_tensor"), layout(), (none, floats(0), (2**40,)))


COO: dict[str, dict[str, Any]] = {
    "a COO index of -1": {"indices": (-1, 0)},
    "a COO index that is the size": {"indices": (0, 4)},
    "a COO index of 2^62": {"indices": (0, 2**62)},
    "a COO index of -2^63": {"indices": (0, -(2**63))},
    "a COO index of the second dimension that is the size": {
        "indices": (0, 2, 1, 2), "rows": 2, "size": (3, 2),
    },
    "3 COO indices for 4 values": {"indices": (0, 1, 2), "values": floats(4)},
    "4 COO indices for 3 values": {"indices": (0, 1, 2, 3), "values": floats(3)},
    "COO indices of two dimensions for one": {"indices": (0, 1, 2, 3), "rows": 2},
    "COO indices that are floats beyond all integers": {
        "indices": tensor(storage("huge", "DoubleStorage", numel=2), 0, (1, 2), (2, 1)),
    },
    "COO indices that are sparse": {"indices": sparse_tensor()},
    "COO values that are sparse": {"values": sparse_tensor()},
    "COO indices in a list": {"indices": code([[0, 2]])},
    "COO indices that are None": {"indices": Code(b"N")},
    "COO indices that repeat their storage": {
        "indices": tensor(storage("bytes", "LongStorage", numel=8), 0, (1, 2**36), (1, 0)), "values": REPEATED,
    },
    "COO values that are None": {"values": Code(b"N")},
    "COO values in a list": {"values": [1.0, 2.0]},
    "COO values that are a storage": {"values": storage()},
    "a COO size of -4": {"size": (-4,)},
    "a COO size of two negative numbers": {"indices": (0, 2, 1, 0), "rows": 2, "size": (-4, -4)},
    "a COO size whose product wraps": {"indices": (0,) * 4, "values": floats(1), "rows": 4, "size": (2**62,) * 4},
    "a COO size whose product wraps to a small one": {
        "indices": (0, 1, 0, 1), "rows": 2, "size": (2**32 + 1, 2**32 + 1),
    },
    "a COO size of 2^64": {"size": (2**64,)},
    "a COO size without dimensions": {"size": ()},
    "a COO size of more dimensions than indices": {"size": (4, 4)},
    "a COO size of floats": {"size": (4.0,)},
    "a COO size that is text": {"size": "4"},
    "a COO size of lists doubled 40 times": {"size": doubled(40)},
    "COO indices in lists doubled 40 times": {"indices": doubled(40)},
    "COO values in lists doubled 40 times": {"values": doubled(40)},
    "a COO size that is None": {"size": Code(b"N")},
    "COO rows of another length than the size says": {"values": tensor(None, 0, (2, 8), (8, 1)), "size": (4, 7)},
    "a COO tensor that claims to be coalesced, with an index twice": {"indices": (1, 1), "more": (True,)},
    "a COO tensor that claims to be coalesced, unsorted": {"indices": (2, 1), "more": (True,)},
    "a COO tensor that claims to be coalesced by a number, unsorted": {"indices": (2, 1), "more": (1,)},
}  # fmt: skip


# ------------------------------------------------------------------------------------------ compressed


def compressed(
    ends: tuple[int, ...] | Code = (0, 1, 2),
    plain: tuple[int, ...] | Code = (0, 1),
    values: Any = None,
    size: Any = (2, 2),
    kind: Any = "torch.sparse_csr",
    function: str = "_rebuild_sparse_tensor",
    items: int = 4,
) -> bytes:
    """Return a file of a compressed sparse tensor: where each row ends, and the column of each value."""
    values = floats() if values is None else values
    parts = (longs("ends", ends), longs("plain", plain), values, size)[:items]
    return file(call(name(UTILS, function), layout(kind), parts), {"ends": ends, "plain": plain})


def _valid_compressed() -> Iterable[Attack]:
    ends, plain = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    block = tensor(None, 0, (2, 2, 2), (4, 2, 1))
    for title in ("csr", "csc", "bsr", "bsc"):
        fields: dict[str, Any] = {"kind": f"torch.sparse_{title}"}
        if title[0] == "b":
            fields |= {"values": block, "size": (4, 4)}
        yield Attack(
            f"a valid {title.upper()} tensor",
            lambda fields=fields: compressed(**fields),
            EQUAL,
            value=lambda title=title: torch.sparse_compressed_tensor(
                ends, plain, FLOATS[:8].view(2, 2, 2) if title[0] == "b" else FLOATS[:2],
                (4, 4) if title[0] == "b" else (2, 2), layout=getattr(torch, f"sparse_{title}"),
            ),
        )  # fmt: skip
    yield Attack(
        "a valid CSR tensor by the function of 1.13",
        lambda: compressed(function="_rebuild_sparse_csr_tensor"),
        EQUAL,
        value=lambda: torch.sparse_csr_tensor(ends, plain, FLOATS[:2], (2, 2)),
    )


#: `ends` are the crow indices of CSR, `plain` its column indices.
COMPRESSED: dict[str, dict[str, Any]] = {
    "ends that decrease": {"ends": (0, 2, 1)},
    "a last end beyond the values": {"ends": (0, 1, 3)},
    "a last end before the last value": {"ends": (0, 1, 1)},
    "a first end of -1": {"ends": (-1, 1, 2)},
    "a first end of 1": {"ends": (1, 1, 2)},
    "an end of 2^40": {"ends": (0, 2**40, 2)},
    "an end too many": {"ends": (0, 1, 2, 2)},
    "an end too few": {"ends": (0, 2)},
    "an index of -1": {"plain": (0, -1)},
    "an index that is the size": {"plain": (0, 2)},
    "an index of 2^40": {"plain": (0, 2**40)},
    "an index twice in a row": {"ends": (0, 2, 2), "plain": (1, 1)},
    "indices that decrease in a row": {"ends": (0, 2, 2), "plain": (1, 0)},
    "an index too many": {"plain": (0, 1, 1)},
    "ends that are floats": {"ends": floats(3)},
    "indices that are floats": {"plain": floats(2)},
    "ends that are None": {"ends": Code(b"N")},
    "a size of -2": {"size": (2, -2)},
    "a size of one dimension": {"size": (2,)},
    "a size of three dimensions": {"size": (1, 2, 2)},
    "a size of more than 64 bits": {"size": (2, 2**64)},
    "a size that is text": {"size": "22"},
    "values too few": {"values": floats(1)},
    "values that repeat their storage": {"values": REPEATED},
    "no size": {"items": 3},
    "ends alone": {"items": 1},
}
BLOCKS: dict[str, dict[str, Any]] = {
    "blocks of no shape": {"values": floats(2), "size": (4, 4)},
    "blocks that the size is no multiple of": {"size": (5, 4)},
    "a block beyond the size": {"plain": (0, 2), "size": (4, 4)},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "dense": {"kind": "torch.strided"},
    "a dtype": {"kind": "torch.float32"},
    "with a dot": {"kind": "torch.nn.functional"},
    "of a module that torch would import": {"kind": "torch._inductor"},
    "special": {"kind": "torch.__dict__"},
    "unknown": {"kind": "torch.sparse_xyz"},
    "of no characters": {"kind": ""},
    "of a million characters": {"kind": "x" * 10**6},
    "with a lone surrogate": {"kind": "torch.\ud800"},
    "a number": {"kind": 1},
    "a list": {"kind": ["torch.sparse_csr"]},
    "None": {"kind": None},
}


def _compressed() -> Iterable[Attack]:
    for title in ("csr", "csc"):
        kind = {"kind": f"torch.sparse_{title}"}
        cases = {f"{title.upper()} with {fault}": fields | kind for fault, fields in COMPRESSED.items()}
        yield from attacks(compressed, FORMAT, cases)
    function = {"function": "_rebuild_sparse_csr_tensor"}
    cases = {f"CSR of 1.13 with {fault}": fields | function for fault, fields in COMPRESSED.items()}
    yield from attacks(compressed, FORMAT, cases)
    block = {"values": tensor(None, 0, (2, 2, 2), (4, 2, 1))}
    for title in ("bsr", "bsc"):
        kind = {"kind": f"torch.sparse_{title}"}
        cases = {f"{title.upper()} with {fault}": block | fields | kind for fault, fields in BLOCKS.items()}
        yield from attacks(compressed, FORMAT, cases)
    yield from attacks(compressed, FORMAT, {f"a layout that is {k}": v for k, v in LAYOUTS.items()})


SPARSE = (*_valid_coo(), *attacks(coo, FORMAT, COO), *_valid_compressed(), *_compressed())
