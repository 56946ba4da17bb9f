"""The pickle of an object, and the storages that it refers to."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from zerocopy import _torch
from zerocopy.process.malloc_trim import Heap
from zerocopy.saving.archive import PickleWithStorages
from zerocopy.saving.pickler import Remake, identities, pickled


class PickledObject(PickleWithStorages):
    """The pickle of an object, and its storages."""

    def __init__(self, obj: Any) -> None:
        self.sizes = []
        self._heap = Heap()
        self._keys: dict[Any, str] = {}
        self._references: list[StorageWeakRef] = []  # no other storage gets the identity of one of these
        self._dtypes: dict[str, torch.dtype] = {}
        self._sources: list[torch.UntypedStorage | Remake] = []
        self.pickle = pickled(obj, self, self._store)

    def storage(self, number: int) -> torch.UntypedStorage:
        """Return a storage, which is made now unless it is kept."""
        source = self._sources[number]
        if not isinstance(source, Remake):
            return source
        if source.is_converted:
            self._heap.used(self.sizes[number])
        return source.storage()

    def is_kept(self, number: int) -> bool:
        """Return whether this object holds the storage. If not, :meth:`storage` makes a temporary storage."""
        return not isinstance(self._sources[number], Remake)

    def _store(self, storage: _torch.PickledStorage, remake: Remake | None) -> str:
        """Return a storage's key, which is the same for the same storage."""
        untyped = storage.storage
        known = identities(untyped, remake)
        key = next((self._keys[each] for each in known if each in self._keys), None)
        if key is None:
            key = str(len(self._sources))
            self._sources.append(remake or untyped)
            self.sizes.append(untyped.nbytes())
        if remake and known[0] not in self._keys:
            self._references.append(StorageWeakRef(untyped))
        self._keys.update(dict.fromkeys(known, key))
        if remake and remake.is_converted:
            self._heap.used(untyped.nbytes())
        require_one_dtype(self._dtypes, key, storage)
        return key


def require_one_dtype(dtypes: dict[str, torch.dtype], key: str, storage: _torch.PickledStorage) -> None:
    """Refuse a storage that was pickled with another dtype: it would be loaded with one of the two for both."""
    if storage.storage.nbytes() and dtypes.setdefault(key, storage.dtype) != storage.dtype:
        raise RuntimeError(
            "Cannot save multiple tensors or storages that view the same data as different types"
        )
