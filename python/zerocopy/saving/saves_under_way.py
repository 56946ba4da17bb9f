"""Saves that go on in the background, by the file that they replace: a later save to that file ends after them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from zerocopy.process.fork_safe import ForkSafeLock


class UnderWay(Protocol):
    """A save that has begun."""

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""

    def process_end(self) -> int | None:
        """Return a descriptor, the caller's, that is readable when the process has ended that writes."""

    def join(self) -> None:
        """Wait until it has ended, well or not."""


_lock = ForkSafeLock()
_found: dict[Path, list[UnderWay]] = {}
# They end in the process that began them, and nothing tells a child of fork about it.
os.register_at_fork(after_in_child=_found.clear)


def add(target: Path, save: UnderWay) -> None:
    """Note that a save to a file, whose path has no symbolic links, has begun."""
    with _lock.held():
        _found.setdefault(target, []).append(save)


def remove(target: Path, save: UnderWay) -> None:
    """Note that it has ended."""
    with _lock.held():
        left = _found.get(target, [])
        if save in left:
            left.remove(save)
        if not left:
            _found.pop(target, None)


def to(target: Path) -> list[UnderWay]:
    """Return those to a file, in the order in which they began."""
    with _lock.held():
        return list(_found.get(target, ()))


def everywhere() -> list[UnderWay]:
    """Return all."""
    with _lock.held():
        return [save for saves in _found.values() for save in saves]
