"""Where things are in a file: its container, and the records of a zip archive."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from zerocopy import _core, diagnosis
from zerocopy.cli.reading import OpenFile, Trouble
from zerocopy.errors import FormatError

#: As the safe loader: no pickle is longer.
MAX_PICKLE = 1 << 30


class Record(NamedTuple):
    """A named piece of a file. One whose `fault` is not empty is nowhere."""

    name: str
    offset: int
    stored_size: int
    deflated: bool
    size: int
    crc: int | None
    fault: str = ""

    def pieces(self, file: OpenFile) -> Iterator[bytes]:
        """Yield the record's bytes as they are in the file."""
        return file.pieces(self.offset, self.stored_size)

    def read(self, file: OpenFile, most: int) -> bytes:
        """Return the first bytes of the record's content: of a broken deflated one those before the break."""
        if not self.deflated:
            return file.read(self.offset, min(most, self.stored_size))
        stream, content = zlib.decompressobj(-15), bytearray()
        with contextlib.suppress(zlib.error):
            for piece in self.pieces(file):
                content += stream.decompress(piece, most - len(content))
                if len(content) == most or stream.eof:
                    break
        return bytes(content)


def container_of(file: OpenFile) -> str:
    """Return what a file is: ``zip``, ``legacy``, ``safetensors``, ``tar`` or ``pickle``.

    Raises
    ------
    Trouble
        If it is something else, which is then named.
    """
    known = _core.container(file.descriptor, file.path)
    if known:
        return known
    glimpse = diagnosis.Glimpse(
        file.read(0, diagnosis.HEAD), file.read(max(0, file.size - diagnosis.TAIL), diagnosis.TAIL), file.size
    )
    if diagnosis.is_tar(glimpse.head):
        return "tar"
    head = _core.scan(glimpse.head, 1)
    # Text protocols have no signature: a pickle is what ends as one, or has named something before it breaks off.
    if glimpse.head[:1] == b"\x80" or head["stopped"] or head["globals"]:
        return "pickle"
    raise Trouble(str(diagnosis.diagnose(glimpse, FormatError("not a checkpoint"))))


def records_of(file: OpenFile) -> list[Record]:
    """Return the records of a zip archive.

    Raises
    ------
    zerocopy.FormatError, zerocopy.UnsupportedError
        If there is more than one way to read its directory, or none.
    """
    return [Record(*entry) for entry in _core.zip_records(file.descriptor, file.path)]
