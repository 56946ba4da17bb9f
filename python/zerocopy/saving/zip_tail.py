"""Read the end of a zip archive and its central directory, and choose unused record names.

Format: PKWARE APPNOTE 6.3.10, sections 4.3.12 to 4.3.16.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import NamedTuple

from zerocopy._core import crc32
from zerocopy.errors import FormatError
from zerocopy.saving.zip_writer import plain_local_header

#: Prefix of retired records, which no pickle refers to. It follows the root folder.
OLD = b"old/"
#: Bytes of a local header without its name.
LOCAL_HEADER = 30

_END, _LOCATOR, _WIDE_END = 22, 20, 56
_CENTRAL = 46
MARK = b"zerocopy edits this file: until its end is in force, it may be cut here"


class RawEntry(NamedTuple):
    """A central directory entry, with its bytes unchanged."""

    content: bytes
    offset: int  # of the local header
    size: int
    crc: int

    @property
    def name(self) -> bytes:
        """The record's whole name."""
        return self.content[_CENTRAL : _CENTRAL + self.name_size]

    @property
    def name_size(self) -> int:
        """The bytes of the name."""
        return int.from_bytes(self.content[28:30], "little")

    @property
    def short_name(self) -> bytes:
        """The name without the root folder."""
        return self.name.partition(b"/")[2]

    @property
    def is_deflated(self) -> bool:
        """Return whether the record is compressed."""
        return self.content[10:12] != b"\0\0"

    def renamed(self, name: bytes) -> RawEntry:
        """Return a copy with another name of the same length."""
        assert len(name) == self.name_size
        return self._replace(content=self.content[:_CENTRAL] + name + self.content[_CENTRAL + len(name) :])


class Tail(NamedTuple):
    """The end record of an archive, and its decoded fields."""

    content: bytes  # the locator, if there is one, and the end record
    directory: int
    size: int
    end: int  # of the archive; an unfinished edit leaves further bytes in the file


def tail_of(file: int) -> Tail:
    """Read the end record at the end of the file. Raise ``FormatError`` if the file ends otherwise."""
    size = os.fstat(file).st_size
    content = os.pread(file, _LOCATOR + _END, max(0, size - _LOCATOR - _END))
    last = content[-_END:]
    if len(content) < _LOCATOR + _END or not last.startswith(b"PK\5\6") or last[-2:] != b"\0\0":
        raise FormatError(
            "expected the end record of an archive, without a comment, at the end of the file, found other bytes: "
            "cut them off, or load the file with torch and save it again"
        )
    if content.startswith(b"PK\6\7"):
        (at,) = struct.unpack_from("<Q", content, 8)
        wide = os.pread(file, _WIDE_END, min(at, size))
        if len(wide) < _WIDE_END or not wide.startswith(b"PK\6\6"):
            raise FormatError("zip: the zip64 locator does not point to an end record")
        length, offset = struct.unpack_from("<QQ", wide, 40)
        tail = Tail(content, offset, length, at + _WIDE_END + _LOCATOR + _END)
    else:
        length, offset = struct.unpack_from("<II", last, 12)
        tail = Tail(last, offset, length, offset + length + _END)
    if max(offset + length, tail.end) > size:
        raise FormatError("zip: the directory runs past the end of the file")
    return tail


def directory_of(file: int, tail: Tail) -> list[RawEntry]:
    """Return the entries of the directory."""
    content = os.pread(file, tail.size, tail.directory)
    raws, at = [], 0
    while at + _CENTRAL <= len(content):
        crc, _, size, *lengths = struct.unpack_from("<IIIHHH", content, at + 16)
        (offset,) = struct.unpack_from("<I", content, at + 42)
        raw = content[at : at + _CENTRAL + sum(lengths)]
        raws.append(RawEntry(raw, _wide_offset(raw, offset), size, crc))
        at += len(raw)
    return raws


def _wide_offset(raw: bytes, offset: int) -> int:
    """Return the offset of an entry: the last value of its zip64 field if 32 bits are too few."""
    if offset != 0xFFFFFFFF:
        return offset
    name_size, extra_size = struct.unpack_from("<HH", raw, 28)
    extra = raw[_CENTRAL + name_size : _CENTRAL + name_size + extra_size]
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<HH", extra)
        if kind == 1:
            return int(struct.unpack_from("<Q", extra, 4 + size - 8)[0])
        extra = extra[4 + size :]
    raise FormatError("zip: an offset is 0xFFFFFFFF, and its zip64 field is missing")


class FreeNames:
    """Unused names for retired records."""

    def __init__(self, raws: list[RawEntry]) -> None:
        self._taken = {raw.name for raw in raws}
        self.root = next((raw.name.partition(b"/")[0] for raw in raws), b"") + b"/"
        self.mark_name = self.free(len(OLD) + 4)
        self.mark = plain_local_header(self.mark_name.decode(), len(MARK), crc32(MARK)) + MARK

    def free(self, length: int) -> bytes:
        """Reserve and return an unused name. `length` does not count the root folder."""
        for number in range(10 ** (length - len(OLD))):
            name = self.root + OLD + str(number).zfill(length - len(OLD)).encode()
            if name not in self._taken:
                self._taken.add(name)
                return name
        raise OSError(errno.EFBIG, "no unused record names are left: save the file again")
