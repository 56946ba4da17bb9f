"""A lock that a child of ``fork`` can take although another thread of the parent held it at the fork."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager

_forks = 0  # between the process that imported this module and this one
_renewing = threading.Lock()


def _note_fork() -> None:
    global _forks, _renewing
    _forks += 1
    _renewing = threading.Lock()


os.register_at_fork(after_in_child=_note_fork)


class ForkSafeLock:
    """A reentrant lock. In a child of ``fork`` only the thread that forked still holds it."""

    __slots__ = ("_forks", "_lock")

    def __init__(self) -> None:
        self._lock, self._forks = threading.RLock(), _forks

    def held(self) -> AbstractContextManager[object]:
        """Return the lock, to be held by a ``with`` statement.

        It is the lock itself: an exception of a signal handler comes between two steps of Python, and a method
        ``__enter__`` in Python would take the lock in one step and return in another.
        """
        if self._forks != _forks:
            self._renew()
        return self._lock

    def _renew(self) -> None:
        """Replace the lock unless this thread holds it: its other holders are not in this process."""
        with _renewing:
            if self._forks != _forks:
                if not self._lock._is_owned():  # type: ignore[attr-defined]
                    self._lock = threading.RLock()
                self._forks = _forks
