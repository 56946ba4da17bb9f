"""Fingerprint an object down to its last byte, to see later whether it was changed.

Two objects are the same if they pickle alike, and if their storages are the same bytes of the same files, none of them
written to here. The pickle is only compared, so it may be one that nobody can load.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Collection
from typing import Any, NamedTuple

import torch

from zerocopy import _core, _torch
from zerocopy.saving.mapped_files import FileExtent, MappedFiles
from zerocopy.share.cache.entries import name_of_entry
from zerocopy.share.conditions import file_identity
from zerocopy.share.objects.skeleton import OutOfBandBuffers, SkeletonPickler


class State(NamedTuple):
    """The fingerprint of an object."""

    skeleton: bytes
    tensors: list[tuple[Any, ...]]  # by the numbers of their storages
    places: list[tuple[Any, int]]  # of each storage: what it lies in, and where in that


def digest_of(obj: Any, mapped: MappedFiles) -> str | None:
    """Return a digest of an object's state that other processes would compute too; None if it cannot be pickled."""
    state = described(obj, mapped, thoroughly=True)
    if state is None:
        return None
    digest = hashlib.blake2b(repr((state.places, state.tensors)).encode(), digest_size=20)
    digest.update(state.skeleton)
    return digest.hexdigest()


def described(obj: Any, mapped: MappedFiles, thoroughly: bool = False) -> State | None:
    """Return an object's state, with a checksum of bytes that no file has; None if it cannot be pickled.

    Parameters
    ----------
    obj : object
        The object.
    mapped : MappedFiles
        The files that are mapped here.
    thoroughly : bool
        Whether dill may pickle it.
    """
    buffers = OutOfBandBuffers()
    try:
        skeleton = (buffers.skeleton_of if thoroughly else buffers.quick_skeleton_of)(obj)
    except Exception:  # then nothing is known about it
        return None
    tensors, storages = _tensors_and_storages(buffers)
    names: dict[int, Any] = {}
    places: list[tuple[Any, int]] = []
    for storage in storages:
        place = mapped.place_of(storage.data_ptr(), storage.nbytes())
        if place is not None:
            places.append((_what(place, names), place.offset))
        elif storage.device.type == "cpu":
            places.append(("bytes", _core.crc32(_torch.bytes_of(storage))))
    return State(skeleton, tensors, places)


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


def are_same(one: State | None, other: State | None) -> bool:
    """Return whether both are there, and the same."""
    return one is not None and one == other


def _what(place: FileExtent, known: dict[int, Any]) -> Any:
    """Return the identity of an extent's file; of an entry of the cache, whose times change, its name."""
    if place.descriptor not in known:
        name = name_of_entry(os.readlink(f"/proc/self/fd/{place.descriptor}"))  # noqa: PTH115
        known[place.descriptor] = name or file_identity.identity(os.fstat(place.descriptor))
    return known[place.descriptor]


def _tensors_and_storages(
    buffers: OutOfBandBuffers,
) -> tuple[list[tuple[Any, ...]], list[torch.UntypedStorage]]:
    """Return what tells the tensors of an object apart, and their storages, each once."""
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
