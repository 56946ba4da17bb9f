"""Fingerprint an object down to its last byte, to see later whether it was changed.

Two objects are the same if they pickle alike, and if their storages are the same bytes of the same files, none of them
written to here. The pickle is only compared, so it may be one that nobody can load.
"""

from __future__ import annotations

import collections
import hashlib
import io
import os
import pickle
from collections.abc import Collection
from typing import Any, NamedTuple

import torch

from zerocopy import _core, _torch
from zerocopy._torch import tensor_extras
from zerocopy.saving.mapped_files import FileExtent, MappedFiles
from zerocopy.share.cache.entries import name_of_entry
from zerocopy.share.conditions import file_identity
from zerocopy.share.objects import by_value, custom_reducers, publish, serialized, skeleton


class State(NamedTuple):
    """The fingerprint of an object."""

    content: serialized.SerializedObject
    places: list[tuple[Any, int]]  # of each storage: what it lies in, and where in that


def of(obj: Any, mapped: MappedFiles) -> State | None:
    """Return an object's state; None if one of its storages was written to, or is nobody else's."""
    try:
        content, storages = _quickly(obj)
    except Exception:  # what takes more to be pickled
        try:
            content, storages = _thoroughly(obj)
        except Exception:  # it was changed to what cannot be
            return None
    places = [
        mapped.place_of(storage.data_ptr(), storage.nbytes()) for storage in storages if storage.nbytes()
    ]
    known = [(_what(place), place.offset) for place in places if place is not None]
    return State(content, known) if len(known) == len(places) else None


def digest_of(obj: Any, mapped: MappedFiles, by_bytes: bool = False) -> str | None:
    """Return a digest of an object's state that other processes would compute too; None where :func:`of` is.

    Parameters
    ----------
    obj : object
        The object.
    mapped : MappedFiles
        The files that are mapped here.
    by_bytes : bool
        Whether storages count by their bytes if they lie in private memory, or in the cache.
    """
    state = described(obj, mapped) if by_bytes else of(obj, mapped)
    if state is None:
        return None
    digest = hashlib.blake2b(repr((state.places, len(state.content.pickle))).encode(), digest_size=20)
    digest.update(state.content.pickle)
    digest.update(state.content.skeleton or b"")
    return digest.hexdigest()


def described(obj: Any, mapped: MappedFiles) -> State | None:
    """Return an object's state with the bytes that lie nowhere else by a checksum; None for what pickle refuses."""
    try:
        content, storages = _quickly(obj)
    except Exception:  # then nothing is known about it
        return None
    places: list[tuple[Any, int]] = []
    for storage in storages:
        place = mapped.place_of(storage.data_ptr(), storage.nbytes())
        if place is not None and not isinstance(_what(place), str):
            places.append((_what(place), place.offset))
        elif storage.device.type == "cpu":
            places.append(("bytes", _core.crc32(_torch.bytes_of(storage))))
    return State(content, places)


def has_any(obj: Any, wanted: Collection[object], storages: Collection[torch.UntypedStorage] = ()) -> bool:
    """Return whether one of the objects that are wanted, or one of the storages, is part of an object."""
    finder = _Finder(wanted)
    try:
        finder.dump(obj)
    except _FoundError:
        return True
    except Exception:  # what pickle refuses, it does not search
        return False
    return not set(map(_torch.identity, finder.found)).isdisjoint(map(_torch.identity, storages))


def are_same(one: State | None, other: State | None) -> bool:
    """Return whether both are there, and the same."""
    return one is not None and one == other


def _what(place: FileExtent) -> Any:
    """Return the identity of an extent's file; of an entry of the cache, whose times change, its name."""
    name = name_of_entry(os.readlink(f"/proc/self/fd/{place.descriptor}"))  # noqa: PTH115
    return file_identity.identity(os.fstat(place.descriptor)) if name is None else name


def _thoroughly(obj: Any) -> tuple[serialized.SerializedObject, list[torch.UntypedStorage]]:
    storages = publish.Storages()
    return serialized.of(obj, storages, storages.store), storages.found


def _quickly(obj: Any) -> tuple[serialized.SerializedObject, list[torch.UntypedStorage]]:
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(obj)
    return serialized.SerializedObject(b"", buffer.getvalue()), pickler.found


class _Pickler(pickle.Pickler):
    """Asks about other objects than plain data only: a serialized object is asked for each number and name."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, protocol=5)
        self.found: list[torch.UntypedStorage] = []
        self._numbers: dict[int, int] = {}

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is collections.OrderedDict:  # most of what modules consist of; its own way asks for its slots
            return kind, (), obj.__dict__ or None, None, iter(obj.items())
        if kind in tensor_extras.TENSORS and skeleton.is_simple(obj):
            return _tensor, self._of_tensor(obj)
        if kind is torch.storage.TypedStorage:
            return _storage, (self._number_of(_torch.untyped(obj)), obj.dtype)
        if kind is torch.UntypedStorage:
            return _storage, (self._number_of(obj), None)
        found = custom_reducers.reduced(obj)
        return by_value.reduced(obj) if found is NotImplemented else found

    def _of_tensor(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        shape = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
        flags = tensor.requires_grad, type(tensor) is torch.nn.Parameter
        return (self._number_of(_torch.untyped_of(tensor)), tensor.dtype, *shape, *flags)

    def _number_of(self, storage: torch.UntypedStorage) -> int:
        number = self._numbers.setdefault(_torch.identity(storage), len(self.found))
        if number == len(self.found):
            self.found.append(storage)
        return number


class _FoundError(Exception):
    """An object that was looked for."""


class _Finder(_Pickler):
    def __init__(self, wanted: Collection[object]) -> None:
        super().__init__(io.BytesIO())
        self._wanted = {id(obj) for obj in wanted}

    def persistent_id(self, obj: Any) -> Any:
        if id(obj) in self._wanted:
            raise _FoundError


def _tensor(*_: Any) -> None:
    """Stand for a tensor in what is only compared."""


def _storage(*_: Any) -> None:
    """Stand for a storage."""
