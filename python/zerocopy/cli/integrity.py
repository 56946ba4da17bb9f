"""One pass over a file: its hash, and of each record the CRC, whether it inflates, and what it holds."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Container, Iterable, Iterator
from typing import Any, NamedTuple

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


class _Check:
    """Takes the bytes of one record as they are in the file."""

    def __init__(self, record: Record, hashed: bool, of_bools: bool) -> None:
        self._record, self._of_bools = record, of_bools
        self._hash = hashlib.sha256() if hashed else None
        self._stream = zlib.decompressobj(-15) if record.deflated else None
        self._crc, self._size, self._odd_bools, self._fault = 0, 0, 0, ""

    def take(self, stored: bytes) -> None:
        if self._stream is None:
            self._take_content(stored)
        elif not self._fault:
            self._inflate(self._stream, stored)

    def _inflate(self, stream: Any, stored: bytes) -> None:
        """Inflate in pieces no larger than what is read: a thousandfold of it may come out."""
        try:
            while stored and not stream.eof:
                self._take_content(stream.decompress(stored, 1 << 20))
                stored = stream.unconsumed_tail
        except zlib.error as error:
            self._fault = f"does not inflate: {error}"
        if stream.unused_data or (stored and stream.eof):
            self._fault = "bytes after the deflated stream"

    def _take_content(self, content: bytes) -> None:
        self._size += len(content)
        self._crc = _core.crc32(content, self._crc)
        if self._hash is not None:
            self._hash.update(content)
        if self._of_bools:
            self._odd_bools += len(content.translate(None, _BOOLS))

    def fail(self, fault: str) -> None:
        self._fault = fault

    def end(self) -> Checked:
        stream = self._stream
        if stream is not None and not self._fault:
            self._take_content(stream.flush())
            if not stream.eof:
                self._fault = "the deflated stream does not end"
            elif self._size != self._record.size:
                self._fault = f"inflates to {self._size} bytes, {self._record.size} promised"
        hashed = self._hash.hexdigest() if self._hash is not None else ""
        return Checked(self._record, self._crc, hashed, self._odd_bools, self._fault)


def check(
    file: OpenFile, records: Iterable[Record], *, hashed: bool, bools: Container[int], progress: Progress
) -> tuple[str, list[Checked]]:
    """Read a file once, from front to back; then what only a library can read of it.

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

    def read(offset: int, size: int) -> Iterator[bytes]:
        for piece in file.pieces(offset, size):
            whole.update(piece)
            progress.add(len(piece))
            yield piece

    def skip_to(offset: int) -> None:
        for _ in read(at, offset - at):
            pass

    for record in sorted((one for one in records if not one.foreign), key=lambda record: record.offset):
        skip_to(record.offset)
        one = _Check(record, hashed, record.offset in bools and record.size > 0)
        for piece in read(record.offset, record.stored_size):
            one.take(piece)
        checked.append(one.end())
        at = record.offset + record.stored_size
    skip_to(file.size)
    checked += (_check_foreign(record, hashed) for record in records if record.foreign)
    return whole.hexdigest(), checked


def _check_foreign(record: Record, hashed: bool) -> Checked:
    reader = record.foreign
    assert reader is not None
    one = _Check(record, hashed, False)
    try:
        # The fill values of what was never written may be any number, in a small file.
        is_sparse = hashed and reader.is_sparse()
        if is_sparse:
            one = _Check(record, False, False)
        for piece in reader.pieces() if hashed and not is_sparse else reader.written():
            one.take(piece)
    except FormatError as error:
        one.fail(f"cannot be read: {escaped(str(error), _MAX_FAULT_LENGTH)}")
    return one.end()
