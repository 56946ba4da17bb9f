"""Reads everything that a load gave: each tensor lies inside its storage, and all bytes of each storage are there."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from equality import untyped

_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}

_SYMBOLS = getattr(torch, "SymInt", ())


def read_all(value: Any) -> list[Any]:
    """Return what can be told apart of a value, as plain items in order; raise AssertionError if a tensor is wrong.

    Without recursion: values nest a thousand deep, and contain themselves.
    """
    seen: dict[int, int] = {}
    found: list[Any] = []
    waiting = [value]
    alive = []  # or another object would get the address of one that was seen
    while waiting:
        value = waiting.pop()
        if isinstance(value, _SYMBOLS):
            # Of a jagged tensor: torch numbers them as they come, and makes an object for one whenever it is asked.
            found.append("SymInt")
            continue
        if (
            type(value).__name__ == "PyCapsule"
        ):  # what torch caches in a jagged tensor, at an address of its own
            continue
        if id(value) in seen:
            found.append(("again", seen[id(value)]))
            continue
        alive.append(value)
        seen[id(value)] = len(seen)
        found.append(type(value).__name__)
        waiting += reversed(list(_inside(value, found)))
    return found


def _inside(value: Any, found: list[Any]) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield from _of_tensor(value, found)
    elif isinstance(value, torch.UntypedStorage):
        found.append(_checksum(value))
    elif isinstance(value, torch.storage.TypedStorage):
        found.append(str(value.dtype))
        yield value.untyped() if hasattr(value, "untyped") else value._storage
    elif isinstance(value, dict):
        for item in value.items():
            yield from item
    elif isinstance(value, (list, tuple)):
        yield from value
    elif isinstance(value, (set, frozenset)):
        found.append(sorted(map(repr, value)))
    else:
        found.append(repr(value) if type(value).__repr__ is not object.__repr__ else "")
    if isinstance(getattr(value, "__dict__", None), dict):
        yield from vars(value).values()


def _of_tensor(tensor: torch.Tensor, found: list[Any]) -> Iterator[Any]:
    found.append((str(tensor.dtype), str(tensor.layout), str(tensor.device), tensor.requires_grad))
    if getattr(tensor, "is_nested", False):
        tensor = tensor.values() if tensor.layout is not torch.strided else tensor._nested_tensor_size()
    found.append(tuple(tensor.shape))
    if tensor.layout in _PARTS:
        for part in _PARTS[tensor.layout]:
            yield getattr(tensor.detach(), part)()
        if tensor.device.type == "cpu" and tensor.numel() < 100_000:
            tensor.detach().to_dense()  # indices that lead outside
        return
    if tensor.device.type != "cpu":
        return
    _require_inside(tensor)
    found.append((tensor.stride(), tensor.storage_offset(), tensor.is_conj(), tensor.is_neg()))
    yield untyped(tensor)


#: Elements that share an item.
_PACKED = {torch.quint4x2: 2, torch.quint2x4: 4}


def _require_inside(tensor: torch.Tensor) -> None:
    """By Python's integers, which do not wrap."""
    size, stride, offset, item = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.element_size()
    nbytes = untyped(tensor).nbytes()
    assert min((0, offset, *size, *stride)) == 0, f"a negative shape: {tuple(size)}, {stride}, {offset}"
    if 0 in size:
        return
    elements = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1
    end = -(-elements * item // _PACKED.get(tensor.dtype, 1))
    assert end <= nbytes, f"a tensor to byte {end} of a storage of {nbytes}"
    assert tensor.data_ptr() % item == 0, f"{tensor.dtype} at {tensor.data_ptr():#x}"


def _checksum(storage: torch.UntypedStorage) -> tuple[int, int]:
    """Reads every byte, by a copy: a sanitizer checks what memcpy reads and torch's own code it does not."""
    nbytes = storage.nbytes()
    if nbytes == 0 or storage.device.type != "cpu":
        return nbytes, 0
    return nbytes, zlib.crc32(ctypes.string_at(storage.data_ptr(), nbytes))
