"""Keeps signal handlers from raising between steps that belong together.

``KeyboardInterrupt`` may be raised between any two instructions of Python, also between the call that receives a
descriptor and the block that closes it, or between two functions that are patched together. So handlers of the main
thread wait until a block ends, but for the parts of it that are safe: waiting for an answer, and building a result.
"""

from __future__ import annotations

import contextlib
import signal
import threading

# The functions of `signal` itself make an enumeration of each number, and so take ten times as long.
from _signal import getsignal  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Callable, Iterator
from types import FrameType, GeneratorType
from typing import Any

# Each costs a call some microseconds. Handlers of other signals seldom raise.
_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGALRM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_Handler = Callable[[int, FrameType | None], Any]


class _Part:
    """A block, or a part of one, in which handlers may raise or not."""

    def __init__(self, may_raise: bool) -> None:
        self.may_raise = may_raise


class _Deferral:
    """The handlers that wait until a block ends, and what came for them meanwhile."""

    def __init__(self) -> None:
        self.handlers: dict[int, _Handler] = {}
        self.pending: list[int] = []
        self.parts = [_Part(may_raise=False)]  # the last one decides; others may end before it
        self.manager = _deferring(self)
        self._block: GeneratorType[None, None, None] = vars(self.manager)["gen"]

    @property
    def is_over(self) -> bool:
        """Return whether the block has ended. A handler may have raised before all handlers were put back."""
        return self._block.gi_frame is None

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_over:
            self.remove()
            self.handlers[number](number, frame)
        elif self.parts[-1].may_raise:
            self.handlers[number](number, frame)
        else:
            self.pending.append(number)

    def install(self) -> None:
        for number in _SIGNALS:
            handler = getsignal(number)
            if callable(handler):
                self.handlers[number] = handler
                set_handler(number, self.handle)

    def remove(self) -> None:
        for number, handler in reversed(self.handlers.items()):  # SIGINT is the last
            if getsignal(number) == self.handle:  # not one that was set meanwhile
                set_handler(number, handler)


_active: _Deferral | None = None  # the main thread's


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Defer Python's signal handlers within a block, so that none raises there. They are called at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
    elif _active is not None and not _active.is_over:
        with _part(_active, may_raise=False):
            yield
    else:
        with _Deferral().manager:
            yield


@contextlib.contextmanager
def _deferring(deferral: _Deferral) -> Iterator[None]:
    """Install the handlers of a deferral for a block."""
    global _active
    try:
        deferral.install()
        _active = deferral  # set last, and cleared first: a handler that raises in between would leave it
        yield
    finally:
        deferral.parts.append(_Part(may_raise=False))
        _active = None
        deferral.remove()
        for number in deferral.pending:
            deferral.handlers[number](number, None)


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """Allow signal handlers to raise within a part of a deferred block, as they do outside of it."""
    deferral = _active if threading.current_thread() is threading.main_thread() else None
    if deferral is None or deferral.is_over:
        yield
        return
    with _part(deferral, may_raise=True):
        while deferral.pending:
            number = deferral.pending.pop(0)
            deferral.handlers[number](number, None)
        yield


@contextlib.contextmanager
def _part(deferral: _Deferral, may_raise: bool) -> Iterator[None]:
    part = _Part(may_raise)
    try:
        deferral.parts.append(part)
        yield
    finally:
        deferral.parts.remove(part)
