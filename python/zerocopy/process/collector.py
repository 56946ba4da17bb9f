"""Pause Python's garbage collector while many objects are made that all stay alive."""

from __future__ import annotations

import gc
import os
import threading


class _CollectorPause:
    """A block in which the garbage collector does not start: each run would walk through all of torch's objects.

    Threads may be in the block at the same time. A collector that was off before the first of them stays off.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._after_fork)

    def _reset(self) -> None:
        self._lock, self._count, self._was_on = threading.Lock(), 0, False

    def _after_fork(self) -> None:
        was_on = self._count and self._was_on  # the child does not have the threads that were in the block
        self._reset()
        if was_on:
            gc.enable()

    def __enter__(self) -> None:
        with self._lock:
            if self._count == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._was_on:
                gc.enable()


#: Used as ``with COLLECTOR_PAUSED:``.
COLLECTOR_PAUSED = _CollectorPause()
