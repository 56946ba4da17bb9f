"""Bounds the memory that a conversion takes for its tensors, in proportion to the size of its sources.

A pickle can call a rebuild function with one memoized tuple of arguments again and again: five bytes make a tensor,
which takes a hundred times as much while it is pickled again.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerocopy import _core
from zerocopy.converting.inputs import Sources
from zerocopy.loading import error_context
from zerocopy.loading.inputs import position_of

# Bytes that a tensor takes, with its name and what the memo of pickle keeps of it; measured with PyTorch 1.13.
_MAPPED = 2816  # to be pickled and laid out, where it lies in its file
_MADE = 2816  # to be pickled, where it is made anew each time that it is wanted
_COPIED = 896  # to be written without a pickle

_TIMES = 20  # of a Budget
_UNKNOWN = 1 << 56  # the size of a pipe, which was read to its end
_COMPLAINT = (
    "expected fewer tensors for the size of its sources: convert takes {each} bytes for each, and at most 64 MiB and "
    "20 times the sources for all. keep selects some of them"
)


def of_pickled(sources: Sources) -> Callable[[], None]:
    """Return a function that charges for one more tensor to be pickled. It raises ``FormatError`` for one too many."""
    return _charge(sources, _MAPPED if sources.is_mapped else _MADE)


def require_few_copied(sources: Sources) -> None:
    """Raise ``FormatError`` if there are too many tensors to be written without a pickle."""
    if sources.is_of_torch:  # the header of a .safetensors file spells each tensor out
        require(sources, _charge(sources, _COPIED))


def require(sources: Sources, charge: Callable[[], None]) -> None:
    """Charge for all tensors of the sources. Tied names are one tensor."""
    with error_context.naming(sources.name):
        for _ in set(sources.tensors.values()):
            charge()


def _charge(sources: Sources, each: int) -> Callable[[], None]:
    size = sum(map(_size, sources.places()))
    if len(sources.tensors) * each > _TIMES * size:  # rare: else the records are not listed
        size += sum(_inflated(descriptor, path) for descriptor, path in sources.archives())
    return functools.partial(_core.Budget(size, _COMPLAINT.format(each=each)).charge, each)


def _size(place: Any) -> int:
    """Return the bytes of a source: a file, a folder, a buffer or a file object."""
    if isinstance(place, str):
        path = Path(place)
        return sum(each.stat().st_size for each in [path, *path.rglob("*")] if each.is_file())
    if not hasattr(place, "read"):
        return memoryview(place).nbytes
    at = position_of(place)
    if at is None:
        return _UNKNOWN
    try:
        return int(place.seek(0, os.SEEK_END))
    finally:
        place.seek(at)


def _inflated(descriptor: int, path: str) -> int:
    """Return how many bytes the records of a zip archive take once they are inflated."""
    return sum(record.size for record in _core.zip_records(descriptor, path) if record.is_deflated)
