"""Where the bytes of storages are already, so that they need not be copied.

    storage ─┬─ unchanged in the mapping of a file, or of what was published before ─→ there
             ├─ the same bytes as in another storage of the result ──────────────────→ there
             ├─ the same bytes as in what was published before ──────────────────────→ there
             └─ anything else ───────────────────────────────────────────────────────→ to be copied

That bytes are the same is told by comparing them; a checksum only says which are worth it.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import NamedTuple

import torch

from zerocopy import _core, _torch
from zerocopy.mapped import MappedFiles, Place

#: Storages of fewer bytes are copied.
_COMPARED_FROM = 1 << 14
#: Of so many, the largest, the server is asked.
_MOST_ASKED = 8192


class Checksum(NamedTuple):
    """What equal bytes have in common."""

    size: int
    crc: int


class Same(NamedTuple):
    """The storage of the result that has the same bytes."""

    number: int


#: Says for each checksum where such bytes were published, if they were.
Find = Callable[[list[Checksum]], list[Place | None]]


class Placed(NamedTuple):
    """Where each storage is; None: nowhere yet. And the checksums of those that have one."""

    places: list[Place | Same | None]
    checksums: dict[int, Checksum]


def place(storages: list[torch.UntypedStorage], mapped: MappedFiles, find: Find) -> Placed:
    """Return where storages on the CPU are."""
    places: list[Place | Same | None] = []
    checksums: dict[int, Checksum] = {}
    first: dict[Checksum, int] = {}
    seen: dict[tuple[int, int], int] = {}
    for number, storage in enumerate(storages):
        size = storage.nbytes()
        there: Place | Same | None = mapped.place_of(storage.data_ptr(), size)
        before = seen.setdefault((storage.data_ptr(), size), number)
        if there is None and before != number and size:  # one storage, of two dtypes
            there = Same(before)
        if there is None and size >= _COMPARED_FROM:
            checksum = checksums[number] = Checksum(size, _core.crc32(_torch.bytes_of(storage)))
            other = first.setdefault(checksum, number)
            if other != number and torch.equal(_elements(storage), _elements(storages[other])):
                there = Same(other)
        places.append(there)
    asked = sorted((n for n in checksums if places[n] is None), key=lambda n: -checksums[n].size)[
        :_MOST_ASKED
    ]
    for number, found in zip(asked, find([checksums[n] for n in asked]) if asked else (), strict=True):
        if found is not None and _has(found, storages[number]):
            places[number] = found
    # What another was the same as may have been found elsewhere itself.
    for number, there in enumerate(places):
        if isinstance(there, Same):
            places[number] = places[there.number] or there
    return Placed(places, checksums)


def _elements(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.frombuffer(_torch.bytes_of(storage), dtype=torch.uint8)


def _has(place: Place, storage: torch.UntypedStorage) -> bool:
    """Whether a descriptor has the bytes of a storage at that place."""
    lead = place.offset % mmap.ALLOCATIONGRANULARITY
    size = storage.nbytes()
    with mmap.mmap(
        place.descriptor,
        lead + size,
        mmap.MAP_PRIVATE,
        mmap.PROT_READ | mmap.PROT_WRITE,
        offset=place.offset - lead,
    ) as there:
        theirs = torch.frombuffer(there, dtype=torch.uint8, count=size, offset=lead)
        same = torch.equal(_elements(storage), theirs)
        del theirs  # which would keep the mapping open
    return same
