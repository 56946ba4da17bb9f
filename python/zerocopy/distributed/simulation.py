"""Works out the requests of many ranks at once: tensors of the same layout are split once for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from zerocopy import _torch
from zerocopy.distributed.shards import shard_range
from zerocopy.lazy.reading.extents import Box, ChunkExtent, TensorExtents, contiguous_strides
from zerocopy.lazy.reading.parts import Part
from zerocopy.lazy.reading.read_plan import MANY_REQUESTS, MAX_SEGMENTS
from zerocopy.lazy.reading.segments import MAX_REQUEST, MAX_WASTE, PAGE

Split = tuple[int | None, ...]


class Intervals(NamedTuple):
    """Requests to one file: where each begins and ends, in bytes. Both are one-dimensional tensors of integers."""

    begin: torch.Tensor
    end: torch.Tensor

    @property
    def nbytes(self) -> int:
        """The bytes of all requests."""
        return int((self.end - self.begin).sum())


class Reads(NamedTuple):
    """The reads of one rank: the bytes of its tensors, and the requests to each file."""

    nbytes: int
    files: dict[str, Intervals]


class _Layout(NamedTuple):
    """The properties that decide how a tensor is split. Tensors that agree in them differ only in their offsets."""

    file: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    begin: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    split: Split


class Simulation:
    """The reads of any rank of a mesh.

    Parameters
    ----------
    tensors : iterable of (TensorExtents, Split)
        Each tensor, and which of its dimensions each dimension of the mesh splits.
    sizes : tuple of int
        Of the mesh.
    """

    def __init__(self, tensors: Iterable[tuple[TensorExtents, Split]], sizes: tuple[int, ...]) -> None:
        self._sizes = sizes
        offsets: dict[_Layout, list[int]] = defaultdict(list)
        for extents, split in tensors:
            for chunk in extents.chunks:
                layout = (extents.shape, extents.dtype, chunk.begin, chunk.size, chunk.stride, split)
                offsets[_Layout(chunk.file, *layout)].append(chunk.offset)
        self._offsets = {layout: torch.tensor(found, device="cpu") for layout, found in offsets.items()}
        self._splits = [any(layout.split[dim] is not None for layout in offsets) for dim in range(len(sizes))]

    def key(self, place: tuple[int, ...]) -> tuple[int, ...]:
        """Return a key that is equal for places in the mesh that read the same."""
        return tuple(n if used else 0 for n, used in zip(place, self._splits, strict=True))

    def reads(self, place: tuple[int, ...]) -> Reads:
        """Return the reads of the rank at a place in the mesh."""
        nbytes = 0
        runs: dict[str, list[tuple[torch.Tensor, int]]] = defaultdict(list)
        rows: dict[str, list[tuple[torch.Tensor, int]]] = defaultdict(list)
        for layout, offsets in self._offsets.items():
            box = box_of(layout.shape, layout.split, place, self._sizes)
            for offset, length, count, step in _segments(layout, box):
                begins = offsets + offset
                if count > 1:
                    begins = (begins[:, None] + step * torch.arange(count, device="cpu")).flatten()
                    rows[layout.file].append((begins, length))
                else:
                    runs[layout.file].append((begins, length))
            nbytes += len(offsets) * _overlap(layout, box) * _torch.element_size(layout.dtype)
        files = {}
        for file in {**runs, **rows}:
            merged, apart = requests_of(*_joined(runs[file])), Intervals(*_ends(*_joined(rows[file])))
            files[file] = Intervals(*map(torch.cat, zip(merged, apart, strict=True)))
        return Reads(nbytes, files)


def box_of(shape: tuple[int, ...], split: Split, place: tuple[int, ...], sizes: tuple[int, ...]) -> Box:
    """Return the part of a tensor that the rank at a place in a mesh has."""
    begin, size = [0] * len(shape), list(shape)
    for dim, mine, ranks in zip(split, place, sizes, strict=True):
        if dim is not None:
            first, length = shard_range(size[dim], mine, ranks)
            begin[dim] += first
            size[dim] = length
    return tuple(begin), tuple(size)


def _within(layout: _Layout, box: Box) -> ChunkExtent | None:
    chunk = ChunkExtent(layout.file, 0, layout.begin, layout.size, layout.stride)
    return chunk.within(*box, _torch.element_size(layout.dtype))


def _overlap(layout: _Layout, box: Box) -> int:
    found = _within(layout, box)
    return 0 if found is None else torch.Size(found.size).numel()


def _segments(layout: _Layout, box: Box) -> Iterator[tuple[int, int, int, int]]:
    """Yield offset, length, rows and step of the segments of a tensor whose first element is at offset 0."""
    begin, size = box
    found = _within(layout, box)
    if found is not None:
        inside = tuple(mine - first for mine, first in zip(found.begin, begin, strict=True))
        part = Part(layout.dtype, size, [found._replace(begin=inside)], ...)
        for _, segment in part.segments(0, contiguous_strides(size)):
            yield segment.offset, segment.nbytes, segment.rows, segment.step


def _joined(runs: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    empty = torch.empty(0, dtype=torch.int64, device="cpu")
    begins = [begin for begin, _ in runs]
    lengths = [torch.full_like(begin, length) for begin, length in runs]
    return torch.cat([empty, *begins]), torch.cat([empty, *lengths])


def _ends(begin: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return begin, begin + length


def requests_of(begin: torch.Tensor, length: torch.Tensor) -> Intervals:
    """Return the requests for runs of one file, as ``read_plan.requests_of`` merges its segments."""
    order = torch.argsort(length, stable=True)
    order = order[torch.argsort(begin[order], stable=True)]
    begin, length = begin[order], length[order]
    end = begin + length
    gaps = begin[1:] - end[:-1]
    apart = (gaps < 0) | (gaps > _largest_gap(gaps, length))
    first = torch.cat([torch.tensor([0], device="cpu")[: len(begin)], torch.nonzero(apart).flatten() + 1])
    last = torch.cat([first[1:], torch.tensor([len(begin)], device="cpu")[: len(begin)]]) - 1
    long = (end[last] - begin[first] > MAX_REQUEST) | (last - first >= MAX_SEGMENTS)
    if long.any():
        extra = [_divided(begin, end, int(first[n]), int(last[n])) for n in torch.nonzero(long).flatten()]
        first = torch.sort(torch.cat([first, *(torch.tensor(found, device="cpu") for found in extra)])).values
        last = torch.cat([first[1:], torch.tensor([len(begin)], device="cpu")]) - 1
    return Intervals(begin[first], end[last])


def _divided(begin: torch.Tensor, end: torch.Tensor, first: int, last: int) -> list[int]:
    """Return where further requests begin within runs that are too many, or too long together, for one."""
    begins, ends = begin[first : last + 1].tolist(), end[first : last + 1].tolist()
    found, start = [], 0
    for n in range(1, len(begins)):
        if ends[n] - begins[start] > MAX_REQUEST or n - start >= MAX_SEGMENTS:
            found.append(first + n)
            start = n
    return found


def _largest_gap(gaps: torch.Tensor, length: torch.Tensor) -> int:
    """Return the gap that ``read_plan`` allows between two runs of one request."""
    large = gaps[gaps > PAGE]
    excess = len(large) + 1 - MANY_REQUESTS
    if len(length) <= MANY_REQUESTS or excess <= 0:
        return PAGE
    widths, counts = torch.unique(large, return_counts=True)
    before = torch.cumsum(counts, 0) - counts
    wasted = torch.cumsum(widths * counts, 0)
    taken = (before < excess) & (wasted <= int(MAX_WASTE * int(length.sum())))
    return int(widths[taken].max()) if taken.any() else PAGE


def length_of_union(intervals: Iterable[Intervals]) -> int:
    """Return how many bytes of one file lie in at least one of the intervals."""
    found = list(intervals)
    begin = torch.cat([each.begin for each in found])
    end = torch.cat([each.end for each in found])
    if not len(begin):
        return 0
    begin, order = torch.sort(begin)
    end = end[order]
    reached = torch.cat([begin[:1], torch.cummax(end, 0).values[:-1]])
    return int((end - torch.maximum(begin, reached)).clamp(min=0).sum())
