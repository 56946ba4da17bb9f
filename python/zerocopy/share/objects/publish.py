"""A result as descriptors, and where in them its storages lie.

part 0    sealed memory: ├─ magic ─┼─ mappings ─┼─ storages ─┼─ pickle ─┼─ skeleton ─┼─ span ─┼─ span ─┤
part 1 …  files, and memory that was published before, as far as storages lie there

The two tables are those of csrc/checkpoint/published_archive.h: numbers of 64 bits.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from zerocopy import _torch
from zerocopy.saving.mapped_files import FileExtent, MappedFiles
from zerocopy.saving.pickler import Remake
from zerocopy.share.objects import dedupe, serialized
from zerocopy.share.objects.dedupe import Find, Placed, Same, Seat, Span, place
from zerocopy.share.wire import sealed_memory
from zerocopy.share.wire.frames import MAX_DESCRIPTORS
from zerocopy.share.wire.hashes import Hashes

_ALIGNMENT = 64
_MAPPING_ROW = struct.Struct("=QQQ")  # part, offset in the part, size
_STORAGE_ROW = struct.Struct("=QQQQ")  # mapping, offset in the mapping, size, first row of the same storage
MAGIC = b"zerocopy share 2".ljust(_ALIGNMENT, b"\0")
_MAX_PARTS = MAX_DESCRIPTORS - 1  # and the lease

#: Is told how many bytes will be needed, and may refuse.
Reserve = Callable[[int], None]


class Part(NamedTuple):
    """Bytes of a descriptor that a client maps."""

    descriptor: int
    offset: int
    size: int


class Published(NamedTuple):
    """A result as clients rebuild it. The first part's descriptor is the owner's to close."""

    parts: list[Part]
    layout: dict[str, Any]
    checksums: list[tuple[int, int, int]]  # size, checksum, offset in the first part
    pickles: tuple[bytes, ...]

    def close(self) -> None:
        """Close the memory that was written for it."""
        os.close(self.parts[0].descriptor)


def publish(
    obj: Any,
    mapped: MappedFiles,
    find: Find,
    reserve: Reserve,
    works: Callable[[Published], bool],
    arguments: Mapping[int, Any],
    noted: Hashes,
) -> Published:
    """Return a result's parts.

    Parameters
    ----------
    obj : object
        The result.
    mapped : MappedFiles
        The files that are mapped here.
    find : callable
        Returns where bytes were published before.
    reserve : callable
        Is given the number of bytes that will be needed, and may refuse.
    works : callable
        Tries whether the machine can rebuild a plain result.
    arguments : mapping
        Objects that the caller has already, by number.
    noted : Hashes
        Numbers that each process computes for itself.

    Raises
    ------
    UnsupportedError
        If it takes dill, which is not there.
    OSError
        If memory runs out.
    """
    if not (arguments or noted):
        storages = Storages()
        plain = serialized.plain_of(obj, storages, storages.store)
        if plain is not None:
            published = write(plain, storages, place(storages.found, mapped, find), reserve=reserve)
            if works(published):
                return published
            published.close()
    storages = Storages()
    content = serialized.of(obj, storages, storages.store, arguments, noted=noted)
    return write(content, storages, place(storages.found, mapped, find), reserve=reserve)


def write(
    content: serialized.SerializedObject,
    storages: Storages,
    placed: Placed,
    max_parts: int = _MAX_PARTS,
    reserve: Reserve | None = None,
) -> Published:
    """Write the bytes that lie nowhere yet, and return all parts."""
    plan = _Plan(content, storages, placed, max_parts)
    if reserve is not None:
        reserve(plan.size)
    descriptor = sealed_memory.create("zerocopy")
    try:
        sealed_memory.reserve(descriptor, plan.size)
        for offset, piece in plan.contents():
            sealed_memory.write(descriptor, memoryview(piece), offset)
        sealed_memory.seal(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    parts = [Part(descriptor, 0, plan.size), *plan.parts]
    return Published(parts, plan.layout, plan.checksums(), (content.pickle, content.skeleton or b""))


class _Plan:
    """Decides where everything of a result lies.

    Attributes
    ----------
    size : int
        Bytes of the result's own memory, which is part 0.
    parts : list of Part
        The other parts: as much of each descriptor as storages lie in.
    layout : dict
        Where in part 0 the tables (offset, rows), the pickle and the skeleton (offset, size) are.
    """

    def __init__(
        self, content: serialized.SerializedObject, storages: Storages, placed: Placed, max_parts: int
    ) -> None:
        self.size = len(MAGIC)
        self._placed, self._places = placed, _within(placed.places, max_parts)
        self._offsets: dict[int, int] = {}  # in part 0, of the spans that are copied there
        self.parts = _parts_of(placed.spans, self._places)
        self._number_of = {part.descriptor: number for number, part in enumerate(self.parts, 1)}
        mappings, seats = self._mapped()
        tables = (
            b"".join(_MAPPING_ROW.pack(*self._in_part(mapping)) for mapping in mappings),
            b"".join(_STORAGE_ROW.pack(*row) for row in self._rows(seats, storages.first)),
            content.pickle,
            content.skeleton or b"",
        )
        begins = [self._room(len(table)) for table in tables]
        self._tables = list(zip(begins, tables, strict=True))
        self.layout: dict[str, Any] = {
            "mappings": [begins[0], len(mappings)],
            "storages": [begins[1], len(storages.found)],
            "pickle": [begins[2], len(content.pickle)],
            "skeleton": None if content.skeleton is None else [begins[3], len(content.skeleton)],
        }

    def contents(self) -> Iterator[tuple[int, bytes | memoryview]]:
        """Yield what part 0 holds, and where."""
        yield 0, MAGIC
        yield from self._tables
        for number, offset in self._offsets.items():
            yield offset, self._placed.spans[number].content()

    def checksums(self) -> list[tuple[int, int, int]]:
        """Return size, checksum and offset of what later results may refer to."""
        known = self._placed.checksums
        return [(*known[number], offset) for number, offset in self._offsets.items() if number in known]

    def _mapped(self) -> tuple[list[dedupe.Mapping], list[Seat | None]]:
        """Return the mappings, and where in them each span is."""
        while True:
            mappings, seats = dedupe.mappings_of([self._extent_of(n) for n in range(len(self._places))])
            left = [number for number, seat in enumerate(seats) if seat is None]
            if not left:
                # Storages without any byte lie in a mapping, too.
                return mappings or [dedupe.Mapping(0, 0, len(MAGIC))], seats
            for number in left:
                self._places[number] = None  # copied

    def _extent_of(self, number: int) -> dedupe.Mapping:
        there, size = self._places[number], self._placed.spans[number].size
        if isinstance(there, FileExtent):
            return dedupe.Mapping(self._number_of[there.descriptor], there.offset, size)
        return dedupe.Mapping(0, self._copied(number if there is None else there.number), size)

    def _copied(self, number: int) -> int:
        """Return where in part 0 a span is copied to."""
        if number not in self._offsets:
            self._offsets[number] = self._room(self._placed.spans[number].size)
        return self._offsets[number]

    def _in_part(self, mapping: dedupe.Mapping) -> dedupe.Mapping:
        begin = self.parts[mapping.source - 1].offset if mapping.source else 0
        return mapping._replace(offset=mapping.offset - begin)

    def _rows(self, seats: list[Seat | None], first: list[int]) -> Iterator[tuple[int, int, int, int]]:
        for seat, size, same in zip(self._placed.seats, self._placed.sizes, first, strict=True):
            there = None if seat is None else seats[seat.number]
            if seat is None or there is None:
                yield 0, 0, 0, same
            else:
                yield there.number, there.offset + seat.offset, size, same

    def _room(self, size: int) -> int:
        begin = -(-self.size // _ALIGNMENT) * _ALIGNMENT
        self.size = begin + size
        return begin


def _within(places: list[FileExtent | Same | None], max_parts: int) -> list[FileExtent | Same | None]:
    """Return the same places, but None for those in more files than descriptors go with a message."""
    known = {there.descriptor: None for there in places if isinstance(there, FileExtent)}
    few = set(list(known)[: max_parts - 1])
    return [
        None if isinstance(there, FileExtent) and there.descriptor not in few else there for there in places
    ]


def _parts_of(spans: list[Span], places: list[FileExtent | Same | None]) -> list[Part]:
    """Return as much of each descriptor as spans lie in."""
    hulls: dict[int, tuple[int, int]] = {}
    for span, there in zip(spans, places, strict=True):
        if isinstance(there, FileExtent):
            begin, end = hulls.get(there.descriptor, (there.offset, 0))
            hulls[there.descriptor] = min(begin, there.offset), max(end, there.offset + span.size)
    return [Part(descriptor, begin, end - begin) for descriptor, (begin, end) in hulls.items()]


class Storages:
    """Gives storages their numbers.

    Attributes
    ----------
    found : list of torch.UntypedStorage
        The storages, on the CPU. A storage that tensors of two dtypes lie in is there twice.
    first : list of int
        Of each its number, or that of the same storage with another dtype.
    """

    def __init__(self) -> None:
        self.found: list[torch.UntypedStorage] = []
        self.first: list[int] = []
        self._numbers: dict[tuple[int, torch.dtype], int] = {}
        self._first: dict[int, int] = {}
        self._kept: list[torch.UntypedStorage] = []  # as long as their identities count

    def store(self, storage: _torch.PickledStorage, remake: Remake | None) -> str:
        """Return a storage's key."""
        identity = _torch.identity(storage.storage)
        known = None if remake else self._numbers.get((identity, storage.dtype))
        if known is not None:
            return str(known)
        number = len(self.found)
        same = number if remake else self._first.setdefault(identity, number)
        self._kept.append(storage.storage)
        self.first.append(same)
        if same != number:
            self.found.append(self.found[same])
        else:
            self.found.append(
                storage.storage.cpu() if storage.location != "meta" else torch.UntypedStorage(0)
            )
        if not remake:
            self._numbers[identity, storage.dtype] = number
        return str(number)
