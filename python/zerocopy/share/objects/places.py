"""Finds bytes of storages that lie in files already, so that they need not be copied.

Storages whose memory overlaps are views of one *span* of memory, and stay so. Two spans may lie in the same bytes of a
file: each is mapped for itself (`mappings_of`), so that a write to one leaves the other as it is.
"""

from __future__ import annotations

import ctypes
import heapq
from collections.abc import Sequence
from typing import NamedTuple

import torch

from zerocopy.saving.mapped_files import FileExtent, MappedFiles

#: The most mappings of one source in a result: a process may have 65,530 in all (vm.max_map_count). Bytes that would
#: need further mappings are written to the entry.
_MAX_MAPPINGS = 512


class Span(NamedTuple):
    """Memory of this process that storages lie in. Storages of two spans share no byte."""

    address: int
    size: int

    def content(self) -> memoryview:
        """Return the bytes. The caller keeps the storages alive."""
        return memoryview((ctypes.c_ubyte * self.size).from_address(self.address)).cast("B")


class Seat(NamedTuple):
    """The place of bytes: the number of a span or mapping, and the offset from its beginning."""

    number: int
    offset: int


class Mapping(NamedTuple):
    """Bytes that clients map for themselves: a source, which is a number or a descriptor, and an extent of it."""

    source: int
    offset: int
    size: int


class Placed(NamedTuple):
    """The places of storages, and their spans.

    Attributes
    ----------
    spans : list of Span
        In the order of the first storage that lies in each.
    seats : list of Seat or None
        Of each storage; None of one without any byte.
    sizes : list of int
        Bytes of each storage.
    places : list of FileExtent or None
        Where files have the bytes of each span; None: nowhere.
    """

    spans: list[Span]
    seats: list[Seat | None]
    sizes: list[int]
    places: list[FileExtent | None]


def place(storages: Sequence[torch.UntypedStorage], mapped: MappedFiles) -> Placed:
    """Return where storages on the CPU are."""
    sizes = [storage.nbytes() for storage in storages]
    memory = [storage.data_ptr() for storage in storages]
    spans, seats = spans_of(list(zip(memory, sizes, strict=True)))
    return Placed(spans, seats, sizes, [mapped.place_of(*span) for span in spans])


def spans_of(memory: Sequence[tuple[int, int]]) -> tuple[list[Span], list[Seat | None]]:
    """Return the spans that pieces of memory, (address, size), form together, and where each piece lies."""
    hulls: list[list[int]] = []  # begin, end, number of the first piece
    hull_of: dict[int, int] = {}
    for number in sorted((n for n, (_, size) in enumerate(memory) if size), key=memory.__getitem__):
        address, size = memory[number]
        if hulls and address < hulls[-1][1]:
            hulls[-1][1:] = max(hulls[-1][1], address + size), min(hulls[-1][2], number)
        else:
            hulls.append([address, address + size, number])
        hull_of[number] = len(hulls) - 1
    # Addresses differ from process to process, and the order of the storages does not.
    order = sorted(range(len(hulls)), key=lambda hull: hulls[hull][2])
    number_of = {hull: number for number, hull in enumerate(order)}
    spans = [Span(begin, end - begin) for begin, end, _ in (hulls[hull] for hull in order)]
    seats = [
        Seat(number_of[hull_of[n]], address - hulls[hull_of[n]][0]) if size else None
        for n, (address, size) in enumerate(memory)
    ]
    return spans, seats


def mappings_of(extents: Sequence[Mapping]) -> tuple[list[Mapping], list[Seat | None]]:
    """Return as few mappings as give each extent memory of its own, and where in them each extent lies.

    Returns
    -------
    mappings : list of Mapping
        Each is the hull of the extents in it, which do not overlap.
    where : list of Seat or None
        Of each extent the number of its mapping, and the offset in the mapping; None where that would take
        more than `_MAX_MAPPINGS` of one source.
    """
    ends: dict[int, list[tuple[int, int]]] = {}  # of each source a heap: the end of a mapping, and its number
    mappings: list[Mapping] = []
    where: list[Seat | None] = [None] * len(extents)
    for number in sorted(range(len(extents)), key=extents.__getitem__):
        source, offset, size = extents[number]
        heap = ends.setdefault(source, [])
        if heap and heap[0][0] <= offset:
            _, found = heapq.heappop(heap)
            begin = mappings[found].offset
            mappings[found] = Mapping(source, begin, offset + size - begin)
        elif len(heap) == _MAX_MAPPINGS:
            continue
        else:
            found = len(mappings)
            mappings.append(Mapping(source, offset, size))
        heapq.heappush(heap, (offset + size, found))
        where[number] = Seat(found, offset - mappings[found].offset)
    return mappings, where
