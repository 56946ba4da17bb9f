"""Where a tensor's elements lie in files and storages, as plain values that another process can use too."""

from __future__ import annotations

import errno
import numbers
import os
from typing import Any, NamedTuple

import torch

from zerocopy import _torch

#: Position and shape within a tensor.
Box = tuple[tuple[int, ...], tuple[int, ...]]


class ChunkExtent(NamedTuple):
    """A dense part of a tensor in one file.

    Attributes
    ----------
    file : str
        Absolute path.
    offset : int
        Position of the first element in the file, in bytes.
    begin, size : tuple of int
        Position and shape of the part within the tensor.
    stride : tuple of int
        In elements.
    """

    file: str
    offset: int
    begin: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def within(self, begin: tuple[int, ...], size: tuple[int, ...], itemsize: int) -> ChunkExtent | None:
        """Return the part of this chunk that lies in a box of the tensor; None if they do not overlap."""
        first = tuple(map(max, self.begin, begin))
        ends = zip(self.begin, self.size, begin, size, strict=True)
        last = tuple(min(mine + n, theirs + m) for mine, n, theirs, m in ends)
        sizes = tuple(end - start for start, end in zip(first, last, strict=True))
        if any(n <= 0 for n in sizes):
            return None
        steps = zip(first, self.begin, self.stride, strict=True)
        skipped = sum((start - mine) * stride for start, mine, stride in steps)
        return ChunkExtent(self.file, self.offset + skipped * itemsize, first, sizes, self.stride)


class TensorExtents(NamedTuple):
    """A tensor that is stored in chunks.

    Attributes
    ----------
    shape : tuple of int
        Of the whole tensor.
    dtype : torch.dtype
        In the file.
    chunks : tuple of ChunkExtent
        Together they hold each element once.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: tuple[ChunkExtent, ...]

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return _torch.element_size(self.dtype)

    def within(self, begin: tuple[int, ...], size: tuple[int, ...]) -> list[ChunkExtent]:
        """Return the parts of the chunks that lie in a box of the tensor."""
        parts = (chunk.within(begin, size, self.itemsize) for chunk in self.chunks)
        return [part for part in parts if part is not None]


class FileVersion(NamedTuple):
    """The size and the modification time of a file: they change when its bytes change."""

    size: int
    mtime_ns: int

    @classmethod
    def of(cls, file: int | str) -> FileVersion:
        """Return the version of a file, given as path or descriptor."""
        status = os.stat(file)
        return cls(status.st_size, status.st_mtime_ns)

    def require(self, file: int, name: str) -> None:
        """Raise ``OSError`` (ESTALE) if an open file has another version."""
        if FileVersion.of(file) != self:
            raise OSError(errno.ESTALE, "the file changed since it was opened: open it anew", name)


def contiguous_strides(size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a tensor that lies row by row, in elements."""
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


class Geometry(NamedTuple):
    """The places of a dense tensor's elements in its storage, all in elements."""

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def at(self, index: Any) -> Geometry:
        """Return the geometry of ``tensor[index]``, for a basic index. torch itself indexes a tensor without memory."""
        view = torch.empty_strided(self.size, self.stride, device="meta")[index]
        inside = view.numel() > 0  # torch lets an empty view begin behind the end of its storage
        return Geometry(self.offset + inside * int(view.storage_offset()), tuple(view.shape), view.stride())


def is_basic(index: Any) -> bool:
    """Return whether torch makes a view for an index, not a copy: then it is known beforehand where elements lie."""
    parts = index if isinstance(index, tuple) else (index,)
    if sum(part is ... for part in parts) > 1:  # not alike for tensors with memory and without
        return False
    return all(part is None or part is ... or isinstance(part, slice) or _is_int(part) for part in parts)


def _is_int(part: Any) -> bool:
    return isinstance(part, numbers.Integral) and not isinstance(part, bool)  # True and False are masks
