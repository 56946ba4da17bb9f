"""The storages of a loaded object, and its comparison with another bit for bit."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..engine.kernels import Span

ENDS = 1 << 16  # bytes compared at each end of a storage when only the ends are asked for

_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def spans_of(value: Any) -> list[Span]:
    """Return address and size of each distinct storage, in order of appearance; reads none of them."""
    spans = dict.fromkeys(_span(tensor) for _, tensor in _tensors(value, ""))
    return [span for span in spans if span[1]]


def difference(ours: Any, theirs: Any, *, only_ends: bool = False) -> str:
    """Say where two loaded objects differ, or return an empty string.

    Compared are: classes; keys and their order; attributes of dictionaries (``_metadata``); dtype, shape,
    strides, offset, device and ``requires_grad`` of tensors; which tensors share a storage; every byte.
    """
    shape = _structure(ours, "object"), _structure(theirs, "object")
    for mine, other in zip(*shape, strict=False):
        if mine != other:
            return f"{mine} where torch.load has {other}"
    if len(shape[0]) != len(shape[1]):
        return f"{len(shape[0])} parts where torch.load has {len(shape[1])}"
    pairs = zip(_tensors(ours, ""), _tensors(theirs, ""), strict=True)
    spans = dict.fromkeys((_span(mine), _span(other), name) for (name, mine), (_, other) in pairs)
    for (mine, size), (other, _), name in spans:
        if not _equal(mine, other, size, only_ends):
            return f"the bytes of {name} differ"
    return ""


def _storage(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


def _span(tensor: torch.Tensor) -> Span:
    storage = _storage(tensor)
    return storage.data_ptr(), storage.nbytes()


def _tensors(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    for name, child in _children(value):
        yield from _tensors(child, f"{path}.{name}" if path else name)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(key), child) for key, child in value.items())
        yield from ((f"<attribute {name}>", child) for name, child in getattr(value, "__dict__", {}).items())
    elif isinstance(value, (list, tuple)):
        yield from ((str(i), child) for i, child in enumerate(value))


def _structure(value: Any, path: str, ties: dict[Span, int] | None = None) -> list[tuple]:
    """Flatten all but the bytes, one entry for each part; a storage is named by its first appearance."""
    ties = {} if ties is None else ties
    if isinstance(value, torch.Tensor):
        span = _span(value)
        facts = (value.dtype, tuple(value.shape), value.stride(), value.storage_offset(), value.device)
        return [(path, type(value), *facts, value.requires_grad, span[1], ties.setdefault(span, len(ties)))]
    parts = [(path, type(value))]
    children = list(_children(value))
    if not children and not isinstance(value, (Mapping, list, tuple)):
        parts.append((path, repr(value)))
    for name, child in children:
        parts += _structure(child, f"{path}.{name}", ties)
    return parts


def _equal(mine: int, other: int, size: int, only_ends: bool) -> bool:
    if not only_ends or size <= 2 * ENDS:
        return not size or _libc.memcmp(mine, other, size) == 0
    last = size - ENDS
    return _libc.memcmp(mine, other, ENDS) == 0 and _libc.memcmp(mine + last, other + last, ENDS) == 0
