"""The pickle of an object, and the storages that it speaks of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from zerocopy import _torch
from zerocopy.process.malloc_trim import Heap
from zerocopy.saving.archive import CheckpointPlan, Target
from zerocopy.saving.atomic_file import Written
from zerocopy.saving.mapped_files import MappedFiles
from zerocopy.saving.pickler import Remake, identities, pickled


class PickleWithStorages(ABC):
    """A pickle, and the storages that it speaks of, in that order.

    Attributes
    ----------
    pickle : bytes
        Speaks of the storages by number.
    sizes : list of int
        Of the storages, in bytes.
    """

    pickle: bytes
    sizes: list[int]

    @abstractmethod
    def storage(self, number: int) -> torch.UntypedStorage:
        """Return a storage, which may be made now."""

    @abstractmethod
    def is_kept(self, number: int) -> bool:
        """Return whether this object holds the storage. If not, :meth:`storage` makes a temporary storage."""

    @property
    def total(self) -> int:
        """The bytes of all storages."""
        return sum(self.sizes)

    def write(self, target: Target, alignment: int, checksum: bool, progress: Written | None = None) -> None:
        """Write the archive, and tell `progress` of the bytes of storages."""
        with MappedFiles() as mapped:
            plan = CheckpointPlan(target, alignment, checksum, regular=True)
            plan.pickle(self.pickle)
            for number in range(len(self.sizes)):
                self.add(number, plan, mapped)
            plan.finish()
            plan.carry_out(progress)

    def add(self, number: int, plan: CheckpointPlan, mapped: MappedFiles) -> None:
        """Add a storage to a plan."""
        key, size = str(number), self.sizes[number]
        if _torch.skips_data():
            plan.hole(key, size)
        elif self.is_kept(number):
            plan.storage(key, self.storage(number), mapped)
        else:
            plan.later(key, size, partial(self._on_cpu, number), mapped)

    def _on_cpu(self, number: int) -> torch.UntypedStorage:
        storage = self.storage(number)
        return storage if storage.device.type == "cpu" else storage.cpu()


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
