"""Splits a strided part of a file into runs of bytes, each with its place in a tensor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

#: A gap up to this size is read along: disks and networks move whole pages anyway.
PAGE = 4096
#: The most bytes of a request: larger runs are split, so that several threads share them.
MAX_REQUEST = 8 << 20

# Gaps between rows that are larger than a page are read along if they are less than this part of the bytes.
_MAX_WASTE = 1 / 8
_MAX_ROWS = 256  # of a segment: threads share the others

Dim = tuple[int, int, int]  # count, stride in the file, stride in the target, in elements


class Segment(NamedTuple):
    """A run of bytes of a file, and where it goes.

    Attributes
    ----------
    offset, nbytes : int
        In the file.
    target : int
        Position of the target tensor in the list of targets.
    at : int
        Position in the memory of that tensor, in bytes from its first element.
    dims : tuple of Dim
        Empty if the run is copied as it is. Else the run has gaps, or another order: count, stride in the run, and
        stride in the target, by dimension, in elements.
    rows, step, target_step : int
        The number of runs, and the distance in bytes from one run to the next, in the file and in the target. The runs
        are far from each other, so each is a separate request.
    """

    offset: int
    nbytes: int
    target: int
    at: int
    dims: tuple[Dim, ...]
    rows: int = 1
    step: int = 0
    target_step: int = 0


def segments_of(
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    target_stride: tuple[int, ...],
    itemsize: int,
    target: int,
    at: int,
) -> Iterator[Segment]:
    """Yield the segments of a strided part of a file, in ascending order of their offsets.

    Parameters
    ----------
    offset : int
        Of the first element in the file, in bytes.
    size, stride, target_stride : tuple of int
        Shape of the part; strides in the file and in the target, in elements.
    itemsize : int
        The bytes of an element.
    target, at : int
        As for :class:`Segment`.
    """
    dims = merged_dims(size, stride, target_stride)
    if dims is None:
        return
    if not dims or dims[-1][1:] == (1, 1):
        begin = max(len(dims) - 1, 0)
        span = itemsize * (dims[-1][0] if dims else 1)
        direct = True
    else:
        begin, span, direct = len(dims), itemsize, False
    # Dimensions with small gaps belong to the run.
    while begin and dims[begin - 1][1] * itemsize - span <= PAGE:
        begin -= 1
        span += (dims[begin][0] - 1) * dims[begin][1] * itemsize
        direct = False
    outer, inner = dims[:begin], tuple(dims[begin:])
    rows = outer.pop() if direct and outer and _is_far(outer[-1][1] * itemsize - span, span) else None
    for place in itertools.product(*(range(n) for n, _, _ in outer)):
        skipped = sum(i * dim[1] for i, dim in zip(place, outer, strict=True)) * itemsize
        moved = sum(i * dim[2] for i, dim in zip(place, outer, strict=True)) * itemsize
        if rows is not None:
            n, step, target_step = rows[0], rows[1] * itemsize, rows[2] * itemsize
            for first in range(0, n, _MAX_ROWS):
                count = min(_MAX_ROWS, n - first)
                begins, goes_to = offset + skipped + first * step, at + moved + first * target_step
                yield Segment(begins, span, target, goes_to, (), count, step, target_step)
        elif direct:
            for done in range(0, span, MAX_REQUEST):
                count = min(MAX_REQUEST, span - done)
                yield Segment(offset + skipped + done, count, target, at + moved + done, ())
        elif not inner:  # single elements, each far from the next
            yield Segment(offset + skipped, span, target, at + moved, ())
        else:
            yield from _strided(offset + skipped, at + moved, inner, itemsize, target)


def _is_far(gap: int, span: int) -> bool:
    """Return whether reading the gaps between runs would cost more than a request for each run."""
    return gap > span * _MAX_WASTE and span <= MAX_REQUEST


def merged_dims(
    size: tuple[int, ...], stride: tuple[int, ...], target_stride: tuple[int, ...]
) -> list[Dim] | None:
    """Return the fewest dimensions that describe a part, in the order of the file; None if it is empty."""
    if 0 in size:
        return None
    dims = [dim for dim in zip(size, stride, target_stride, strict=True) if dim[0] != 1]
    dims.sort(key=lambda dim: -dim[1])
    merged: list[Dim] = []
    for n, step, target_step in dims:
        if merged and merged[-1][1:] == (step * n, target_step * n):
            merged[-1] = (merged[-1][0] * n, step, target_step)
        else:
            merged.append((n, step, target_step))
    return merged


def _strided(offset: int, at: int, dims: tuple[Dim, ...], itemsize: int, target: int) -> Iterator[Segment]:
    """Yield a run with gaps, in parts that are not too large."""
    span = (1 + sum((n - 1) * step for n, step, _ in dims)) * itemsize
    n, step, target_step = dims[0]
    if span <= MAX_REQUEST:
        yield Segment(offset, span, target, at, dims)
        return
    rows = max(1, MAX_REQUEST // (step * itemsize))
    for first in range(0, n, rows):
        count = min(rows, n - first)
        part = ((count, step, target_step), *dims[1:]) if count > 1 else dims[1:]
        begin, goes_to = offset + first * step * itemsize, at + first * target_step * itemsize
        if part:
            yield from _strided(begin, goes_to, part, itemsize, target)
        else:
            yield Segment(begin, itemsize, target, goes_to, ())
