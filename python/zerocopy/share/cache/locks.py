"""Locks of keys: one byte of a file for each, so that the kernel frees those of a process that ends.

A forked child does not have its parent's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def held(folder: str, key: str) -> Iterator[None]:
    """Hold the lock of a key within a block. Nobody waits where the file system has no locks, or is read only."""
    with _locks.setdefault((folder, key), threading.Lock()):
        place = int(key[:15], 16)
        try:
            with contextlib.suppress(OSError):  # EDEADLK: the other waits for this process
                fcntl.lockf(_descriptor_of_locks(f"{folder}/locks"), fcntl.LOCK_EX, 1, place)
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.lockf(_descriptor_of_locks(f"{folder}/locks"), fcntl.LOCK_UN, 1, place)


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
