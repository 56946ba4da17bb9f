"""Saves that have not ended, by the file that they replace: of several to one file, the last that was called wins.

A later save waits for those that go on in the background. A call that waits cannot be waited for: it may be this
thread's, which saves to the same file while it is told of its progress. It gives way instead, once a later save has
given the file its content.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from zerocopy.process.fork_safe import ForkSafeLock


class UnderWay(Protocol):
    """A save that has begun."""

    @property
    def done(self) -> bool:
        """Return whether it has ended, well or not."""

    def process_end(self) -> int | None:
        """Return a descriptor, the caller's, that is readable when the process has ended that writes."""

    def join(self) -> None:
        """Wait until it has ended, well or not."""


class Turn:
    """The place of one save in the order in which saves were called."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.is_superseded = False  # a later save has given the file its content


_numbers = itertools.count()
_turns: dict[Path, list[Turn]] = {}
_naming = ForkSafeLock()
_lock = ForkSafeLock()
_found: dict[Path, list[UnderWay]] = {}
# They end in the process that began them, and nothing tells a child of fork about it.
os.register_at_fork(after_in_child=_found.clear)
os.register_at_fork(after_in_child=_turns.clear)


def add(target: Path, save: UnderWay) -> None:
    """Note that a save to a file, whose path has no symbolic links, has begun."""
    with _lock.held():
        _found.setdefault(target, []).append(save)


def remove(target: Path, save: UnderWay) -> None:
    """Note that it has ended."""
    _take_out(_found, target, save)


def _take_out(saves: dict[Path, list[Any]], target: Path, save: object) -> None:
    """Remove a save, which a child of a fork does not have."""
    with _lock.held():
        left = saves.get(target, [])
        if save in left:
            left.remove(save)
        if not left:
            saves.pop(target, None)


def to(target: Path) -> list[UnderWay]:
    """Return those to a file, in the order in which they began."""
    with _lock.held():
        return list(_found.get(target, ()))


def everywhere() -> list[UnderWay]:
    """Return all."""
    with _lock.held():
        return [save for saves in _found.values() for save in saves]


@contextlib.contextmanager
def taking_turn(target: Path) -> Iterator[Turn]:
    """Have a call that waits take its turn, and end its turn with the block."""
    turn = Turn()
    with _lock.held():
        _turns.setdefault(target, []).append(turn)
    try:
        yield turn
    finally:
        _take_out(_turns, target, turn)


def one_at_a_time() -> contextlib.AbstractContextManager[object]:
    """Return the lock under which a call checks that it is not superseded, renames its file, and notes that."""
    return _naming.held()


def note_content(target: Path, turn: Turn) -> None:
    """Note that a save has given a file its content."""
    with _lock.held():
        for earlier in _turns.get(target, ()):
            earlier.is_superseded |= earlier.number < turn.number
