"""Reads datasets of an HDF5 file that cannot be mapped: chunked, compact, big-endian, never written.

A dataset is opened when it is read: one that stays open takes libhdf5 up to 80 kB. Data that were never written are not
requested: libhdf5 would look for each chunk, and a small file may claim any number of chunks.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from zerocopy.errors import FormatError
from zerocopy.loading.formats.hdf5_stream import Image, faults

_PIECE = 1 << 22
_MOST_CHUNKS = 1 << 16  # chunks of one read: libhdf5 needs some 100 bytes for each
_SMALL = 1 << 16  # bytes: smaller datasets never count as sparse
_SPARSE = 50  # if one chunk in so many is written, reading only written chunks takes less time
# Memory that a filter takes, in chunks: its output doubles as it grows, beside the chunk itself.
_FILTER_BUFFERS = 3
_MOST_FOUND = 1 << 12  # chunks that are looked up one by one: each look-up of libhdf5 starts at the first

Slab = tuple[tuple[int, ...], tuple[int, ...]]  # where a part of an array begins, and its shape


class Selection(NamedTuple):
    """Elements of an array: on each axis `size` of them from `start`, every `step`-th."""

    start: tuple[int, ...]
    size: tuple[int, ...]
    step: tuple[int, ...]

    def at(self, number: tuple[int, ...]) -> tuple[int, ...]:
        """Return the position in the array of an element of the selection."""
        return tuple(begin + n * step for begin, n, step in zip(self.start, number, self.step, strict=True))

    def within(self, slab: Slab) -> Slab:
        """Return the part of the selection that lies in a part of the array."""
        axes = zip(self.start, self.size, self.step, *slab, strict=True)
        first, end = [], []
        for start, size, step, begin, length in axes:
            first.append(min(size, max(0, -(-(begin - start) // step))))
            end.append(min(size, max(0, -(-(begin + length - start) // step))))
        return tuple(first), tuple(map(int.__sub__, end, first))


class DatasetReader:
    """Reads a dataset of an open file into memory of its own, in this machine's byte order.

    Parameters
    ----------
    h5
        The module ``h5py``.
    file, image
        The open file, and what it is read from.
    path : bytes
        The dataset's path.
    dataset
        The dataset, open.
    shape : tuple of int
        Its shape. An element may be an array itself.
    """

    def __init__(
        self, h5: Any, file: Any, image: Image, path: bytes, dataset: Any, shape: tuple[int, ...]
    ) -> None:
        self._h5, self._file, self._image, self._path, self._shape = h5, file, image, path, shape
        self._dtype = dataset.dtype.newbyteorder("=")
        self._type = h5.h5t.py_create(self._dtype, logical=True)
        properties = dataset.get_create_plist()
        self._chunk: tuple[int, ...] | None = None
        if properties.get_layout() == h5.h5d.CHUNKED:
            self._chunk = tuple(properties.get_chunk())
        #: Whether the file has any data of the dataset.
        self.is_written = dataset.get_storage_size() > 0

    def __call__(self) -> Any:
        """Return all elements."""
        return self._selected(Selection((0,) * len(self._shape), self._shape, (1,) * len(self._shape)))

    def part(self, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Any:
        """Return the elements of a strided view, one after the other; None if only the whole dataset can be read.

        Of a chunked dataset, only the chunks that hold some of these elements are read.
        """
        if not self._shape or self._dtype.subdtype is not None:
            return None
        selection = _selection_of(self._shape, offset, size, stride)
        return None if selection is None else self._selected(selection)

    def _selected(self, selection: Selection) -> Any:
        dataset = self._opened()
        with self._faults():
            return self._values(dataset, selection, self._written_chunks(dataset))

    def _values(self, dataset: Any, selection: Selection, slabs: Iterable[Slab] | None) -> Any:
        """Return selected elements. If there are slabs, read only these; the other elements get the fill value."""
        import numpy

        values = numpy.empty(selection.size, self._dtype)
        if slabs is not None:
            values[...] = self._fill(dataset)
        elif selection.size == self._shape and (self._chunk is None or self._grid() <= _MOST_CHUNKS):
            dataset.read(self._h5.h5s.ALL, self._h5.h5s.ALL, values, self._type)
            return values
        else:
            slabs = self._blocks(selection)
        whole = self._h5.h5s.create_simple(selection.size)
        for slab in slabs:
            first, count = selection.within(slab)
            if 0 not in count:
                here, there = whole.copy(), dataset.get_space()
                here.select_hyperslab(first, count)
                there.select_hyperslab(selection.at(first), count, selection.step)
                dataset.read(here, there, values, self._type)
        return values

    def pieces(self) -> Iterator[bytes]:
        """Yield its bytes in order, at most a few megabytes at once."""
        dataset = self._opened()
        with self._faults():
            written = self._written_chunks(dataset)
        for slab in _slabs(self._shape, self._dtype.itemsize, _PIECE):
            yield self._bytes(dataset, slab, written)

    def written(self) -> Iterator[bytes]:
        """Yield the bytes that are in the file, and perhaps others; in no particular order."""
        if not self.is_written:
            return
        dataset = self._opened()
        with self._faults():
            slabs = None if self._chunk is None else self._few_chunks(dataset)
        if slabs is None:
            yield from self.pieces()
        else:
            yield from (self._bytes(dataset, slab, None) for slab in slabs)

    def _bytes(self, dataset: Any, slab: Slab, written: list[Slab] | None) -> bytes:
        start, count = slab
        with self._faults():
            values = self._values(dataset, Selection(start, count, (1,) * len(count)), written)
        return bytes(values.tobytes())

    def is_sparse(self) -> bool:
        """Return whether the file has no data of it, or at most one in 50 of its chunks: it may claim any size."""
        if self._dtype.itemsize * math.prod(self._shape) <= _SMALL:
            return False
        if not self.is_written or self._chunk is None:
            return not self.is_written
        with faults(self._image):
            return bool(self._opened().get_num_chunks() * _SPARSE <= self._grid())

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        """As :func:`faults`, and raise MemoryError if memory ended: libhdf5 may say only that a filter failed."""
        import numpy

        try:
            with faults(self._image):
                yield
        except FormatError:
            numpy.empty((_FILTER_BUFFERS, *(self._chunk or ())), self._dtype)
            raise

    def _opened(self) -> Any:
        with faults(self._image):
            return self._h5.h5d.open(self._file.id, self._path)

    def _fill(self, dataset: Any) -> Any:
        """Return the value of elements that were never written."""
        import numpy

        element = numpy.zeros(1, self._dtype)
        properties = dataset.get_create_plist()
        if properties.fill_value_defined() == self._h5.h5d.FILL_VALUE_USER_DEFINED:
            properties.get_fill_value(element)
        return element[0]

    def _grid(self) -> int:
        assert self._chunk is not None
        return math.prod(-(-size // chunk) for size, chunk in zip(self._shape, self._chunk, strict=True))

    def _blocks(self, selection: Selection) -> Iterator[Slab]:
        """Yield slabs around a selection, each of whole chunks, and of a limited number of them."""
        if self._chunk is None:
            yield (0,) * len(self._shape), self._shape
            return
        last = selection.at(tuple(size - 1 for size in selection.size))
        begin = tuple(map(int.__floordiv__, selection.start, self._chunk))
        grid = [at // chunk + 1 - first for at, chunk, first in zip(last, self._chunk, begin, strict=True)]
        for first, count in _slabs(tuple(grid), 1, _MOST_CHUNKS):
            start = tuple(map(int.__mul__, map(int.__add__, begin, first), self._chunk))
            yield start, self._within(start, tuple(map(int.__mul__, count, self._chunk)))

    def _within(self, start: tuple[int, ...], count: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            min(length, size - at) for at, length, size in zip(start, count, self._shape, strict=True)
        )

    def _written_chunks(self, dataset: Any) -> list[Slab] | None:
        """Return the chunks that are in the file if these are few; None if all is to be read as a whole."""
        if self._dtype.subdtype is not None:  # h5py gives no value to fill arrays with
            return None
        if not self.is_written:
            return []
        return None if self._chunk is None else self._few_chunks(dataset)

    def _few_chunks(self, dataset: Any) -> list[Slab] | None:
        """Return the chunks that are in the file if these are few of all; None otherwise."""
        assert self._chunk is not None
        found: list[tuple[int, ...]] = []
        count = dataset.get_num_chunks()
        if count * _SPARSE > self._grid():
            return None
        if hasattr(dataset, "chunk_iter"):
            dataset.chunk_iter(lambda info: found.append(tuple(info.chunk_offset)))
        elif count <= _MOST_FOUND:
            found += (tuple(dataset.get_chunk_info(number).chunk_offset) for number in range(count))
        else:
            return None
        return [(start, self._within(start, self._chunk)) for start in found]


def _selection_of(
    shape: tuple[int, ...], offset: int, size: tuple[int, ...], stride: tuple[int, ...]
) -> Selection | None:
    """Return the selection of a strided view of an array; None if its axes are not axes of the array in their order."""
    if 0 in size:
        return Selection((0,) * len(shape), (0,) * len(shape), (1,) * len(shape))
    start, count, step = [], [1] * len(shape), [1] * len(shape)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    for length, apart in zip(shape, strides, strict=True):
        start.append(offset // apart % length)
    last = -1
    for length, apart in zip(size, stride, strict=True):
        if length == 1:
            continue
        axis = next((i for i, of in enumerate(strides) if shape[i] > 1 and of <= apart), len(shape))
        if not last < axis < len(shape) or apart % strides[axis]:
            return None
        last, count[axis], step[axis] = axis, length, apart // strides[axis]
        if start[axis] + (length - 1) * step[axis] >= shape[axis]:
            return None
    return Selection(tuple(start), tuple(count), tuple(step))


def _slabs(shape: tuple[int, ...], itemsize: int, most: int) -> Iterator[Slab]:
    """Yield the parts of an array in its order, none of more than `most` bytes, or of more than one element."""
    axis = next(
        (i for i in range(len(shape)) if itemsize * math.prod(shape[i + 1 :]) <= most), max(0, len(shape) - 1)
    )
    if not shape:
        yield (), ()
        return
    inner = shape[axis + 1 :]
    rows = max(1, most // max(1, itemsize * math.prod(inner)))
    for lead in itertools.product(*map(range, shape[:axis])):
        for row in range(0, shape[axis], rows):
            start = (*lead, row, *(0 for _ in inner))
            yield start, (*(1 for _ in lead), min(rows, shape[axis] - row), *inner)
