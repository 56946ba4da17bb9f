"""Returns to the system freed memory that the C library keeps: that of tensors that come and go would add up."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_EVERY = 8 << 20  # bytes


def _found_trim() -> Callable[[int], int]:
    return getattr(ctypes.CDLL(None), "malloc_trim", None) or (lambda _: 0)  # other C libraries keep less


#: Returns free memory to the system, except for a number of bytes at the end of the heap.
trim = _found_trim()


class Heap:
    """Counts what was allocated for tensors, and trims now and then: it takes a while where there are many arenas."""

    def __init__(self) -> None:
        self._since = 0

    def used(self, size: int) -> None:
        """Count a tensor of that size that was allocated, or freed."""
        self._since += size
        if self._since >= _EVERY:
            self._since = 0
            trim(0)
