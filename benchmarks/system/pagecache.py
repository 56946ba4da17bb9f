"""Adds pages of a file to the page cache, drops them, counts them."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
_ATTEMPTS = 100  # to drop a file
_SETTLED = 0.02  # seconds


def warm(path: Path) -> None:
    """Read the file into the page cache, as the machine's first reader leaves it there.

    Pages of the writer are dropped before. They lie in small folios, and mapping them is many times slower
    than mapping pages of readahead. A file with holes is skipped, because nobody reads its data.
    """
    status = path.stat()
    if status.st_blocks * 512 < status.st_size // 2:
        return
    drop(path)
    read_through(path)


def drop(path: Path) -> None:
    """Drop the file from the page cache, so that the disk is read. Mapped pages stay.

    The kernel leaves a folio that another processor has just added or is looking at, and what it still reads ahead
    comes a moment later, so it is asked again.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())
        for _ in range(_ATTEMPTS):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            time.sleep(_SETTLED)
            if not cached_bytes(path):
                return


def read_through(path: Path) -> None:
    """Read the file from its first byte to its last, as fast as the disk gives it."""
    buffer = bytearray(8 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def mapping_of(path: Path) -> torch.Tensor:
    """Return the bytes of a file, mapped as any program would."""
    with path.open("rb") as file:
        return torch.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)


def read_past(path: Path, at_once: int = 16) -> None:
    """Read the file past the page cache by several requests at once: the most that the disk gives."""
    size, request = path.stat().st_size, 4 << 20
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with ThreadPoolExecutor(at_once) as pool:
            buffers = [mmap.mmap(-1, request) for _ in range(at_once)]

            def read(i: int) -> None:
                for offset in range(i * request, size, at_once * request):
                    os.preadv(file, [buffers[i]], offset)

            list(pool.map(read, range(at_once)))
    finally:
        os.close(file)


def cached_bytes(path: Path) -> int:
    """Return how many bytes of the file are in the page cache, in whole pages; brings none there."""
    size = path.stat().st_size
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    with path.open("rb") as file:
        # Not by Python's mmap, which tells no address of memory that may not be written to.
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap", str(path))
    try:
        if _libc.mincore(address, size, pages):
            raise OSError(ctypes.get_errno(), "mincore", str(path))
    finally:
        _libc.munmap(address, size)
    return (len(pages) - pages.raw.count(b"\0")) * mmap.PAGESIZE


def why_it_stays(folder: Path) -> str:
    """Say why files of a folder cannot be dropped, or return an empty string."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(bytes(1 << 20))
        file.flush()
        drop(Path(file.name))
        return f"{folder} keeps its files in memory" if cached_bytes(Path(file.name)) else ""
