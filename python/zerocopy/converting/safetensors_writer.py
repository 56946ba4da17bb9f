"""Writes ``.safetensors``: a header in JSON, and tensors behind it, one at a time."""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch

from zerocopy import _torch
from zerocopy.converting.inputs import Sources
from zerocopy.errors import UnsupportedError
from zerocopy.lazy.conversion import converted
from zerocopy.loading.formats.safetensors import DTYPES
from zerocopy.loading.objects.rebuild.dense import tensor_over
from zerocopy.process.malloc_trim import Heap
from zerocopy.saving.atomic_file import FileSink, Written
from zerocopy.saving.mapped_files import FileExtent

_RANKS = {name: rank for rank, name in enumerate(DTYPES.values())}
_ALIGNMENT = 8
_MAX_HEADER_LENGTH = 100_000_000
_RESERVED = "__metadata__"
_PIECE = 1 << 20  # elements
_CPU = torch.device("cpu")


class Described(NamedTuple):
    """A tensor as a header has it."""

    name: str
    dtype: torch.dtype
    format: str
    shape: tuple[int, ...]
    nbytes: int


def described(name: str, dtype: torch.dtype, shape: torch.Size) -> Described | None:
    """Return what a header says of a tensor; None for a name, dtype or shape that it cannot have."""
    torchs = str(dtype).removeprefix("torch.")
    if why_not_a_name(name) or torchs not in DTYPES:
        return None
    nbytes = shape.numel() * _torch.element_size(dtype)
    is_packed = torchs == "float4_e2m1fn_x2"  # two numbers an element
    if is_packed and not shape:
        return None
    sizes = (*shape[:-1], 2 * shape[-1]) if is_packed else tuple(shape)
    return Described(name, dtype, DTYPES[torchs], sizes, nbytes)


def write(
    sink: FileSink, tensors: list[Described], metadata: Mapping[str, str], sources: Sources, written: Written
) -> None:
    """Write a file of tensors of `sources`, in the order of the format's own writer."""
    ordered = in_file_order(tensors)
    sink.write(memoryview(header(ordered, metadata)))
    heap = Heap()
    for tensor in ordered:
        _write_tensor(sink, tensor, sources, written)
        heap.used(tensor.nbytes)


def in_file_order(tensors: Iterable[Described]) -> list[Described]:
    """Return tensors in the order of the format's own writer."""
    return sorted(tensors, key=lambda tensor: (-_RANKS[tensor.format], tensor.name.encode()))


def header(tensors: list[Described], metadata: Mapping[str, str]) -> bytes:
    """Return the first bytes of a file, behind which the tensors follow in that order."""
    header: dict[str, object] = {_RESERVED: dict(metadata)} if metadata else {}
    at = 0
    for tensor in tensors:
        offsets = [at, at + tensor.nbytes]
        header[tensor.name] = {"dtype": tensor.format, "shape": tensor.shape, "data_offsets": offsets}
        at += tensor.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > _MAX_HEADER_LENGTH:
        raise UnsupportedError(
            f"a .safetensors header of {len(text)} bytes: readers of this format refuse more than 100 MB"
        )
    return struct.pack("<Q", len(text)) + text


def _write_tensor(sink: FileSink, tensor: Described, sources: Sources, written: Written) -> None:
    if tensor.nbytes == 0:
        return
    source, place, done = sources.tensors[tensor.name], sources.place_of(tensor.name), 0
    real = source.read().detach()
    if place is not None and real.dtype == tensor.dtype and _is_as_stored(real):
        done = sink.copy(place.descriptor, place.offset, tensor.nbytes, written)
    read = None if place is None else _Reader(place, source.layer.path, real.dtype)
    for piece in _pieces(real, read, tensor.dtype, done):
        sink.write(piece, written)


def _is_as_stored(tensor: torch.Tensor) -> bool:
    """Return whether the elements are the bytes of the storage, one behind the other."""
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


class _Reader(NamedTuple):
    """Reads elements of a file to memory. If the file is cut that is an error, where its mapping would be a signal."""

    place: FileExtent  # of the first
    path: str
    dtype: torch.dtype

    def __call__(self, first: int, count: int) -> torch.Tensor:
        tensor = torch.empty(count, dtype=self.dtype, device="cpu")  # whatever the default is
        content, at = elements_of(tensor), 0
        offset = self.place.offset + first * _torch.element_size(self.dtype)
        while at < content.nbytes:
            got = os.preadv(self.place.descriptor, [content[at:]], offset + at)
            if got == 0:
                raise OSError(errno.ESTALE, "file was cut since it was opened", self.path)
            at += got
        return tensor


def _pieces(
    tensor: torch.Tensor, read: _Reader | None, dtype: torch.dtype, begin: int
) -> Iterator[memoryview]:
    """Yield the elements of a tensor row by row, converted, a few megabytes at once, from byte `begin` on."""
    if read is not None and _is_as_stored(tensor):
        first, skipped = divmod(begin, _torch.element_size(tensor.dtype))
        for at in range(first, tensor.numel(), _PIECE):
            count = min(_PIECE, tensor.numel() - at)
            piece = converted(read(at, count), dtype, _CPU)
            yield elements_of(piece)[skipped:]
            skipped = 0
        return
    if read is not None:
        reach = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        storage = _torch.untyped_of(read(0, reach))
        flags = tensor.is_conj(), tensor.is_neg()
        tensor = tensor_over(storage, tensor.dtype, 0, tensor.shape, tensor.stride(), False, *flags)
    for block in _blocks(tensor.cpu()):
        piece = converted(block.resolve_conj().resolve_neg().contiguous(), dtype, _CPU)
        yield elements_of(piece)


def _blocks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield parts of a tensor, in the order of its elements: as many rows as have so many elements."""
    if tensor.numel() <= _PIECE:
        yield tensor
    elif (rows := _PIECE * len(tensor) // tensor.numel()) > 0:
        for first in range(0, len(tensor), rows):
            yield tensor[first : first + rows]
    else:
        for row in tensor:
            yield from _blocks(row)


def elements_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor. The caller keeps the tensor alive."""
    size = _torch.element_size(tensor.dtype)
    first = int(tensor.storage_offset()) * size
    return _torch.bytes_of(_torch.untyped_of(tensor))[first : first + tensor.numel() * size]


def why_not_a_name(name: str) -> str:
    """Return why a file cannot have a tensor of this name, or an empty string."""
    if name == _RESERVED:
        return "a name that the format reserves"
    return "" if is_text(name) else "a name that is not Unicode text"


def is_text(value: str) -> bool:
    """Return whether a header, which is UTF-8, can hold a string."""
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True
