"""Pause Python's garbage collector while many objects are made that all stay alive."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from zerocopy import _core

P = ParamSpec("P")
R = TypeVar("R")

_PAUSE = _core.CollectorPause()

# A child does not have the threads that were in such a function.
os.register_at_fork(after_in_child=_PAUSE.leave_all)


def collector_paused(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that keeps the collector from starting: each run would walk through all of torch's objects.

    Threads may be in such functions at the same time. A collector that was off before the first of them stays off.
    """

    @functools.wraps(function)
    def paused(*args: P.args, **kwargs: P.kwargs) -> R:
        # No "with": in Python 3.14, a signal handler can raise between entering and the block. To leave without
        # having entered does no harm.
        try:
            _PAUSE.enter()
            return function(*args, **kwargs)
        finally:
            _PAUSE.leave()

    return paused
