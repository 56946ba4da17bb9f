"""The staged road: storages to a device, through a small ring of page-locked memory that is used again and again.

::

    page cache or disk ──threads──→ slots of the ring ──one stream──→ one allocation on the device
      csrc/io/direct       csrc/io/ring          rings.py               csrc/io/staging: what lies where

The allocation is one for all storages of a file; each of them is a storage of its own over a part of it. It goes with
the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy._torch import context
from zerocopy.loading.device import devices, pinned_ring


class Road:
    """Which storages of a load go to a device by the road, and their way there.

    Parameters
    ----------
    restore : callable
        Torch's own function for a ``map_location``, for which the tag of a storage alone decides.
    """

    def __init__(self, restore: _torch.Restore) -> None:
        self._restore = restore
        self._known: dict[str, devices.Device | None] = {}
        self._devices: dict[torch.device, devices.Device] = {}

    def device_of(self, tag: str) -> devices.Device | None:
        """Return the device that storages of a tag are carried to; None if they go another way.

        Raises what torch.load raises for a device that is not there.
        """
        if tag not in self._known:
            # What becomes of a storage of no bytes becomes of all.
            there = self._restore(torch.UntypedStorage(0), tag).device
            kind = devices.KINDS.get(there.type)
            if kind is not None and there not in self._devices:
                self._devices[there] = kind(there)
            self._known[tag] = self._devices.get(there)
        return self._known[tag]

    def carry(self, device: devices.Device, haul: _C.Haul) -> torch.UntypedStorage:
        """Bring all of a haul to a device, and return the one storage there that holds it."""
        return carry(device, haul)

    def moved(self, storage: torch.UntypedStorage, tag: str) -> torch.UntypedStorage | None:
        """Return a storage on the device that its tag leads to; None if that is not by the road."""
        device = self.device_of(tag)
        return None if device is None else _move(device, [storage])[0]


def road_to(map_location: Any) -> Road | None:
    """Return the road for a ``map_location``; None if nothing can go by one."""
    if _torch.restore_function(map_location)[0] is None and "cpu" not in devices.KINDS:
        return None  # all stays where it is
    restore = _torch.restore_by_tag(map_location)
    return None if restore is None else Road(restore)


def leads_to(map_location: Any) -> bool:
    """Return whether a ``map_location`` sends everything to a device by the road, without asking that device."""
    return isinstance(map_location, (str, torch.device)) and str(map_location).split(":")[0] in devices.KINDS


def restoring(map_location: Any) -> tuple[_torch.Restore | None, bool]:
    """Return ``_torch.restore_function(map_location)``, with the road for what goes by it storage by storage."""
    if callable(map_location):
        return _torch.restore_function(_by_road_if_none(map_location))
    restore, cpu_as_is = _torch.restore_function(map_location)
    road = road_to(map_location)
    if road is None:
        return restore, cpu_as_is

    def restored(storage: torch.UntypedStorage, tag: str) -> Any:
        moved = road.moved(storage, tag)
        if moved is not None:
            return moved
        return storage if restore is None else restore(storage, tag)

    return restored, cpu_as_is and "cpu" not in devices.KINDS


def _by_road_if_none(choose: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``map_location`` function; where `choose` returns None, and torch would go by the tag, so does this."""
    road = road_to(None)

    def chosen(storage: torch.UntypedStorage, tag: str) -> Any:
        result = choose(storage, tag)
        return road.moved(storage, tag) if result is None and road is not None else result

    return chosen


def move(storages: Sequence[torch.UntypedStorage], device: torch.device | str) -> list[torch.UntypedStorage]:
    """Return storages that are in memory on a device, in one allocation there.

    Parameters
    ----------
    storages : sequence of UntypedStorage
        On the CPU: private, shared, mapped.
    device : torch.device or str
        Of a kind that the road leads to.

    Raises
    ------
    torch.cuda.OutOfMemoryError
        With the bytes that are needed.

    Examples
    --------
    >>> from zerocopy.loading.device import staging
    >>> storage = torch.arange(4.0).storage().untyped()
    >>> if torch.cuda.is_available():
    ...     assert staging.move([storage], "cuda")[0].tolist() == storage.tolist()
    """
    there = torch.device(device)
    return _move(devices.KINDS[there.type](there), storages)


def _move(device: devices.Device, storages: Sequence[torch.UntypedStorage]) -> list[torch.UntypedStorage]:
    haul = _C.Haul(list(storages))
    return haul.storages(carry(device, haul))


def carry(device: devices.Device, haul: _C.Haul) -> torch.UntypedStorage:
    """Bring all of a haul to a device, and return the one storage there that holds it."""
    with context.without_dispatch_modes():  # the ring is there for later loads too
        whole: torch.Tensor | None = _allocated(device, haul.size)
        assert whole is not None
        if haul.chunks:
            try:
                pinned_ring.of(device).carry(haul, device, whole)
            except BaseException:
                whole = None  # a traceback is no reason to keep it
                raise
        return _torch.untyped_of(whole)


def _allocated(device: devices.Device, nbytes: int) -> torch.Tensor:
    try:
        return device.allocate(nbytes)
    except torch.cuda.OutOfMemoryError as error:
        needed = f"{nbytes} bytes ({nbytes / 2**30:.2f} GiB) are needed on {device}"
        raise type(error)(f"{needed}, in one piece: {error}") from None
