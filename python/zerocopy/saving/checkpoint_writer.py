"""Writes the records of a checkpoint: its pickle, its storages, and what torch's readers look for beside them."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

import torch

from zerocopy import _torch
from zerocopy._core import crc32
from zerocopy.saving.mapped_files import FileExtent, MappedFiles
from zerocopy.saving.sink import Sink, Written, unnoticed
from zerocopy.saving.zip_writer import MAX_ALIGNMENT, SMALLEST_ALIGNMENT, ZipWriter

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_FILE_FORMAT = b"3\n"
# From this size on it is worth to ask where a storage lies, and to have a thread compute its checksum.
LARGE = 1 << 20
_PIECE = 1 << 20
_WRITTEN_PIECE = 4 << 20
# Up to this an extra field pads everything, and torch's arithmetic for the places of storages holds.
_MAX_REGULAR_ALIGNMENT = 1 << 15


class CheckpointWriter:
    """A context manager: its block writes records, and ends with :meth:`finish`.

    Parameters
    ----------
    sink : Sink
        Where to.
    alignment : int
        Of the bytes of storages in the archive.
    checksum : bool
        Whether storages get theirs; other records always do.
    regular : bool
        Whether storages are going to be written in the order in which the pickle speaks of them, and nothing between:
        then torch is told that it may work out where they are.
    written : callable
        Called with numbers of bytes of storages.
    """

    IDENTIFIER = ".data/serialization_id"

    def __init__(
        self, sink: Sink, alignment: int, checksum: bool, *, regular: bool, written: Written = unnoticed
    ) -> None:
        self._zip = ZipWriter(sink)
        self._alignment, self._checksum, self._written = alignment, checksum, written
        self._regular = regular and alignment <= _MAX_REGULAR_ALIGNMENT
        # A Writer compares checksums with what storages hold, so it takes them from there.
        self._inherits = regular
        # Does checksums while this thread writes; both leave Python alone meanwhile.
        self._thread: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def pickle(self, content: bytes) -> None:
        """Write the pickle, and how the storages are laid out."""
        self._zip.write("data.pkl", content)
        if self._regular:
            self._zip.write(".format_version", b"1")
        self._zip.write(".storage_alignment", str(self._alignment).encode())
        self._zip.write("byteorder", sys.byteorder.encode())

    def storage(self, key: str, storage: torch.UntypedStorage, mapped: MappedFiles | None) -> int | None:
        """Write a storage and return its checksum; None where only room is made for it, in a block of ``skip_data``.

        One on another device comes to the CPU for that time. `mapped` knows the file that it may lie in.
        """
        if _torch.skips_data():
            self.reserve(key, storage.nbytes())
            return None
        on_cpu = storage if storage.device.type == "cpu" else storage.cpu()
        size = on_cpu.nbytes()

        def put(sink: Sink) -> int:
            content = _torch.bytes_of(on_cpu)
            place = None
            if (
                mapped is not None and size >= LARGE and on_cpu is storage
            ):  # a copy is newer than what `mapped` knows
                place = mapped.place_of(on_cpu.data_ptr(), size)
            if mapped is None or place is None:
                return self._from_memory(sink, content)
            if sink.share(place.descriptor, place.offset, size, self._written):
                return self._inherited(mapped, place, size) if self._checksum else 0
            return self._beside(lambda: _checksum_of_file(place, size), lambda: copy(sink, content, place))

        def copy(sink: Sink, content: memoryview, place: FileExtent) -> None:
            done = sink.copy(place.descriptor, place.offset, size, self._written)
            sink.write(content[done:], self._written)

        self._zip.add(f"data/{key}", size, put, self._alignment)
        return self._zip.entries[-1].crc

    def reserve(self, key: str, size: int) -> int:
        """Make room for a storage: zeros, which take none on the disk. Return where the room begins."""
        begin = 0

        def put(sink: Sink) -> int:
            nonlocal begin
            begin = sink.position
            sink.skip(size)
            self._written(size)
            return 0

        self._zip.add(f"data/{key}", size, put, self._alignment)
        return begin

    def finish(self) -> None:
        """Write what comes behind the storages, and the directory."""
        self._zip.write("version", _FILE_FORMAT)
        self._add_identifier()
        self._finish_zip()

    def _from_memory(self, sink: Sink, content: memoryview) -> int:
        """Write bytes and return their checksum, computed while the processor's cache still has them.

        They are written first: a file that is mapped and was cut is an error then, and not a signal.
        """
        crc = 0
        for at in range(0, content.nbytes, _WRITTEN_PIECE):
            piece = content[at : at + _WRITTEN_PIECE]
            sink.write(piece)
            crc = crc32(piece, crc) if self._checksum else 0
            self._written(piece.nbytes)  # who is told may do anything, to the file too
        return crc

    def _beside(self, checksum: Callable[[], int], write: Callable[[], None]) -> int:
        if not self._checksum:
            write()
            return 0
        computing = self._begun(checksum)
        if computing is None:
            write()
            return checksum()
        try:
            write()
        finally:
            computing.exception()  # waits: what it reads has to stay until then
        return computing.result()

    def _begun(self, checksum: Callable[[], int]) -> Future[int] | None:
        """Have a thread compute. Return None where threads cannot begin any more, because the program is ending."""
        try:
            if self._thread is None:
                from concurrent.futures import ThreadPoolExecutor  # it cannot be imported then, either

                self._thread = ThreadPoolExecutor(1, "zerocopy-checksum")
            return self._thread.submit(checksum)
        except RuntimeError:
            return None

    def _inherited(self, mapped: MappedFiles, place: FileExtent, size: int) -> int:
        """Return the checksum of blocks that another file has too.

        The checksums stay those of the first writing. A new checksum of bytes that a disk has damaged since
        would hide the damage.
        """
        known = mapped.checksum_of(place, size) if self._inherits else None
        return _checksum_of_file(place, size) if known is None else known

    def _finish_zip(self) -> None:
        self._zip.finish()

    def _add_identifier(self) -> None:
        """Write 40 digits that tell one content from another, the same for the same: torch logs them."""
        records = "\n".join(f"{entry.name} {entry.size} {entry.crc}" for entry in self._zip.entries)
        digest = hashlib.sha256(records.encode()).digest()
        self._zip.write(self.IDENTIFIER, f"{int.from_bytes(digest, 'little') % 10**40:040}".encode())


def _checksum_of_file(place: FileExtent, size: int) -> int:
    """Return the checksum of bytes of a file, read in pieces that stay in the processor's cache."""
    crc, at, piece = 0, 0, bytearray(_PIECE)
    while at < size:
        got = os.preadv(place.descriptor, [memoryview(piece)[: size - at]], place.offset + at)
        if got == 0:
            break  # it was cut: whoever copies it says so
        crc = crc32(memoryview(piece)[:got], crc)
        at += got
    return crc


def checked_alignment(alignment: int) -> int:
    """Return the alignment. Raises ValueError if it is none."""
    is_power = isinstance(alignment, int) and alignment > 0 and alignment & (alignment - 1) == 0
    if not (is_power and SMALLEST_ALIGNMENT <= alignment <= MAX_ALIGNMENT):
        raise ValueError(f"expected alignment to be a power of two from 64 to 2 MiB, got {alignment!r}")
    return alignment
