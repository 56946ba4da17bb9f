"""The limits of the machine, measured in the same run: copying and reading memory."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from .kernels import Kernels

SIZE = 512 << 20  # far more than any cache
TRIES = 5


def measure_ceiling(kernels: Kernels, size: int = SIZE) -> dict[str, float]:
    """Return GB/s of memcpy, of reading by one thread, and of reading by every core: the best of five tries.

    The pages are there before, and are huge where the system allows: a loader cannot do better.
    A copied byte counts once.
    """
    source, target = _faulted(size), _faulted(size)
    whole = kernels.prepare([(_address(source), size)])
    cores = len(os.sched_getaffinity(0))
    share = size // cores
    parts = [kernels.prepare([(_address(source) + i * share, share)]) for i in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        return {
            "memcpy": _best(lambda: ctypes.memmove(_address(target), _address(source), size), size),
            "dram_read": _best(lambda: kernels.consume(*whole), size),
            "dram_read_all_cores": _best(
                lambda: list(pool.map(lambda part: kernels.consume(*part), parts)), share * cores
            ),
            "cores": cores,
        }


def _faulted(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    ctypes.memset(_address(memory), 1, size)
    return memory


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _best(work: Callable[[], object], size: int) -> float:
    times = []
    for _ in range(TRIES):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return size / min(times) / 1e9
