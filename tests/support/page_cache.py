"""Finds the pages of a file in memory: those that were read, and those that the kernel read ahead."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


def drop(path: Path) -> None:
    """Take a file out of memory; skip the test where the file system keeps it there."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident(path):
        pytest.skip("this file system keeps its files in memory")


def resident(path: Path) -> set[int]:
    """Return the numbers of the pages of a file that are in memory."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
        first = ctypes.c_char.from_buffer(view)
        pages = (ctypes.c_ubyte * -(-len(view) // PAGE))()
        failed = _libc.mincore(
            ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(view)), ctypes.byref(pages)
        )
        del first
    assert not failed, os.strerror(ctypes.get_errno())
    return {number for number, state in enumerate(bytes(pages)) if state & 1}
