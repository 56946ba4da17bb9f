"""Finds the files that native code opens (HDF5, tokenizers, sentencepiece), by inotify in folders of interest.

The descriptor stays open, because closing it waits for the kernel for milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterable, Iterator

from zerocopy.process.fork_safe import ForkSafeLock

_IN_OPEN = 0x20
_IN_Q_OVERFLOW = 0x4000
_IN_ISDIR = 0x40000000
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_EVENT = struct.Struct("iIII")
_PIECE = 1 << 16
_MAX_FOLDERS = 256


class Watcher:
    """Collects the files that any process opens in some folders.

    Attributes
    ----------
    unseen : list of str
        Why files may have been missed.
    """

    _lock = ForkSafeLock()
    _descriptor = -1
    _process = 0
    _folders: dict[int, str] = {}  # noqa: RUF012 - of this process, by the kernel's number of the watch
    _active: tuple[Watcher, ...] = ()
    _libc = ctypes.CDLL(None, use_errno=True)

    def __init__(self) -> None:
        self._found: dict[str, None] = {}
        self._known: set[str] = set()
        self.unseen: list[str] = []

    @classmethod
    @contextlib.contextmanager
    def watching(cls, paths: Iterable[str]) -> Iterator[Watcher]:
        """Watch within a block. The paths may be files or folders, or missing."""
        watcher = cls()
        with cls._lock.held():
            cls._drain()
            Watcher._active += (watcher,)
        for path in paths:
            watcher._watch(path if os.path.isdir(path) else os.path.dirname(path))
        try:
            yield watcher
        finally:
            with cls._lock.held():
                cls._drain()
                Watcher._active = tuple(each for each in Watcher._active if each is not watcher)
                if not Watcher._active:
                    cls._forget()

    def watch_beside(self, path: str) -> None:
        """Watch the folder of a file too."""
        self._watch(os.path.dirname(path))

    def opened(self) -> list[str]:
        """Return the files that have been opened so far."""
        with self._lock.held():
            self._drain()
        return list(self._found)

    def _watch(self, folder: str) -> None:
        if folder in self._known or len(self._known) >= _MAX_FOLDERS:
            return
        self._known.add(folder)
        try:
            # Watching a folder that all users share (/tmp) takes milliseconds, and reports the files of all users.
            if os.stat(folder).st_mode & stat.S_ISVTX:
                return
        except OSError:
            return
        with self._lock.held():
            if Watcher._process != os.getpid():  # the descriptor is a parent process's
                Watcher._process, Watcher._folders = os.getpid(), {}
                Watcher._descriptor = self._libc.inotify_init1(_FLAGS)
            number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), _IN_OPEN)
            if number < 0:
                self.unseen = [f"files that native code opens ({os.strerror(ctypes.get_errno())})"]
            else:
                self._folders[number] = folder

    @classmethod
    def _drain(cls) -> None:
        if cls._process != os.getpid():
            return
        with contextlib.suppress(OSError):  # the queue is empty
            while content := os.read(cls._descriptor, _PIECE):
                cls._take(content)

    @classmethod
    def _take(cls, content: bytes) -> None:
        at = 0
        while at < len(content):
            number, mask, _, length = _EVENT.unpack_from(content, at)
            name = content[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
            at += _EVENT.size + length
            for watcher in cls._active:
                if mask & _IN_Q_OVERFLOW:
                    watcher.unseen = ["files that native code opens (too many were opened)"]
                elif name and not mask & _IN_ISDIR and number in cls._folders:
                    watcher._found[f"{cls._folders[number]}/{os.fsdecode(name)}"] = None

    @classmethod
    def _forget(cls) -> None:
        for number in cls._folders:
            cls._libc.inotify_rm_watch(cls._descriptor, number)
        cls._folders.clear()
