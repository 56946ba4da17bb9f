"""Keeps signal handlers from running while a module of this package is imported, which they may use themselves."""

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


class _Deferral:
    """The handlers that wait until a block ends, and what came for them meanwhile."""

    def __init__(self) -> None:
        self.handlers: dict[int, _Handler] = {}
        self.pending: list[int] = []
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
    """Defer the signal handlers of Python within a block. At its end they are called for signals that came."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or (_active is not None and not _active.is_over):
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
        _active = None
        deferral.remove()
        for number in deferral.pending:
            deferral.handlers[number](number, None)
