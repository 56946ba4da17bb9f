"""The records of a checkpoint's zip archive, read as they are: nothing of them is unpickled."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from zerocopy import _core
from zerocopy.converting.hdf5_writer import STORAGES, number_of
from zerocopy.errors import FormatError, UnsupportedError

_PIECE = 1 << 22
_COPIED = ("data.pkl", "version", "byteorder")


class ZipRecord(NamedTuple):
    """A record of the archive: its name without the root folder, and where its bytes are."""

    name: str
    file: BinaryIO
    offset: int
    stored: int
    deflated: bool
    size: int

    def pieces(self) -> Iterator[bytes]:
        """Yield its bytes, inflated, a few megabytes at once."""
        inflating = zlib.decompressobj(-zlib.MAX_WBITS) if self.deflated else None
        at, end, left = self.offset, self.offset + self.stored, self.size
        while at < end:
            piece = os.pread(self.file.fileno(), min(_PIECE, end - at), at)
            if not piece:
                raise FormatError(f"record {self.name!r} ends before its end")
            at += len(piece)
            while inflating and piece:
                try:
                    inflated = inflating.decompress(piece, min(_PIECE, left + 1))
                except zlib.error as error:
                    raise FormatError(f"record {self.name!r}: {error}") from None
                left -= len(inflated)
                if left < 0 or (not inflated and inflating.unconsumed_tail):
                    raise FormatError(f"record {self.name!r} does not inflate to {self.size} bytes")
                yield inflated
                piece = inflating.unconsumed_tail
            if not inflating:
                left -= len(piece)
                yield piece
        if left:
            raise FormatError(f"record {self.name!r} does not hold {self.size} bytes")


def zip_records(file: BinaryIO, name: str) -> list[ZipRecord]:
    """Return the records that a load reads: torch adds others from release to release."""
    records = []
    for record in _core.zip_records(file.fileno(), name):
        short = record.name.partition("/")[2]
        if short not in _COPIED and not short.startswith(STORAGES):
            continue
        if record.fault:
            raise FormatError(record.fault)
        if short.startswith(STORAGES) and number_of(short) < 0:
            raise UnsupportedError(
                f"storage {short!r}: its name is not a number, as the table of offsets needs"
            )
        records.append(
            ZipRecord(short, file, record.offset, record.stored_size, record.is_deflated, record.size)
        )
    return records
