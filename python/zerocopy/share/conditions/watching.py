"""Reads what the preloaded library `_watch` has noted of this process and the children that it forked (csrc/watch)."""

from __future__ import annotations

import ctypes
import enum
import os
import struct
from pathlib import Path
from typing import NamedTuple

from zerocopy.share.wire.file_identity import Identity

_AREA = 1 << 26
# As csrc/watch/area.cpp writes it: sizes and kind, what was asked and answered, which file it is.
_RECORD = struct.Struct("=IHBBiIIIIIQQQqq")


class Kind(enum.IntEnum):
    """A way to ask the file system, or to leave the process."""

    OPENED = 1
    LOOKED = 2
    LOOKED_AT = 3
    ASKED = 4
    LISTED = 5
    FOLLOWED = 6
    RESOLVED = 7
    CHANGED = 8
    RAN = 9
    SPOKE = 10


class Record(NamedTuple):
    """One thing that was asked, with its answer right then.

    Attributes
    ----------
    kind : Kind
        The way.
    path : str
        The absolute path.
    is_relative : bool
        Whether the path was given relative to the current folder.
    is_import : bool
        Whether that was while an installed module was being imported.
    flags : int
        Those of ``open``; of a socket the family.
    mode : int
        The type and permissions of what is there; 0 where there is nothing.
    identity : Identity or None
        The identity of the file at that path.
    target : str
        The target of a link, or a shell's command.
    """

    kind: int
    path: str
    is_relative: bool = False
    flags: int = 0
    mode: int = 0
    identity: Identity | None = None
    target: str = ""
    is_import: bool = False


def library() -> Path | None:
    """Return the library to preload, if this installation has it where LD_PRELOAD can name it."""
    path = Path(__file__).resolve().parents[2] / "_watch.so"
    return path if path.is_file() and not set(str(path)) & set(" :") else None


class Watch:
    """The library, if this process was started with it."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self.is_there = hasattr(self._library, "zerocopy_watch_start")
        if self.is_there:
            self._library.zerocopy_watch_start.argtypes = [ctypes.c_uint64]
            self._library.zerocopy_watch_size.restype = ctypes.c_uint64
            self._library.zerocopy_watch_read.argtypes = [ctypes.c_char_p, ctypes.c_uint64]

    def start(self) -> None:
        """Note from now on. `is_there` is false afterwards if that cannot be."""
        self.is_there = self.is_there and self._library.zerocopy_watch_start(_AREA) == 0

    def stop(self) -> None:
        """Note no more."""
        if self.is_there:
            self._library.zerocopy_watch_stop()

    def mute_listing(self) -> None:
        """Do not note the next listing of a folder by this thread."""
        if self.is_there:
            self._library.zerocopy_watch_mute_listing()

    def importing(self, is_importing: bool) -> None:
        """Say whether this thread imports what is installed from now on."""
        if self.is_there:
            self._library.zerocopy_watch_importing(int(is_importing))

    @property
    def is_full(self) -> bool:
        """Return whether more was asked than there was room to note."""
        return self.is_there and bool(self._library.zerocopy_watch_is_full())

    def records(self) -> list[Record]:
        """Return what was noted."""
        if not self.is_there:
            return []
        content = ctypes.create_string_buffer(self._library.zerocopy_watch_size())
        self._library.zerocopy_watch_read(content, len(content))
        return _parsed(content.raw)


def _parsed(content: bytes) -> list[Record]:
    records = []
    at = 0
    while at + _RECORD.size <= len(content):
        size, kind, marks, is_whole, _, mode, flags, length, more, has_status, *identity = (
            _RECORD.unpack_from(content, at)
        )
        if size < _RECORD.size:  # what follows was only begun
            break
        if is_whole:
            begin = at + _RECORD.size
            path = os.fsdecode(content[begin : begin + length])
            target = os.fsdecode(content[begin + length : begin + length + more])
            device, inode, bytes_, modified, changed = identity
            which = (device, inode, bytes_, modified, changed) if has_status else None
            records.append(Record(kind, path, bool(marks & 1), flags, mode, which, target, bool(marks & 2)))
        at += size
    return records
