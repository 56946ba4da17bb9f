"""The archive of a checkpoint: its records are planned, and the core carries the plan out.

``csrc/container/archive_plan.h`` lays records out, ``archive_writer.h`` beside it writes them to a file or a stream.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from zerocopy import _core
from zerocopy.saving.atomic_file import NewFile, Written
from zerocopy.saving.mapped_files import FileExtent, MappedFiles

if TYPE_CHECKING:
    import torch

SMALLEST_ALIGNMENT, MAX_ALIGNMENT = 64, 2 << 20
# From this size on it is worth asking whether a storage lies in a mapped file.
LARGE = 1 << 20
#: Bytes of storages between two calls of a function `progress`.
PIECE = 4 << 20
#: Bytes of storages between two moments at which signal handlers run.
_LONG_PIECE = 64 << 20
# Up to this an extra field pads everything, and torch's arithmetic for the places of storages holds.
_MAX_REGULAR_ALIGNMENT = 1 << 15

#: A new file, or any object with a ``write`` method.
Target = Any
#: Returns a storage on the CPU.
Provide = Callable[[], "torch.UntypedStorage"]


class CheckpointPlan:
    """The records of a checkpoint: its pickle, its storages, and what torch's readers look for beside them.

    Parameters
    ----------
    target : NewFile or object
        Where it is written to: a new file, or an object with a ``write`` method.
    alignment : int
        Of the bytes of storages in the archive.
    checksum : bool
        Whether storages get theirs; other records always do.
    regular : bool
        Whether storages are added in the pickle's order, with nothing between. Then the file tells torch that it may
        compute their places.

    Attributes
    ----------
    writer : zerocopy._core.ArchiveWriter
        Carries the plan out.
    """

    def __init__(self, target: Target, alignment: int, checksum: bool, *, regular: bool) -> None:
        self._native = _core.ArchivePlan(alignment, checksum)
        self.writer = _core.ArchiveWriter(self._native, target)
        # Blocks that both files share keep their checksums.
        is_file = checksum and isinstance(target, NewFile)
        self._device = os.fstat(target.descriptor).st_dev if is_file else None
        self._alignment, self._regular = alignment, regular and alignment <= _MAX_REGULAR_ALIGNMENT
        self._kept: list[torch.UntypedStorage] = []  # until they are written
        # For each record whose storage is made when its turn comes.
        self._later: list[tuple[Provide, MappedFiles]] = []

    def pickle(self, content: bytes) -> None:
        """Add the pickle, and how the storages are laid out."""
        self._native.record("data.pkl", content)
        if self._regular:
            self._native.record(".format_version", b"1")
        self._native.record(".storage_alignment", str(self._alignment).encode())
        self._native.record("byteorder", sys.byteorder.encode())

    def storage(self, key: str, storage: torch.UntypedStorage, mapped: MappedFiles) -> None:
        """Add a storage, which lives until it is written. Inside a block of ``skip_data`` only its room."""
        from zerocopy import _torch

        size = storage.nbytes()
        if _torch.skips_data():
            self.hole(key, size)
        elif storage.device.type != "cpu":
            self.later(key, size, storage.cpu, mapped)
        elif size >= LARGE and (place := mapped.place_of(storage.data_ptr(), size)) is not None:
            self.part(key, size, place, mapped)
        else:
            self._kept.append(storage)
            self.memory(key, size, storage.data_ptr())

    def memory(self, key: str, size: int, address: int) -> None:
        """Add a storage at an address."""
        self._native.memory(f"data/{key}", size, address)

    def part(self, key: str, size: int, place: FileExtent, mapped: MappedFiles) -> None:
        """Add a storage whose bytes are in an open file."""
        known = self._known_checksum(place, size, mapped)
        self._native.part(f"data/{key}", size, place.descriptor, place.offset, known)

    def later(self, key: str, size: int, provide: Provide, mapped: MappedFiles) -> None:
        """Add a storage that is made when its turn has come, and dropped after that."""
        self._native.memory(f"data/{key}", size)
        if size:
            self._later.append((provide, mapped))

    def hole(self, key: str, size: int) -> int:
        """Reserve room for a storage: zeros, which take no space on the disk. Return where the room begins."""
        return self._native.hole(f"data/{key}", size)

    def finish(self) -> None:
        """Add what comes behind the storages, and the directory."""
        self._native.finish()

    @property
    def last_checksum(self) -> int:
        """The checksum of the storage that was written last."""
        return self._native.last_checksum

    def carry_out(self, progress: Written | None = None) -> None:
        """Write all that was added so far, and tell `progress` of the bytes of storages."""
        writer = self.writer
        provided: Any = None  # keeps a storage that was made
        told = writer.written
        is_done = False
        while not is_done:
            is_done = writer.write(PIECE if progress else _LONG_PIECE)
            if progress and writer.written > told:
                progress(writer.written - told)
                told = writer.written
            if writer.wants_memory:
                provided = None  # so that no two of them are there at once
                make, mapped = self._later.pop(0)
                provided = make()
                self._provide(provided, mapped)
        self._kept.clear()

    def _provide(self, storage: torch.UntypedStorage, mapped: MappedFiles) -> None:
        """Tell the writer where a storage lies that was just made: in memory, or in a mapped file."""
        address, size = storage.data_ptr(), storage.nbytes()
        place = mapped.place_of(address, size, is_newer=True) if size >= LARGE else None
        if place is None:
            self.writer.provide(address)
        else:
            known = self._known_checksum(place, size, mapped)
            self.writer.provide_part(place.descriptor, place.offset, known)

    def _known_checksum(self, place: FileExtent, size: int, mapped: MappedFiles) -> int | None:
        shares = self._device == os.fstat(place.descriptor).st_dev
        return mapped.checksum_of(place, size) if shares else None


class PickleWithStorages(ABC):
    """A pickle, and the storages that it refers to, in the order of their numbers.

    Attributes
    ----------
    pickle : bytes
        Refers to the storages by number.
    sizes : list of int
        Bytes of each storage.
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
        from zerocopy import _torch

        if _torch.skips_data():
            plan.hole(key, size)
        elif self.is_kept(number):
            plan.storage(key, self.storage(number), mapped)
        else:
            plan.later(key, size, partial(self._on_cpu, number), mapped)

    def _on_cpu(self, number: int) -> torch.UntypedStorage:
        storage = self.storage(number)
        return storage if storage.device.type == "cpu" else storage.cpu()


def checked_alignment(alignment: int) -> int:
    """Return the alignment. Raise ValueError unless it is a power of two from 64 to 2 MiB."""
    is_power = isinstance(alignment, int) and alignment > 0 and alignment & (alignment - 1) == 0
    if not (is_power and SMALLEST_ALIGNMENT <= alignment <= MAX_ALIGNMENT):
        raise ValueError(f"expected alignment to be a power of two from 64 to 2 MiB, got {alignment!r}")
    return alignment
