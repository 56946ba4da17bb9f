"""Lays out a result as the bytes of an entry, with its storages in the entry or in other files.

behind the head  ├─ mappings ─┼─ storages ─┼─ pickle ─┼─ skeleton ─┼─ span ─┼─ span ─┤
other files      as far as storages lie there

The two tables are those of csrc/checkpoint/published_archive.h: numbers of 64 bits.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from zerocopy import _torch
from zerocopy.errors import UnsupportedError
from zerocopy.saving.mapped_files import FileExtent, MappedFiles
from zerocopy.saving.pickler import Remake
from zerocopy.share.cache.entries import Part, aligned, name_of_entry
from zerocopy.share.conditions.file_identity import identity
from zerocopy.share.conditions.hashes import Hashes
from zerocopy.share.objects import fingerprint, places, serialized
from zerocopy.share.objects.places import Seat, Span, place

_MAPPING_ROW = struct.Struct("=QQQ")  # part, offset in the part, size
_STORAGE_ROW = struct.Struct("=QQQQ")  # mapping, offset in the mapping, size, first row of the same storage
_SHORTEST = 64  # bytes of an entry behind its head: storages without any byte lie in a mapping, too


class FilePart(NamedTuple):
    """The range of an open file that holds storages."""

    descriptor: int
    offset: int
    size: int

    def named(self) -> Part:
        """Return the part as an entry names it."""
        path = os.readlink(f"/proc/self/fd/{self.descriptor}")
        entry = name_of_entry(path)
        if entry is not None:
            return Part(entry, (), self.offset, self.size)
        return Part(path, identity(os.fstat(self.descriptor)), self.offset, self.size)


def plan_of(
    obj: Any, mapped: MappedFiles, arguments: Mapping[int, Any], noted: Hashes, is_plain: bool
) -> Plan | None:
    """Return how a result is written.

    Parameters
    ----------
    obj : object
        The result.
    mapped : MappedFiles
        The files that are mapped here. The plan refers to their descriptors.
    arguments : mapping
        Objects that the caller has already, by number.
    noted : Hashes
        Numbers that each process computes for itself.
    is_plain : bool
        Whether to use one pickle, which the machine builds. Then None is returned for a result that needs more.

    Raises
    ------
    UnsupportedError
        If the object cannot be pickled, or takes dill, which is not there.
    """
    storages = Storages()
    if is_plain:
        content = None if arguments or noted else serialized.plain_of(obj, storages, storages.store)
        if content is None:
            return None
    else:
        content = serialized.of(obj, storages, storages.store, arguments, noted=noted)
    return Plan(content, storages, mapped)


class Plan:
    """Decides where everything of a result lies.

    Attributes
    ----------
    size : int
        Bytes behind the entry's head.
    covered : int
        The part of them that does not belong to storages.
    parts : list of FilePart
        The range of each other file that holds storages.
    layout : dict
        Where the tables (offset, rows), the pickle and the skeleton (offset, size) are.
    pickles : tuple of bytes
        The pickle and the skeleton.
    contents : list of (int, bytes)
        What is written in front of the storages, and where behind the head.
    """

    def __init__(self, content: serialized.SerializedObject, storages: Storages, mapped: MappedFiles) -> None:
        self.size = 0
        self._content, self._storages, self._mapped_files = content, storages, mapped
        placed = self._placed = place(storages.found, mapped)  # in the memory of the storages
        self._places = list(placed.places)
        self._offsets: dict[int, int] = {}  # of the spans that are written
        self.parts = _parts_of(placed.spans, self._places)
        self._number_of = {part.descriptor: number for number, part in enumerate(self.parts, 1)}
        self.pickles = content.pickle, content.skeleton or b""
        # The tables come first, and the number of mappings is known when all spans have their place behind them.
        count = len(storages.found)
        rows = [_MAPPING_ROW.size * max(len(placed.spans), 1), _STORAGE_ROW.size * count]
        begins = [self._room(size) for size in (*rows, *map(len, self.pickles))]
        self.covered = self.size = max(self.size, _SHORTEST)
        mappings, seats = self._mapped()
        tables = (
            b"".join(_MAPPING_ROW.pack(*self._in_part(mapping)) for mapping in mappings),
            b"".join(_STORAGE_ROW.pack(*row) for row in self._rows(seats, storages.first)),
            *self.pickles,
        )
        self.contents = list(zip(begins, tables, strict=True))
        self.layout: dict[str, Any] = {
            "mappings": [begins[0], len(mappings)],
            "storages": [begins[1], count],
            "pickle": [begins[2], len(content.pickle)],
            "skeleton": None if content.skeleton is None else [begins[3], len(content.skeleton)],
        }

    def digest(self) -> str | None:
        """Return the digest by which the result is known as an argument; None if that takes another pickle."""
        skeleton, buffers = self._content.skeleton, self._content.buffers
        if skeleton is None or buffers is None or not buffers.is_bare:
            return None
        return fingerprint.digest_of_skeleton(skeleton, buffers, self._mapped_files)

    def storages(self) -> list[tuple[int, memoryview]]:
        """Return the storages that are written, and where."""
        return [(offset, self._placed.spans[number].content()) for number, offset in self._offsets.items()]

    def is_for_a_copy(self) -> bool:
        """Return whether storages are so large that a copy of this process should write them."""
        if not self._offsets:
            return False
        from zerocopy.saving import snapshot  # few results need it

        spans = [self._placed.spans[number] for number in self._offsets]
        if snapshot.why_not_to_copy(sum(span.size for span in spans)):
            return False
        return not any(self._mapped_files.is_shared(span.address, span.size) for span in spans)

    def _mapped(self) -> tuple[list[places.Mapping], list[Seat | None]]:
        """Return the mappings, and where in them each span is."""
        while True:
            mappings, seats = places.mappings_of([self._extent_of(n) for n in range(len(self._places))])
            left = [number for number, seat in enumerate(seats) if seat is None]
            if not left:
                # Storages without any byte lie in a mapping, too.
                return mappings or [places.Mapping(0, 0, _SHORTEST)], seats
            for number in left:
                self._places[number] = None  # written

    def _extent_of(self, number: int) -> places.Mapping:
        there, size = self._places[number], self._placed.spans[number].size
        if there is not None:
            return places.Mapping(self._number_of[there.descriptor], there.offset, size)
        if number not in self._offsets:
            self._offsets[number] = self._room(size)
        return places.Mapping(0, self._offsets[number], size)

    def _in_part(self, mapping: places.Mapping) -> places.Mapping:
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
        begin = aligned(self.size)
        self.size = begin + size
        return begin


def _parts_of(spans: list[Span], places: list[FileExtent | None]) -> list[FilePart]:
    """Return the range of each file that holds spans."""
    hulls: dict[int, tuple[int, int]] = {}
    for span, there in zip(spans, places, strict=True):
        if there is not None:
            begin, end = hulls.get(there.descriptor, (there.offset, 0))
            hulls[there.descriptor] = min(begin, there.offset), max(end, there.offset + span.size)
    return [FilePart(descriptor, begin, end - begin) for descriptor, (begin, end) in hulls.items()]


class Storages:
    """Gives storages their numbers.

    Attributes
    ----------
    found : list of torch.UntypedStorage
        The storages. A storage that tensors of two dtypes lie in is there twice.
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
            if storage.location not in ("cpu", "meta"):
                raise UnsupportedError(f"a tensor on {storage.location} is not kept in a file")
            self.found.append(storage.storage if storage.location == "cpu" else torch.UntypedStorage(0))
        if not remake:
            self._numbers[identity, storage.dtype] = number
        return str(number)
