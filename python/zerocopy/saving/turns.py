"""The order of saves to one file: of several calls in a process, the last one wins.

A save takes its turn when it is called, and waits for earlier turns before its file gets its name.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Self

from zerocopy import _core

# In the order of the calls. Each operation on the list is atomic, so a signal handler between two of them does no harm.
# If a handler raises, the with block may not end its turn. The turn then ends when its object is deleted.
_under_way: list[weakref.ref[Turn]] = []
# They end in the process that began them, and nothing tells a child of fork about it.
os.register_at_fork(after_in_child=_under_way.clear)


class Turn:
    """The place of one save among those to `target`, a path without symbolic links. Ends with its block.

    Attributes
    ----------
    give_way : callable or None
        Called when a later save of the same thread (in a signal handler, or in a function `progress`) takes the place
        of this one. It makes this save leave the target alone. If None, the later save raises RuntimeError.
    process_end : Descriptor or None
        Of the process that writes, if one does: readable when it has ended.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.give_way: Callable[[], object] | None = None
        self.process_end: _core.Descriptor | None = None
        self.ended = threading.Event()
        self._thread = threading.get_ident()
        self._reference = weakref.ref(self)

    def __enter__(self) -> Self:
        _under_way.append(self._reference)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the turn, so that later saves go on."""
        with contextlib.suppress(ValueError):  # a child of fork has none of its parent's
            _under_way.remove(self._reference)
        self.ended.set()

    def __del__(self) -> None:
        if hasattr(self, "_reference"):  # else an exception of a handler kept it from being made
            self.end()

    def earlier(self) -> list[Turn]:
        """Return the turns before this one."""
        before = list(itertools.takewhile(lambda turn: turn is not self, _present()))
        return [turn for turn in before if turn.target == self.target]

    def wait(self) -> None:
        """Wait until the turns before this one have ended. Raise RuntimeError if only this thread can end them."""
        while earlier := self.earlier():
            turn, ended = earlier[0], earlier[0].ended
            if turn._thread == threading.get_ident() and turn.give_way is not None:
                turn.give_way()
                turn.end()
            is_own = turn._thread == threading.get_ident()
            del turn, earlier  # a turn that has lost its block ends with its last reference
            if is_own and not ended.is_set():
                raise _within(self.target)
            ended.wait()


def require_outside(target: str) -> None:
    """Raise RuntimeError if this thread is within a save to the file: the save could not end if this thread waited."""
    if any(turn.target == target and turn._thread == threading.get_ident() for turn in _present()):
        raise _within(target)


def _present() -> list[Turn]:
    return [turn for reference in list(_under_way) if (turn := reference()) is not None]


def _within(target: str) -> RuntimeError:
    return RuntimeError(f"{target}: the function `progress` cannot wait for the save that calls it")
