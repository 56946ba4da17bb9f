"""Finds the parts of a file: its container, the records of a zip archive, the datasets of an HDF5 file."""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

from zerocopy import _core
from zerocopy.catalogue.files import OpenFile, Trouble
from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.loading import diagnosis
from zerocopy.loading.formats import hdf5

if TYPE_CHECKING:
    from zerocopy._C import Listing
    from zerocopy.loading.formats.hdf5_dataset import DatasetReader

#: As the safe loader: no pickle is longer.
MAX_PICKLE = 1 << 30
_OVERLAP = 16
_PIECE = 1 << 20  # bytes that are inflated at once


class Record(NamedTuple):
    """A named piece of a file. A record with a `fault` has no place in the file."""

    name: str
    offset: int
    stored_size: int
    deflated: bool
    size: int
    crc: int | None
    fault: str = ""
    foreign: DatasetReader | None = None  # the reader of its content, if it does not lie in the file as it is
    archive: str = ""  # the name of its archive, in a file of several

    @property
    def title(self) -> str:
        """Its name in reports."""
        return f"{self.archive}: {self.name}" if self.archive else self.name

    @property
    def place(self) -> int | None:
        """The offset of its content in the file; None for a content that is compressed or in pieces."""
        return None if self.deflated or self.foreign is not None else self.offset

    def content(self, file: OpenFile) -> Iterator[bytes]:
        """Yield the record's content, inflated, piece by piece, and never more than the archive says.

        Raises
        ------
        zerocopy.FormatError
            If it is not as long as the archive says, or cannot be inflated.
        """
        left = self.size
        try:
            for piece in self.inflated(file.pieces(self.offset, self.stored_size)):
                left -= len(piece)
                if left < 0:
                    raise FormatError(f"does not inflate to {self.size} bytes")
                yield piece
        except FormatError as error:
            raise FormatError(f"record {self.name!r}: {error}") from None

    def inflated(self, stored: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the record's content, piece by piece, from its bytes in the file.

        Raises
        ------
        zerocopy.FormatError
            If it is not as long as the archive says, or cannot be inflated.
        """
        if not self.deflated:
            yield from stored
            return
        stream, size = zlib.decompressobj(-15), 0
        try:
            for piece in stored:
                while piece and not stream.eof:
                    inflated = stream.decompress(piece, _PIECE)
                    size += len(inflated)
                    yield inflated
                    piece = stream.unconsumed_tail
                if stream.unused_data or piece:
                    raise FormatError("bytes after the deflated stream")
            rest = stream.flush()
        except zlib.error as error:
            raise FormatError(f"does not inflate: {error}") from None
        yield rest
        if not stream.eof:
            raise FormatError("the deflated stream does not end")
        if size + len(rest) != self.size:
            raise FormatError(f"inflates to {size + len(rest)} bytes, {self.size} promised")

    def read(self, file: OpenFile, most: int) -> bytes:
        """Return the first bytes of the record's content: of a broken deflated one those before the break."""
        if self.foreign is not None:
            return _first(self.foreign.pieces(), most)
        if not self.deflated:
            return file.read(self.offset, min(most, self.stored_size))
        stream, content = zlib.decompressobj(-15), bytearray()
        with contextlib.suppress(zlib.error):
            for piece in file.pieces(self.offset, self.stored_size):
                content += stream.decompress(piece, most - len(content))
                if len(content) == most or stream.eof:
                    break
        return bytes(content)


def container_of(file: OpenFile) -> str:
    """Return a file's container: ``zip``, ``legacy``, ``safetensors``, ``hdf5``, ``tar`` or ``pickle``.

    Raises
    ------
    Trouble
        If it is something else. The message names it.
    """
    known = _core.container(file.descriptor, file.path)
    if known == "zip" and (what := _core.other_zip(file.descriptor, file.path)):
        raise Trouble(what)
    if known:
        return known
    sample = diagnosis.FileSample(
        file.read(0, diagnosis.HEAD), file.read(max(0, file.size - diagnosis.TAIL), diagnosis.TAIL), file.size
    )
    if hdf5.recognises(sample.head, file.path):
        return "hdf5"
    if diagnosis.is_tar(sample.head):
        if not _occurs(file, diagnosis.is_torchs_tar):
            raise Trouble(diagnosis.OTHER_TAR)
        return "tar"
    head = _core.scan(sample.head, 1)
    # Text protocols have no signature. Bytes count as a pickle if they end like one, or name a global before an error.
    if sample.head[:1] == b"\x80" or head["stopped"] or head["globals"]:
        return "pickle"
    raise Trouble(str(diagnosis.diagnose(sample, FormatError("not a checkpoint"))))


def require_listed(container: str) -> None:
    """Raise ``Trouble`` for a kind of file that is recognised, and is not a checkpoint that anything lists."""
    if container == "tar":
        raise Trouble(diagnosis.TORCHS_TAR)
    if container == "pickle":
        raise Trouble("is a bare pickle, not a checkpoint that torch.save wrote")


def _occurs(file: OpenFile, is_there: Callable[[bytes], bool]) -> bool:
    """Return whether something short is anywhere in a file."""
    before = b""
    for piece in file.pieces(0, file.size):
        if is_there(before + piece):
            return True
        before = piece[-_OVERLAP:]
    return False


def records_of(file: OpenFile, storages: bool = True) -> list[Record]:
    """Return the records of a zip archive, with those of storages or without.

    Raises
    ------
    zerocopy.FormatError, zerocopy.UnsupportedError
        If there is more than one way to read its directory, or none.
    """
    return [
        Record(
            record.name,
            record.offset,
            record.stored_size,
            record.is_deflated,
            record.size,
            record.crc,
            record.fault,
        )
        for record in _core.zip_records(file.descriptor, file.path, file.part, storages)
    ]


def listing_of(file: OpenFile) -> Listing:
    """Return the listing of an HDF5 file, by the core or by h5py.

    Raises
    ------
    Trouble
        If it takes h5py, which is not installed.
    zerocopy.FormatError, zerocopy.UnsupportedError
        If h5py cannot read it, or it is of a kind that zerocopy does not take.
    """
    listing = _core.hdf5_listing(file.descriptor, file.path)
    if listing is not None:
        return listing
    try:
        hdf5.import_h5py()
    except UnsupportedError as error:
        raise Trouble(str(error)) from None
    return hdf5.listing_of_open(file.descriptor, 0, file.path)


class Dataset(NamedTuple):
    """A dataset of numbers in an HDF5 file."""

    record: Record
    of_bytes: bool  # in a row
    refusal: str  # why it cannot be read


def datasets_of(listing: Listing) -> Iterator[Dataset]:
    """Yield the datasets of an HDF5 file, each once, whatever names it has."""
    for path, dtype, shape, offset, foreign, _, refusal, same_as in listing or ():
        if not dtype or same_as is not None:
            continue
        size = hdf5.SIZES[dtype] * math.prod(shape)
        stored = 0 if offset is None else size
        reader = cast("DatasetReader | None", foreign)
        record = Record(
            path.decode("utf-8", "backslashreplace"), offset or 0, stored, False, size, None, "", reader
        )
        yield Dataset(record, hdf5.SIZES[dtype] == 1 and len(shape) == 1, refusal)


def _first(pieces: Iterator[bytes], most: int) -> bytes:
    first = bytearray()
    while len(first) < most and (piece := next(pieces, b"")):
        first += piece
    return bytes(first[:most])
