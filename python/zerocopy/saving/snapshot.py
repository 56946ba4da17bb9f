"""Capture an object at one moment: a plan for writing it, and the memory that the plan reads."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zerocopy import _torch
from zerocopy.saving.archive import LARGE, CheckpointPlan, PickleWithStorages, Target
from zerocopy.saving.mapped_files import FileExtent, MappedFiles

# A fork copies page tables: 17 ms for each GiB of the process. Copying 1 GiB takes 300 ms. So a process that saves
# little, or little of its memory, stops for a shorter time if it copies.
_FORK_IS_CHEAPER_BY = 16
_SMALL = 16 << 20


class Storages(NamedTuple):
    """The storages of a checkpoint, by how their bytes are kept unchanged. A set has numbers of storages.

    Attributes
    ----------
    whole : list
        All storages, on the CPU.
    own : set of int
        Storages that were copied from a device, so nobody else writes to them.
    shared : set of int
        Storages in shared memory: a copy of the process would see what this process writes to them.
    places : dict of int to FileExtent
        Storages whose bytes are in a file.
    devices : set of str
        The kinds of devices that storages came from.
    """

    whole: list[torch.UntypedStorage]
    own: set[int]
    shared: set[int]
    places: dict[int, FileExtent]
    devices: set[str]

    @property
    def forkable(self) -> int:
        """The number of bytes that only a copy of the process would keep unchanged."""
        kept = self.own | self.shared | self.places.keys()
        return sum(storage.nbytes() for i, storage in enumerate(self.whole) if i not in kept)


def sorted_storages(parts: PickleWithStorages, mapped: MappedFiles) -> Storages:
    """Return the storages, after bringing those of other devices to the CPU."""
    found = Storages([], set(), set(), {}, set())
    if _torch.skips_data():
        return found
    arrivals: list[Callable[[], object]] = []
    storages = [parts.storage(number) for number in range(len(parts.sizes))]
    for number, (storage, size) in enumerate(zip(storages, parts.sizes, strict=True)):
        if storage.device.type != "cpu":
            found.devices.add(storage.device.type)
            storage, arrived = _torch.begin_copy_to_cpu(storage)
            arrivals.append(arrived)
            found.own.add(number)
        elif mapped.is_shared(storage.data_ptr(), size):
            found.shared.add(number)
        elif size >= LARGE and (place := mapped.place_of(storage.data_ptr(), size)) is not None:
            found.places[number] = place
        found.whole.append(storage)
    for arrived in arrivals:
        arrived()
    return found


def why_not_to_fork(storages: Storages) -> str:
    """Return why this process should not be copied to keep storages unchanged, or an empty string."""
    return why_not_to_copy(storages.forkable, bool(storages.devices))


def why_not_to_copy(forkable: int, has_devices: bool = False) -> str:
    """Return why this process should not be copied to keep so many bytes unchanged, or an empty string."""
    if torch.cuda.is_initialized() or has_devices:
        return "a device is in use, and its driver knows nothing of copies of this process"
    if forkable <= max(_SMALL, _private_memory() // _FORK_IS_CHEAPER_BY):
        return f"to copy {forkable} bytes takes less time than to copy this process"
    return ""


def plan(
    parts: PickleWithStorages,
    storages: Storages,
    target: Target,
    mapped: MappedFiles,
    options: tuple[int, bool],
    *,
    copies: bool,
) -> tuple[CheckpointPlan, Any]:
    """Return a plan, and the memory that must live until the plan is carried out. This process does not write to it.

    With `copies` the plan is for this process, else for a copy of it that is made at once.
    """
    copied = storages.shared
    if copies:
        copied = set(range(len(storages.whole))) - storages.own - storages.places.keys()
    arena = _Arena(sum(parts.sizes[number] for number in copied))
    plan = CheckpointPlan(target, *options, regular=True)
    plan.pickle(parts.pickle)
    for number, size in enumerate(parts.sizes):
        key, place = str(number), storages.places.get(number)
        if not storages.whole:  # in a block of skip_data
            plan.hole(key, size)
        elif place is not None:
            plan.part(key, size, place, mapped)
        else:
            address = storages.whole[number].data_ptr()
            plan.memory(key, size, arena.copied(address, size) if number in copied else address)
    plan.finish()
    return plan, (storages.whole, arena)


class _Arena:
    """Private memory for copies."""

    def __init__(self, size: int) -> None:
        self._at, self._memory = 0, None
        if size:
            self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._first = ctypes.c_char.from_buffer(self._memory)  # keeps the memory
            self._begin = ctypes.addressof(self._first)

    def copied(self, address: int, size: int) -> int:
        """Return the address of a copy."""
        if size == 0:
            return 0
        at = self._begin + self._at
        ctypes.memmove(at, address, size)
        self._at += size
        return at


def _private_memory() -> int:
    """Return the bytes of this process in memory that do not belong to a file; 0 if the system does not say it now."""
    try:
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text(encoding="utf-8").split())
    except OSError:  # no /proc, or no descriptor left
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
