"""A result as descriptors, and where in them its storages lie.

part 0    sealed memory: ├─ magic ─┼─ table ─┼─ pickle ─┼─ skeleton ─┼─ storage ─┼─ storage ─┤
part 1 …  files, and what was published before, as far as storages lie there

table     a row a storage: part, offset in the part, size (three numbers of 64 bits)
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from zerocopy import _torch
from zerocopy.mapped import MappedFiles, Place
from zerocopy.pickling import Remake
from zerocopy.share import blueprints, memory
from zerocopy.share.frames import MOST_DESCRIPTORS
from zerocopy.share.placing import Find, Placed, Same, place

_ALIGNMENT = 64
_ROW = struct.Struct("=QQQ")
MAGIC = b"zerocopy share 1".ljust(_ALIGNMENT, b"\0")
_MOST_PARTS = MOST_DESCRIPTORS - 1  # and the lease

#: Is told how many bytes will be needed, and may refuse.
Reserve = Callable[[int], None]


class Part(NamedTuple):
    """Bytes of a descriptor that a client maps."""

    descriptor: int
    offset: int
    size: int


class Published(NamedTuple):
    """What clients rebuild a result from. The first part's descriptor is the owner's to close."""

    parts: list[Part]
    layout: dict[str, Any]
    checksums: list[tuple[int, int, int]]  # size, checksum, offset in the first part

    def close(self) -> None:
        """Forget it."""
        os.close(self.parts[0].descriptor)


class Publisher:
    """Publishes a result.

    Parameters
    ----------
    mapped : MappedFiles
        What is mapped here.
    find : callable
        Says where bytes were published before.
    reserve : callable
        Is told how many bytes will be needed, and may refuse.
    """

    def __init__(self, mapped: MappedFiles, find: Find, reserve: Reserve) -> None:
        self._mapped, self._find, self._reserve = mapped, find, reserve

    def publish(
        self, obj: Any, arguments: Mapping[int, Any], works: Callable[[Published], bool]
    ) -> Published:
        """Return a result's parts.

        Parameters
        ----------
        obj : object
            The result.
        arguments : mapping
            What the caller has already, by number.
        works : callable
            Tries whether a plain result can be rebuilt by the machine.

        Raises
        ------
        UnsupportedError
            If it takes dill, which is not there.
        OSError
            If there is no memory.
        """
        if not arguments:
            storages = Storages()
            plain = blueprints.plain_of(obj, storages, storages.store)
            if plain is not None:
                published = self._write(plain, storages)
                if works(published):
                    return published
                published.close()
        storages = Storages()
        return self._write(blueprints.of(obj, storages, storages.store, arguments), storages)

    def _write(self, blueprint: blueprints.Blueprint, storages: Storages) -> Published:
        placed = place(storages.found, self._mapped, self._find)
        return write(blueprint, storages.found, placed, reserve=self._reserve)


def write(
    blueprint: blueprints.Blueprint,
    storages: list[torch.UntypedStorage],
    placed: Placed,
    most_parts: int = _MOST_PARTS,
    reserve: Reserve | None = None,
) -> Published:
    """Write what lies nowhere yet, and return all parts."""
    placed = _bounded(placed, most_parts)
    own = _Layout(blueprint, storages, placed)
    parts, rows = _parts_and_rows(storages, placed, own)
    if reserve is not None:
        reserve(own.size)
    descriptor = memory.create("zerocopy")
    try:
        memory.reserve(descriptor, own.size)
        memory.write(descriptor, memoryview(MAGIC), 0)
        memory.write(descriptor, memoryview(b"".join(_ROW.pack(*row) for row in rows)), own.table)
        memory.write(descriptor, memoryview(blueprint.pickle), own.pickle)
        memory.write(descriptor, memoryview(blueprint.skeleton or b""), own.skeleton)
        for number, offset in own.offsets.items():
            memory.write(descriptor, _torch.bytes_of(storages[number]), offset)
        memory.seal(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    checksums = [
        (*placed.checksums[number], offset)
        for number, offset in own.offsets.items()
        if number in placed.checksums
    ]
    return Published([Part(descriptor, 0, own.size), *parts], own.description(blueprint), checksums)


class Storages:
    """Gives storages their numbers."""

    def __init__(self) -> None:
        self.found: list[torch.UntypedStorage] = []
        self._numbers: dict[tuple[int, torch.dtype], int] = {}
        self._kept: list[torch.UntypedStorage] = []  # as long as their identities count

    def store(self, storage: _torch.PickledStorage, remake: Remake | None) -> str:
        """Return a storage's key. One that is of two dtypes has two, over the same bytes."""
        known = None if remake else (_torch.identity(storage.storage), storage.dtype)
        if known is None or known not in self._numbers:
            number = len(self.found)
            self._kept.append(storage.storage)
            self.found.append(
                storage.storage.cpu() if storage.location != "meta" else torch.UntypedStorage(0)
            )
            if known is None:
                return str(number)
            self._numbers[known] = number
        return str(self._numbers[known])


class _Layout:
    """What lies where in a result's own memory."""

    def __init__(
        self, blueprint: blueprints.Blueprint, storages: list[torch.UntypedStorage], placed: Placed
    ) -> None:
        self.size = len(MAGIC)
        self.count = len(storages)
        self.table = self._room(_ROW.size * len(storages))
        self.pickle = self._room(len(blueprint.pickle))
        self.skeleton = self._room(len(blueprint.skeleton or b""))
        self.offsets = {
            number: self._room(storages[number].nbytes())
            for number, there in enumerate(placed.places)
            if there is None
        }

    def _room(self, size: int) -> int:
        begin = -(-self.size // _ALIGNMENT) * _ALIGNMENT
        self.size = begin + size
        return begin

    def description(self, blueprint: blueprints.Blueprint) -> dict[str, Any]:
        return {
            "table": self.table,
            "storages": self.count,
            "pickle": [self.pickle, len(blueprint.pickle)],
            "skeleton": None if blueprint.skeleton is None else [self.skeleton, len(blueprint.skeleton)],
        }


def _bounded(placed: Placed, most_parts: int) -> Placed:
    """Return the same, but copy what lies in more files than descriptors go with a message."""
    kept = {there.descriptor: None for there in placed.places if isinstance(there, Place)}
    few = set(list(kept)[: most_parts - 1])
    places = [
        None if isinstance(there, Place) and there.descriptor not in few else there for there in placed.places
    ]
    return Placed(places, placed.checksums)


def _parts_and_rows(
    storages: list[torch.UntypedStorage], placed: Placed, own: _Layout
) -> tuple[list[Part], list[tuple[int, int, int]]]:
    """Return the parts behind the first, each as much of its descriptor as storages lie in, and the table."""
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for storage, there in zip(storages, placed.places, strict=True):
        if isinstance(there, Place):
            begins[there.descriptor] = min(begins.get(there.descriptor, there.offset), there.offset)
            ends[there.descriptor] = max(ends.get(there.descriptor, 0), there.offset + storage.nbytes())
    numbers = {descriptor: number for number, descriptor in enumerate(begins, 1)}
    rows = []
    for number, (storage, there) in enumerate(zip(storages, placed.places, strict=True)):
        if isinstance(there, Place):
            part = numbers[there.descriptor]
            rows.append((part, there.offset - begins[there.descriptor], storage.nbytes()))
        else:
            rows.append(
                (0, own.offsets[there.number if isinstance(there, Same) else number], storage.nbytes())
            )
    return [Part(fd, begin, ends[fd] - begin) for fd, begin in begins.items()], rows
