"""The staged copy: storages go to a device through a small ring of page-locked memory.

::

    page cache or disk ──threads──→ slots of the ring ──one stream──→ one allocation on the device
      csrc/io/direct       csrc/io/ring        pinned_ring.py           csrc/io/staging: the layout

All storages of a file lie in one allocation. Each is a storage over a part of it. The allocation is freed with the
last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy._torch import context
from zerocopy.loading.device import devices, pinned_ring


class DeviceTransfer:
    """Decides which storages of a load are staged, and copies them.

    Parameters
    ----------
    map_location : optional
        As for ``zerocopy.load``.
    cpu_stays : bool
        Whether storages tagged ``cpu`` stay there, as most do: torch is not asked about them.
    """

    def __init__(self, map_location: Any, cpu_stays: bool) -> None:
        self._map_location = map_location
        self._known: dict[str, devices.Cuda | None] = {"cpu": None} if cpu_stays else {}
        self._devices: dict[torch.device, devices.Cuda] = {}

    @cached_property
    def _restore(self) -> _torch.Restore | None:
        return _torch.restore_by_tag(self._map_location)

    def device_of(self, tag: str) -> devices.Cuda | None:
        """Return the device that storages of a tag are staged to; None if they are not.

        Raises torch.load's error for a missing device.
        """
        if tag not in self._known and self._restore is not None:
            # The tag alone decides, so an empty storage shows where all storages go.
            there = self._restore(torch.UntypedStorage(0), tag).device
            kind = devices.KINDS.get(there.type)
            if kind is not None and there not in self._devices:
                self._devices[there] = kind(there)
            self._known[tag] = self._devices.get(there)
        return self._known.get(tag)

    @staticmethod
    def copy(device: devices.Cuda, plan: _C.TransferPlan) -> torch.UntypedStorage:
        """Copy all of `plan` to the device, and return the one storage that holds it."""
        with context.without_dispatch_modes():  # the ring outlives this load
            whole: torch.Tensor | None = _allocated(device, plan.size)
            assert whole is not None
            if plan.chunks:
                try:
                    pinned_ring.of(device).copy(plan, device, whole)
                except BaseException:
                    whole = None  # the traceback must not keep the allocation
                    raise
            return _torch.untyped_of(whole)

    def moved(self, storage: torch.UntypedStorage, tag: str) -> torch.UntypedStorage | None:
        """Return a copy of the storage on the device of its tag, or None if it is not staged."""
        device = self.device_of(tag)
        return None if device is None else _move(device, [storage])[0]


class Destination(NamedTuple):
    """The targets of the storages of a load.

    Attributes
    ----------
    restore : callable or None
        Called with a storage and its location tag, as ``torch.load`` calls `map_location`. None: all stay on the CPU.
    cpu_as_is : bool
        Whether storages tagged ``cpu`` are not asked about.
    transfer : DeviceTransfer or None
        Asked first; what it stages is not given to `restore`.
    """

    restore: _torch.Restore | None = None
    cpu_as_is: bool = True
    transfer: Any = None


def destination_of(map_location: Any, *, is_legacy: bool = False) -> Destination:
    """Return the destination of an archive's storages for a ``map_location``.

    Of a legacy file torch reads the bytes into the storage that a function returns, whichever that is.
    """
    if callable(map_location):
        restore, cpu_as_is = _torch.restore_function(_staged_if_none(map_location))
        return Destination(_filling(restore) if is_legacy and restore else restore, cpu_as_is)
    return Destination(*_torch.restore_function(map_location), transfer_to(map_location))


def transfer_to(map_location: Any) -> DeviceTransfer | None:
    """Return the transfer for a ``map_location``, or None if no storage can be staged."""
    restore, cpu_as_is = _torch.restore_function(map_location)
    stays = "cpu" not in devices.KINDS
    if (restore is None and stays) or callable(map_location) or _torch.skips_data():
        return None
    return DeviceTransfer(map_location, cpu_as_is and stays)


def stages_all(map_location: Any) -> bool:
    """Return whether a ``map_location`` stages every storage, without initialising the device."""
    return isinstance(map_location, (str, torch.device)) and str(map_location).split(":")[0] in devices.KINDS


def restoring(map_location: Any, *, is_legacy: bool) -> tuple[_torch.Restore | None, bool]:
    """Return ``_torch.restore_function(map_location)``, with staging for single storages."""
    restore, cpu_as_is, transfer = destination_of(map_location, is_legacy=is_legacy)
    if transfer is None:
        return restore, cpu_as_is

    def restored(storage: torch.UntypedStorage, tag: str) -> Any:
        moved = transfer.moved(storage, tag)
        if moved is not None:
            return moved
        return storage if restore is None else restore(storage, tag)

    return restored, cpu_as_is and "cpu" not in devices.KINDS


def _filling(restore: _torch.Restore) -> _torch.Restore:
    """Return a `restore` that copies the bytes of the given storage to another storage that it returns."""

    def restored(storage: torch.UntypedStorage, tag: str) -> Any:
        there = restore(storage, tag)
        is_other = there.device.type != "meta" and there.data_ptr() != storage.data_ptr()
        if is_other and there.nbytes() == storage.nbytes():
            there.copy_(storage)
        return there

    return restored


def _staged_if_none(choose: Callable[..., Any]) -> Callable[..., Any]:
    """Return `choose` with staging by the location tag where `choose` returns None."""
    transfer = transfer_to(None)

    def chosen(storage: torch.UntypedStorage, tag: str) -> Any:
        result = choose(storage, tag)
        return transfer.moved(storage, tag) if result is None and transfer is not None else result

    return chosen


def move(storages: Sequence[torch.UntypedStorage], device: torch.device | str) -> list[torch.UntypedStorage]:
    """Copy storages from host memory to one allocation on a device.

    Parameters
    ----------
    storages : sequence of UntypedStorage
        Storages on the CPU: private, shared or mapped.
    device : torch.device or str
        A CUDA device.

    Returns
    -------
    list of UntypedStorage
        One for each storage, over a part of the allocation.

    Raises
    ------
    torch.cuda.OutOfMemoryError
        The message has the bytes that are needed.

    Examples
    --------
    >>> from zerocopy.loading.device import staging
    >>> storage = torch.arange(4.0).storage().untyped()
    >>> if torch.cuda.is_available():
    ...     assert staging.move([storage], "cuda")[0].tolist() == storage.tolist()
    """
    there = torch.device(device)
    return _move(devices.KINDS[there.type](there), storages)


def _move(device: devices.Cuda, storages: Sequence[torch.UntypedStorage]) -> list[torch.UntypedStorage]:
    plan = _C.TransferPlan(list(storages))
    return plan.storages(DeviceTransfer.copy(device, plan))


def _allocated(device: devices.Cuda, nbytes: int) -> torch.Tensor:
    try:
        return device.allocate(nbytes)
    except torch.cuda.OutOfMemoryError as error:
        needed = f"{nbytes} bytes ({nbytes / 2**30:.2f} GiB) are needed on {device}"
        raise type(error)(f"{needed}, in one piece: {error}") from None
