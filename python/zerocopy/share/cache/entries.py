"""One kept result: a file, which is renamed into place when it is whole. Its name never changes.

    ├─ prefix ─┼─ head: JSON ─┼─ mappings ─┼─ storages ─┼─ pickle ─┼─ skeleton ─┼─ span ─┼─ span ─┤
               └───────────── the checksum of the prefix is over these ─────────┘

``objects/publish.py`` has the layout behind the head. A file is trusted within the boot in which it was written, and
later if it has been synced since: its time of modification then is what the head says.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import struct
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from zerocopy import _core
from zerocopy.share.conditions.file_identity import Identity, boot

_MAGIC = b"zerocopy share 3"
#: Magic, checksum, bytes of the head, bytes behind it that the checksum covers, bytes of the whole file.
_PREFIX = struct.Struct("=16sIIQQ")
ALIGNMENT = 64
_FIRST_READ = 1 << 15
_SETTLED_SECONDS = 60.0  # after so long the system has written a file to the disk by itself


class Part(NamedTuple):
    """Bytes of another file that an entry's storages lie in: its path, its identity, and where.

    Another entry has a path that is not absolute, ``KEY/ID``, and no identity.
    """

    path: str
    identity: Identity | tuple[()]
    offset: int
    size: int


class Entry:
    """An entry that is open as long as the object is there.

    Attributes
    ----------
    path : str
        The file.
    head : dict
        The description of the result, as `Cache.write` got it.
    descriptor : int
        The open file.
    base : int
        Where what is behind the head begins.
    size : int
        Bytes behind the head.
    used : float
        When it was last taken.
    """

    def __init__(self, path: str, file: _core.Descriptor) -> None:
        self._file, self.path, self.descriptor = file, path, file.fileno()
        descriptor, status = self.descriptor, os.fstat(self.descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise ValueError("it belongs to another user, or others may write to it")
        self.used, self._status = status.st_atime, status
        content = os.pread(descriptor, _FIRST_READ, 0)
        if len(content) < _PREFIX.size:
            raise ValueError("it is cut")
        magic, checksum, head, covered, size = _PREFIX.unpack_from(content)
        self.base = aligned(_PREFIX.size + head)
        if magic != _MAGIC or size != status.st_size or self.base + covered > size:
            raise ValueError(f"expected {size} bytes of an entry, found {status.st_size}")
        if len(content) < self.base + covered:
            content += os.pread(descriptor, self.base + covered - len(content), len(content))
        if _core.crc32(memoryview(content)[_PREFIX.size : self.base + covered]) != checksum:
            raise ValueError("its checksum is another one")
        self.size = size - self.base
        self.head: dict[str, Any] = json.loads(content[_PREFIX.size : _PREFIX.size + head])

    @property
    def id(self) -> str:
        """The name of the entry, which no other has."""
        return os.path.basename(self.path)

    @property
    def key(self) -> str:
        """The key of its call."""
        return os.path.basename(os.path.dirname(self.path))

    @property
    def parts(self) -> list[Part]:
        """The other files that it refers to."""
        return [Part(path, tuple(identity), *at) for path, identity, *at in self.head["parts"]]

    @property
    def references(self) -> list[str]:
        """The other entries that it refers to, as ``KEY/ID``, and files."""
        return [*(part.path for part in self.parts), *self.head["arguments"]]

    @property
    def is_trusted(self) -> bool:
        """Return whether all of its bytes have surely been written."""
        return self._is_synced or self.head["boot"] == boot()

    @property
    def _is_synced(self) -> bool:
        return bool(self._status.st_mtime_ns == self.head["created"])

    def note_use(self) -> None:
        """Record that the entry is used now, and that it is on the disk once the system has written it by itself."""
        with contextlib.suppress(OSError):
            now = time.time_ns()
            if not self._is_synced and now - self.head["created"] > _SETTLED_SECONDS * 1e9:
                sync(self.path, self.descriptor)
            elif now - self._status.st_atime_ns > 1e9:
                os.utime(self.path, ns=(now, self._status.st_mtime_ns))


def sync(path: str, descriptor: int) -> None:
    """Wait until an entry is on the disk, and mark it so."""
    os.fdatasync(descriptor)
    head = os.pread(descriptor, _FIRST_READ, 0)
    found = re.search(rb'"created":(\d+)', head)
    if found is not None:
        os.utime(path, ns=(time.time_ns(), int(found[1])))


_ENTRY = re.compile(r".*/results/([0-9a-f]{40}/[0-9a-f]{20})")


def name_of_entry(path: str) -> str | None:
    """Return what an entry's file is called in its cache, or None for other files."""
    found = _ENTRY.fullmatch(path)
    return None if found is None else found[1]


def beginning(
    head: dict[str, Any], covered: int, size: int, contents: Iterable[tuple[int, Any]]
) -> bytearray:
    """Return a new entry up to its storages.

    Parameters
    ----------
    head : dict
        The description of the result.
    covered, size : int
        Bytes behind the head: those that the checksum covers, and all.
    contents : iterable of (int, buffer)
        The covered bytes, and where they begin.
    """
    text = json.dumps({"created": time.time_ns(), "boot": boot(), **head}, separators=(",", ":")).encode()
    base = aligned(_PREFIX.size + len(text))
    content = bytearray(base + covered)
    content[_PREFIX.size : _PREFIX.size + len(text)] = text
    for offset, piece in contents:
        content[base + offset : base + offset + len(piece)] = piece
    checksum = _core.crc32(memoryview(content)[_PREFIX.size :])
    _PREFIX.pack_into(content, 0, _MAGIC, checksum, len(text), covered, base + size)
    return content


def aligned(size: int) -> int:
    """Return a size with what is needed to align what comes next."""
    return -(-size // ALIGNMENT) * ALIGNMENT
