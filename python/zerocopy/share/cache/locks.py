"""Locks of keys: one byte of a file for each, so that the kernel frees those of a process that ends.

A forked child does not have its parent's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Iterator

from zerocopy.process import interrupts


@contextlib.contextmanager
def held(folder: str, key: str) -> Iterator[bool]:
    """Hold the lock of a key within a block, and tell whether another thread or process had it meanwhile."""
    mine = _locks.setdefault((folder, key), threading.Lock())
    waited = not mine.acquire(blocking=False)
    if waited:
        with interrupts.allowed():
            mine.acquire()
    try:
        place = int(key[:15], 16)
        try:
            descriptor = _descriptor_of_locks(f"{folder}/locks")
        except OSError:  # a cache that is read only
            descriptor = None
        if descriptor is None:
            yield waited
            return
        waited |= _take(descriptor, place)
        try:
            yield waited
        finally:
            with contextlib.suppress(OSError):
                fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, place)
    finally:
        mine.release()


def _take(descriptor: int, place: int) -> bool:
    """Lock a byte, and return whether that took waiting. Nobody waits where the file system has no locks."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            return False
        with contextlib.suppress(OSError), interrupts.allowed():  # EDEADLK: the other waits for this process
            fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, place)
        return True
    return False


_locks: dict[tuple[str, str], threading.Lock] = {}
_lock_files: dict[str, int] = {}


def _descriptor_of_locks(path: str) -> int:
    """Return the descriptor of the file of locks, which stays open: to close it would free all locks."""
    known = _lock_files.get(path)
    with contextlib.suppress(OSError):
        if known is not None and os.path.samestat(os.fstat(known), os.stat(path)):
            return known
    found = _lock_files[path] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return found


def _forget_locks() -> None:
    _locks.clear()


os.register_at_fork(after_in_child=_forget_locks)
