"""A zip archive laid out as ``torch.save`` lays it out, record by record.

Records are stored, their checksums and sizes follow them (data descriptors), and an extra field of the local header
pads them, byte for byte as torch's writer does it: torch can work out where storages are from where the first one is
(``calculate_storage_offsets``), and does so right. Format: PKWARE APPNOTE 6.3.10, sections 4.3 to 4.5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from zerocopy._core import crc32
from zerocopy.saving.sink import Sink

ROOT = "archive"
SMALLEST_ALIGNMENT, MAX_ALIGNMENT = 64, 2 << 20

_ALL_ONES_16, _ALL_ONES_32 = 0xFFFF, 0xFFFFFFFF
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_DESCRIPTOR, _WIDE_DESCRIPTOR = struct.Struct("<IIII"), struct.Struct("<IIQQ")
_WIDE_END = struct.Struct("<IQHHIIQQQQ")
_LOCATOR = struct.Struct("<IIQI")
_END = struct.Struct("<IHHHHIIH")
_FLAG_DESCRIPTOR, _FLAG_UTF8 = 0x8, 0x800
_VERSION, _WIDE_VERSION = 20, 45
_FIRST_DATE = 0x21  # 1 January 1980: what does not change does not tell when it was written
_FIELD = struct.Struct("<HH")
_WIDE_FIELD_ID = 1
_PADDING_FIELD_ID = int.from_bytes(b"FB", "little")
_MAX_PADDING_LENGTH = _ALL_ONES_16 - _FIELD.size - 3 * 8  # beside the widest field of sizes

#: Writes a record's bytes to the archive's sink and returns their CRC-32, or 0.
Content = Callable[[Sink], int]


class Entry(NamedTuple):
    """A record as the directory has it."""

    name: str
    offset: int  # of the local header
    size: int
    crc: int
    flags: int


class ZipWriter:
    """Writes records to a sink, and at last the directory."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._is_whole = True  # what was written so far ends with a whole record
        self.entries: list[Entry] = []

    def write(self, name: str, content: bytes) -> None:
        """Add a record that is in memory."""

        def put(sink: Sink) -> int:
            sink.write(memoryview(content))
            return crc32(content)

        self.add(name, len(content), put)

    def add(self, name: str, size: int, content: Content, alignment: int = SMALLEST_ALIGNMENT) -> None:
        """Add a record; `content` is called when the place of its first byte has been reached.

        Raises
        ------
        RuntimeError
            An earlier record was not written to its end, or still is being written.
        """
        self._require_whole()
        self._is_whole = False
        name = f"{ROOT}/{name}"
        self._pad(name, size, alignment)
        at = self._sink.position
        flags = _FLAG_UTF8 | (_FLAG_DESCRIPTOR if size else 0)
        self._put(local_header(name, size, at, flags, alignment))
        crc = content(self._sink)
        if size:
            kind = _WIDE_DESCRIPTOR if _is_wide(size, at) else _DESCRIPTOR
            self._put(kind.pack(0x08074B50, crc, size, size))
        self.entries.append(Entry(name, at, size, crc, flags))
        self._is_whole = True

    def finish(self) -> None:
        """Write the directory."""
        self._require_whole()
        at = self._sink.position
        self._put(directory(self.entries))
        size = self._sink.position - at
        self._put(wide_end(len(self.entries), size, at))
        self._put(end(len(self.entries), size, at))

    def _require_whole(self) -> None:
        if not self._is_whole:
            raise RuntimeError("this file cannot be finished: a tensor was not written to its end")

    def _pad(self, name: str, size: int, alignment: int) -> None:
        """Make the room that an extra field cannot fill: by records of zeros, which no pickle speaks of."""
        while _padding(name, size, self._sink.position, alignment) > _MAX_PADDING_LENGTH:
            filler, at = f"{ROOT}/.padding/{len(self.entries)}", self._sink.position
            empty = _LOCAL.size + len(filler)
            zeros = _padding(name, size, at + empty, alignment) - _FIELD.size
            crc = crc32(bytes(zeros))
            self._put(plain_local_header(filler, zeros, crc))
            self._sink.skip(zeros)
            self.entries.append(Entry(filler, at, zeros, crc, _FLAG_UTF8))

    def _put(self, content: bytes) -> None:
        self._sink.write(memoryview(content))


