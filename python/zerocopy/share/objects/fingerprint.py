"""Fingerprint an object down to its last byte, to see later whether it was changed.

Two objects are the same if they pickle alike, and if their storages are the same bytes of the same files, or equal
bytes that no file has.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Collection
from typing import Any

import torch

from zerocopy import _core, _torch
from zerocopy.saving.mapped_files import FileExtent, MappedFiles
from zerocopy.share.cache.entries import name_of_entry
from zerocopy.share.conditions import file_identity
from zerocopy.share.objects.skeleton import OutOfBandBuffers, SkeletonPickler


def digest_of(obj: Any, thoroughly: bool = True) -> str | None:
    """Return a digest of an object's state that other processes would compute too; None if it cannot be pickled.

    Bytes that no file has count by a checksum. `thoroughly`: dill may pickle the object.
    """
    buffers = OutOfBandBuffers()
    try:
        skeleton = (buffers.skeleton_of if thoroughly else buffers.quick_skeleton_of)(obj)
    except Exception:  # then nothing is known about it
        return None
    with MappedFiles() as mapped:
        return digest_of_skeleton(skeleton, buffers, mapped)


def digest_of_skeleton(skeleton: bytes, buffers: OutOfBandBuffers, mapped: MappedFiles) -> str:
    """Return the digest of the object that a skeleton and its buffers are of."""
    tensors, storages = _tensors_and_storages(buffers)
    places = _places_of(storages, mapped)
    digest = hashlib.blake2b(repr((tensors, places)).encode(), digest_size=20)
    digest.update(skeleton)
    return digest.hexdigest()


def _places_of(storages: list[torch.UntypedStorage], mapped: MappedFiles) -> list[tuple[Any, int]]:
    """Return for each storage the file or memory that holds its bytes, and the place in it."""
    names: dict[int, Any] = {}
    places: list[tuple[Any, int]] = []
    for storage in storages:
        place = mapped.place_of(storage.data_ptr(), storage.nbytes())
        if place is not None:
            places.append((_what(place, names), place.offset))
        elif storage.device.type == "cpu":
            places.append(("bytes", _core.crc32(_torch.bytes_of(storage))))
    return places


def has_any(obj: Any, wanted: Collection[object], storages: Collection[torch.UntypedStorage] = ()) -> bool:
    """Return whether one of the objects that are wanted, or one of the storages, is part of an object."""
    buffers = OutOfBandBuffers()
    finder = _Finder(io.BytesIO(), buffers)
    finder.wanted = {id(each) for each in wanted}
    try:
        finder.dump(obj)
    except _FoundError:
        return True
    except Exception:  # what pickle refuses, it does not search
        return False
    found = _tensors_and_storages(buffers)[1]
    return not set(map(_torch.identity, found)).isdisjoint(map(_torch.identity, storages))


def _what(place: FileExtent, known: dict[int, Any]) -> Any:
    """Return the identity of an extent's file; of an entry of the cache, whose times change, its name."""
    if place.descriptor not in known:
        name = name_of_entry(os.readlink(f"/proc/self/fd/{place.descriptor}"))
        known[place.descriptor] = name or file_identity.identity(os.fstat(place.descriptor))
    return known[place.descriptor]


def _tensors_and_storages(
    buffers: OutOfBandBuffers,
) -> tuple[list[tuple[Any, ...]], list[torch.UntypedStorage]]:
    """Return keys of the tensors of an object, and their storages, each once."""
    tensors: list[tuple[Any, ...]] = []
    storages: list[torch.UntypedStorage] = []
    numbers: dict[int, int] = {}
    for found in buffers.found:
        is_tensor = isinstance(found, torch.Tensor)
        storage = _torch.untyped_of(found) if is_tensor else _torch.untyped(found)
        number = numbers.setdefault(_torch.identity(storage), len(storages))
        if number == len(storages):
            storages.append(storage)
        facts: tuple[Any, ...] = ()
        if is_tensor:
            place = found.storage_offset(), tuple(found.shape), found.stride()
            facts = *place, found.requires_grad, type(found) is torch.nn.Parameter
        tensors.append((number, str(found.dtype), *facts))
    return [*tensors, *buffers.notes], storages


class _FoundError(Exception):
    """An object that was looked for."""


class _Finder(SkeletonPickler):
    wanted: set[int]

    def persistent_id(self, obj: Any) -> Any:
        if id(obj) in self.wanted:
            raise _FoundError
