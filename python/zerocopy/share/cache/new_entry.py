"""Write an entry: here, or in a copy of the process, which the program does not wait for."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import select
import signal
import time
from collections.abc import Iterable
from typing import NamedTuple, Self

from zerocopy import _core
from zerocopy.share.cache import entries
from zerocopy.share.cache.entries import Entry

_MAX_SYNCED_AT_EXIT = 1 << 26
_MAKING = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOATIME
# The end of a copy is told only to who asks for children of every kind (linux/wait.h).
_WALL = 0x40000000
_FAILED = 1 << 8  # exit status 1

_log = logging.getLogger("zerocopy")


class NewEntry:
    """An entry that has another name until it is whole. A context manager: the file goes unless it was finished.

    Parameters
    ----------
    folder : str
        That of the key.
    beginning : bytearray
        What is in front of the storages.
    size : int
        Of the whole file.

    Attributes
    ----------
    entry : Entry
        The entry, open within the block. Storages that are not written yet are zeros.
    """

    def __init__(self, folder: str, beginning: bytearray, size: int) -> None:
        name = secrets.token_hex(10)
        self._part, self._path, self._size = f"{folder}/.{name}", f"{folder}/{name}", size
        self._beginning, self._is_finished = beginning, False

    def __enter__(self) -> Self:
        try:
            file = _core.Descriptor.open(os.fsencode(self._part), _MAKING, 0o400)
            self._descriptor = file.fileno()
            os.ftruncate(self._descriptor, self._size)
            _write_at(self._descriptor, memoryview(self._beginning), 0)
            self.entry = Entry(self._path, file)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_finished:
            _unlink(self._part)

    def write(self, storages: Iterable[tuple[int, memoryview]]) -> None:
        """Write storages, which are given with their offset behind the head."""
        for offset, content in storages:
            _write_at(self._descriptor, content, self.entry.base + offset)

    def finish(self) -> None:
        """Rename the file to its final name."""
        os.rename(self._part, self._path)
        self._note_finished()

    def finish_in_copy(self, storages: Iterable[tuple[int, memoryview]], seconds: float) -> None:
        """Start a copy of this process that does both. `seconds`: how long the program may wait for it at its end."""
        settle()
        pieces = [(self.entry.base + offset, content) for offset, content in storages]
        process = _core.write_in_copy(self._descriptor, pieces, self._part, self._path)
        _copies.append(_Copy(process, os.pidfd_open(process), self._part, seconds))
        self._note_finished()

    def _note_finished(self) -> None:
        self._is_finished = True
        if self._size <= _MAX_SYNCED_AT_EXIT:
            _written.append(self._path)


class _Copy(NamedTuple):
    """A copy of this process that writes an entry."""

    process: int
    end: int  # a descriptor that is readable when it has ended
    part: str
    seconds: float

    def has_ended(self, seconds: float) -> bool:
        """Return whether it has ended, waiting for that up to `seconds`."""
        end = select.poll()
        end.register(self.end, select.POLLIN)
        return bool(end.poll(seconds * 1000))

    def forget(self) -> None:
        """Record that it has ended."""
        os.close(self.end)
        with contextlib.suppress(ChildProcessError):  # another has waited for it
            if os.waitpid(self.process, _WALL)[1] == _FAILED:
                _log.warning("%s could not be written: the result is not kept", self.part)
        _unlink(self.part)  # of one that was killed


_copies: list[_Copy] = []
_written: list[str] = []


def settle() -> None:
    """Record which copies have ended."""
    for copy in [copy for copy in _copies if copy.has_ended(0)]:
        _copies.remove(copy)
        copy.forget()


def end() -> None:
    """Wait for copies as long as their calls have taken. Sync small entries, so that they survive a crash."""
    begun = time.monotonic()
    for copy in _copies:
        if not copy.has_ended(max(begun + copy.seconds - time.monotonic(), 0)):
            signal.pidfd_send_signal(copy.end, signal.SIGKILL)
        copy.forget()
    _copies.clear()
    for path in _written:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                entries.sync(path, descriptor)
            finally:
                os.close(descriptor)


def _forget() -> None:
    """Leave the copies to the process that made them."""
    for copy in _copies:
        os.close(copy.end)
    _copies.clear()
    _written.clear()


atexit.register(end)
os.register_at_fork(after_in_child=_forget)


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _write_at(descriptor: int, content: memoryview, offset: int) -> None:
    done = 0
    while done < content.nbytes:
        done += os.pwrite(descriptor, content[done : done + (1 << 30)], offset + done)