def _is_wide(size: int, at: int) -> bool:
    return size >= _ALL_ONES_32 or at >= _ALL_ONES_32


def _wide_field(size: int, at: int) -> bytes:
    """Return the extra field of what 32 bits cannot hold; torch's writer has the offset in the local header too."""
    wide = [size, size] if size >= _ALL_ONES_32 else []
    wide += [at] if at >= _ALL_ONES_32 else []
    return _FIELD.pack(_WIDE_FIELD_ID, 8 * len(wide)) + struct.pack(f"<{len(wide)}Q", *wide) if wide else b""


def _padding(name: str, size: int, at: int, alignment: int) -> int:
    """Return the bytes of the field that pads a record whose header is at `at`, with the field's own header."""
    start = at + _LOCAL.size + len(name.encode()) + len(_wide_field(size, at)) + _FIELD.size
    return _FIELD.size + -start % alignment


def local_header(name: str, size: int, at: int, flags: int, alignment: int) -> bytes:
    """Return the local header of a record, padded so that the data behind it are aligned."""
    padding = _padding(name, size, at, alignment) - _FIELD.size
    field = _FIELD.pack(_PADDING_FIELD_ID, padding) + b"Z" * padding
    return _packed_local(name, 0, 0, flags, _wide_field(size, at) + field)


def plain_local_header(name: str, size: int, crc: int, padding: int = 0) -> bytes:
    """Return the local header of a record that has no descriptor, with so many bytes of padding."""
    field = b""
    if padding:
        padding = max(padding, _FIELD.size) - _FIELD.size
        field = _FIELD.pack(_PADDING_FIELD_ID, padding) + b"Z" * padding
    return _packed_local(name, size, crc, _FLAG_UTF8, field)


def _packed_local(name: str, size: int, crc: int, flags: int, extra: bytes) -> bytes:
    encoded = name.encode()
    packed = _LOCAL.pack(
        0x04034B50, _VERSION, flags, 0, 0, _FIRST_DATE, crc, size, size, len(encoded), len(extra)
    )
    return packed + encoded + extra


def directory(entries: list[Entry]) -> bytes:
    """Return the central directory."""
    packed = bytearray()
    for name, offset, size, crc, flags in entries:
        encoded, extra = name.encode(), _wide_field(size, offset)
        narrow = min(size, _ALL_ONES_32)
        version = _WIDE_VERSION if extra else _VERSION
        packed += _CENTRAL.pack(
            0x02014B50, version, version, flags, 0, 0, _FIRST_DATE, crc, narrow, narrow,
            len(encoded), len(extra), 0, 0, 0, 0, min(offset, _ALL_ONES_32),
        )  # fmt: skip
        packed += encoded + extra
    return bytes(packed)


def wide_end(entries: int, size: int, offset: int) -> bytes:
    """Return the zip64 end record, which torch always writes, for a directory of `size` bytes at `offset`."""
    rest = _WIDE_END.size - 12
    return _WIDE_END.pack(
        0x06064B50, rest, _WIDE_VERSION, _WIDE_VERSION, 0, 0, entries, entries, size, offset
    )


def end(entries: int, size: int, offset: int) -> bytes:
    """Return the locator of the zip64 end record behind the directory, and the end record: the file's last bytes."""
    few = min(entries, _ALL_ONES_16)
    narrow = (min(size, _ALL_ONES_32), min(offset, _ALL_ONES_32))
    return _LOCATOR.pack(0x07064B50, 0, offset + size, 1) + _END.pack(0x06054B50, 0, 0, few, few, *narrow, 0)
