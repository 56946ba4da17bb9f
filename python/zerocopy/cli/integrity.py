"""Reads a file once to compute its hash, and to check CRC, compression and content of each record."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from zerocopy import _core
from zerocopy.catalogue.files import OpenFile
from zerocopy.catalogue.layout import Record
from zerocopy.cli.output import Progress, escaped
from zerocopy.errors import FormatError

_MAX_FAULT_LENGTH = 300
_BOOLS = b"\0\1"


class Checked(NamedTuple):
    """A record, and what was found in it."""

    record: Record
    crc: int
    sha256: str  # of its content, if asked for; "" of a dataset that is hardly written
    odd_bools: int  # bytes of a bool storage that are neither 0 nor 1
    fault: str  # why it does not inflate, or cannot be read

    @property
    def state(self) -> str:
        """The state of its checksum: ``ok``, ``mismatch``, ``no checksum`` (in this format), or ``broken``."""
        if self.fault:
            return "broken"
        if self.record.crc is None:
            return "no checksum"
        return "ok" if self.record.crc == self.crc else "mismatch"


def check(
    file: OpenFile, records: Iterable[Record], *, hashed: bool, bools: Container[int], progress: Progress
) -> tuple[str, list[Checked]]:
    """Read a file once, from front to back. Then read the records that only a library can read.

    Parameters
    ----------
    records : iterable of Record
        They do not overlap.
    hashed : bool
        Hash each record too.
    bools : container of int
        Offsets of the records that bool storages lie in.

    Returns
    -------
    tuple
        SHA-256 of the whole file, and the records in the order of the file, those of a library last.
    """
    records = list(records)
    whole, checked = hashlib.sha256(), []
    at = 0

    def stored(offset: int, size: int) -> Iterator[bytes]:
        for piece in file.pieces(offset, size):
            whole.update(piece)
            progress.add(len(piece))
            yield piece

    def skip(pieces: Iterator[bytes]) -> None:
        for _ in pieces:
            pass

    for record in sorted((one for one in records if not one.foreign), key=lambda record: record.offset):
        skip(stored(at, record.offset - at))
        pieces = stored(record.offset, record.stored_size)
        of_bools = record.offset in bools and record.size > 0
        checked.append(_checked(record, record.inflated(pieces), hashed, of_bools))
        skip(pieces)  # the pieces behind a fault
        at = record.offset + record.stored_size
    skip(stored(at, file.size - at))
    checked += (_checked_by_library(record, hashed) for record in records if record.foreign)
    return whole.hexdigest(), checked


def _checked(record: Record, content: Iterator[bytes], hashed: bool, of_bools: bool) -> Checked:
    crc, odd_bools, fault, sha256 = 0, 0, "", hashlib.sha256()
    try:
        for piece in content:
            crc = _core.crc32(piece, crc)
            if hashed:
                sha256.update(piece)
            if of_bools:
                odd_bools += len(piece.translate(None, _BOOLS))
    except FormatError as error:
        fault = str(error)
    return Checked(record, crc, sha256.hexdigest() if hashed else "", odd_bools, fault)


def _checked_by_library(record: Record, hashed: bool) -> Checked:
    reader = record.foreign
    assert reader is not None
    # The fill values of what was never written may be any number, in a small file.
    with contextlib.suppress(FormatError):
        hashed = hashed and not reader.is_sparse()
    found = _checked(record, reader.pieces() if hashed else reader.written(), hashed, False)
    return found._replace(fault=found.fault and f"cannot be read: {escaped(found.fault, _MAX_FAULT_LENGTH)}")
