"""Find the file and offset that an address of this process maps, so that a save can copy from that file."""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import functools
import mmap
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

from zerocopy import _core
from zerocopy.errors import Error

_NOTHING: Mapping[str, int] = {}


class FileExtent(NamedTuple):
    """Bytes of an open file."""

    descriptor: int
    offset: int
    is_settled: bool = False  # it is known that no mapping of this process writes to them


class MappedFiles:
    """The files that are mapped into this process, opened as they are needed and closed at the end of its block.

    The kernel's list of mappings is read once, at the first lookup. Addresses are reused, so that list may name another
    file for memory that was mapped later.

    Parameters
    ----------
    known : mapping, optional
        Descriptors, or numbers that stand for them, of files without a path. Keys are results of :func:`identity_of`.
    takes_newer : bool, optional
        Ask the kernel at each :meth:`place_of`, for memory that the caller has not held since before the first one.
    """

    def __init__(self, known: Mapping[str, int] = _NOTHING, *, takes_newer: bool = False) -> None:
        self._held: list[_core.Descriptor] = []
        self._takes_newer = takes_newer
        self._opened: dict[str, int | None] = {**known}
        self._checksums: dict[int, dict[tuple[int, int], int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.clear()

    @functools.cached_property
    def _mappings(self) -> list[_core.FileMapping]:
        return _core.file_mappings()

    @functools.cached_property
    def _begins(self) -> list[int]:
        return [mapping.begin for mapping in self._mappings]

    @functools.cached_property
    def _written(self) -> set[str]:
        """The identities of files that a mapping of this process can write to."""
        return {mapping.identity for mapping in self._mappings if mapping.shared and mapping.writable}

    @functools.cached_property
    def _shared(self) -> list[_core.FileMapping]:
        """The mappings of memory that a copy of this process shares with it."""
        return [mapping for mapping in self._mappings if mapping.shared or mapping.identity in self._written]

    def identities(self) -> set[str]:
        """Return the kernel's identities of all mapped files."""
        return {mapping.identity for mapping in self._mappings}

    def is_shared(self, address: int, size: int) -> bool:
        """Return whether a copy of this process would see writes of this one to some of these bytes.

        They lie in a shared mapping, or in a private one of a file that is mapped for writing too.
        """
        index = bisect.bisect_left(self._shared, address + size, key=lambda mapping: mapping.begin) - 1
        return size > 0 and index >= 0 and self._shared[index].end > address

    def place_of(self, address: int, size: int, *, is_newer: bool = False) -> FileExtent | None:
        """Return where the file has these bytes; None unless it is certain that it has the same.

        `is_newer`: the memory was mapped after the first lookup.
        """
        asks = self._takes_newer or is_newer
        mapping = _core.file_mapping_at(address) if asks else self._listed_before(address)
        if mapping is None or size == 0 or address + size > mapping.end:
            return None
        if not (mapping.shared or self._is_unwritten(address, size)):
            return None
        descriptor = self._descriptor_of(mapping)
        if descriptor is None:
            return None
        is_settled = not self._takes_newer and mapping.identity not in self._written
        return FileExtent(descriptor, mapping.offset + address - mapping.begin, is_settled)

    def checksum_of(self, place: FileExtent, size: int) -> int | None:
        """Return the CRC-32 that the file, if it is a checkpoint of torch, records for these bytes; None without one.

        A record that was written without a checksum, or whose room was only reserved, has zero in its place.
        """
        if not place.is_settled:
            return None
        found = self._checksums.get(place.descriptor)
        if found is None:
            found = self._checksums[place.descriptor] = _checksums_in(place.descriptor)
        return found.get((place.offset, size))

    def _listed_before(self, address: int) -> _core.FileMapping | None:
        """Return the last mapping in the list that begins at this address or before it."""
        index = bisect.bisect_right(self._begins, address) - 1
        return self._mappings[index] if index >= 0 else None

    def _descriptor_of(self, mapping: _core.FileMapping) -> int | None:
        if mapping.identity not in self._opened:
            self._opened[mapping.identity] = self._open(mapping)
        return self._opened[mapping.identity]

    def _open(self, mapping: _core.FileMapping) -> int | None:
        try:
            if not stat.S_ISREG(Path(os.fsdecode(mapping.path)).stat().st_mode):
                return None
            descriptor = self._hold(mapping.path)
        except OSError:  # it has no name any more, or may not be opened
            return None
        return descriptor if _has_identity(descriptor, mapping.identity) else None

    def _is_unwritten(self, address: int, size: int) -> bool:
        """Return whether no page was written to. The first write to a page makes a private copy of it."""
        try:
            return _core.is_unwritten(self._pagemap(), address, size)
        except OSError:
            return False

    def _pagemap(self) -> int:
        found = self._opened.get("pagemap")
        if found is None:
            found = self._opened["pagemap"] = self._hold(b"/proc/self/pagemap")
        return found

    def _hold(self, path: bytes) -> int:
        self._held.append(_core.Descriptor.open(path))
        return self._held[-1].fileno()


def _checksums_in(descriptor: int) -> dict[tuple[int, int], int]:
    """Return the checksums in an archive, by the offset and the size of their records."""
    try:
        records = _core.zip_records(descriptor, "")
    except Error:  # the file is not an archive
        return {}
    return {
        (record.offset, record.size): record.crc
        for record in records
        if record.crc and not (record.is_deflated or record.fault)
    }


def _has_identity(descriptor: int, identity: str) -> bool:
    """Return whether /proc/self/maps shows an open file under this identity."""
    status = os.fstat(descriptor)
    named = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x} {status.st_ino}"
    return named == identity or identity_of(descriptor) == identity


def identity_of(descriptor: int) -> str | None:
    """Return the identity of a file in /proc/self/maps. On btrfs and overlay file systems fstat has another one.

    So a page of the file is mapped, and looked up.
    """
    try:
        page = mmap.mmap(descriptor, 1, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, ValueError):  # empty, or a file system that maps nothing
        return None
    try:
        byte = ctypes.c_char.from_buffer(page)
        address = ctypes.addressof(byte)
        del byte  # which would keep the page from being unmapped
        mapping = _core.file_mapping_at(address)
        return None if mapping is None else mapping.identity
    finally:
        with contextlib.suppress(BufferError):  # after Ctrl-C a traceback may have it
            page.close()
