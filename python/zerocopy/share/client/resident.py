"""Results on a device: one allocation there for a result, which all processes of the machine have in common.

::

    owner    attach, and copy by staging ──→ one allocation ── exported once ──→ server            device_owner.py
    client   attach, but over the opened allocation in place of the shared pages ←── server        load_call.py

The layout of the allocation need not be sent: it follows from the result's own table (csrc/io/staging).
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from zerocopy._native import _C
from zerocopy._torch import cuda
from zerocopy.errors import UnsupportedError
from zerocopy.loading.device import devices, staging


class Kind(devices.Device, Protocol):
    """A kind of device whose memory processes can share. Pickled by its name: the device owner is another process."""

    def __init__(self, device: torch.device) -> None: ...

    @staticmethod
    def find(device: torch.device) -> torch.device:
        """Return an existing device, with its number. ``UnsupportedError``."""

    def export(self, whole: torch.UntypedStorage) -> tuple[Any, list[int]]:
        """Return what others open an allocation by: a handle that can be pickled, and descriptors."""

    def forget(self) -> None:
        """Leave nothing of what was exported behind: nobody has it any more, and this process ends."""

    def open(self, handle: Any, descriptors: Sequence[int]) -> torch.UntypedStorage:
        """Return another process's allocation."""


class Cuda(devices.Cuda):
    """A CUDA device."""

    @staticmethod
    def find(device: torch.device) -> torch.device:
        """Return an existing device, with its number."""
        if not torch.cuda.is_available():
            raise UnsupportedError(f"a resident copy on {device}: no CUDA device was found")
        index = torch.cuda.current_device() if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise UnsupportedError(
                f"a resident copy on {device}: there are {torch.cuda.device_count()} CUDA devices"
            )
        return torch.device("cuda", index)

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return device memory that can be exported."""
        cuda.allocate_apart()
        return super().allocate(nbytes)

    def export(self, whole: torch.UntypedStorage) -> tuple[Any, list[int]]:
        """Return the handle that CUDA has for it."""
        return cuda.exported(whole), []

    def forget(self) -> None:
        """Take away the files by which CUDA has exported it."""
        cuda.forget_exported()

    def open(self, handle: Any, descriptors: Sequence[int]) -> torch.UntypedStorage:
        """Return the memory behind a handle."""
        return cuda.opened(handle)


#: The kind of resident copy for each type of torch's devices.
KINDS: dict[str, type[Kind]] = {"cuda": Cuda}


class Residence(NamedTuple):
    """The device on which results are wanted."""

    kind: type[Kind]
    device: torch.device


_wanted: contextvars.ContextVar[Residence | None] = contextvars.ContextVar("zerocopy_resident", default=None)


def wanted() -> Residence | None:
    """Return where results are wanted now; None where they are wanted as ever."""
    return _wanted.get()


def resident(device: torch.device | str) -> contextlib.AbstractContextManager[None]:
    """Have ``share.load`` return results that lie on a device, in one copy for all processes of the machine.

    Within the block each result's storages that were on the CPU, or on that device, are parts of one allocation there.
    The first who asks has it filled, by a process that holds it from then on; all others open it, in the same
    milliseconds whatever its size, and without any memory of their own.

    **Memory on a device has no copy-on-write: what one process writes to such a tensor all others see.** So it is for
    what is only read, as the weights of an inference; ``tensor.clone()`` is one's own.

    Parameters
    ----------
    device : torch.device or str
        ``"cuda"``, ``"cuda:1"``. Without a number it is the current one.

    Returns
    -------
    context manager
        For this thread, or this task of asyncio.

    Raises
    ------
    UnsupportedError
        If the device does not exist, or is not of a kind whose memory can be shared.

    Notes
    -----
    Within the block ``share.load`` also raises what filling the allocation raises: ``torch.cuda.OutOfMemoryError`` with
    the bytes that it takes, or ``ServerError`` if the process that does it dies.

    The copy stays as long as the server has the result or any process has one of its tensors. ``share.status()`` lists
    it with the result.

    ``bytes``, NumPy arrays and other buffers of a result are read by Python, so those stay shared memory of the host.

    Examples
    --------
    >>> import torch, zerocopy
    >>> def load(path):
    ...     with zerocopy.share.resident("cuda"):
    ...         return zerocopy.share.load(torch.load, path)
    """
    where = torch.device(device)
    kind = KINDS.get(where.type)
    if kind is None:
        raise UnsupportedError(f"a resident copy on {where}: memory of that kind is not shared")
    return _within(Residence(kind, kind.find(where)))


@contextlib.contextmanager
def _within(residence: Residence) -> Iterator[None]:
    token = _wanted.set(residence)
    try:
        yield
    finally:
        _wanted.reset(token)


class ResidentPlacement:
    """A DeviceTransfer to an allocation that already holds the storages.

    Parameters
    ----------
    device : torch.device
        Where it is.
    bring : callable
        Returns the allocation, given what it is for.
    elsewhere : DeviceTransfer, optional
        The transfer of storages that were on another device.
    """

    def __init__(
        self,
        device: torch.device,
        bring: Callable[[_C.TransferPlan], torch.UntypedStorage],
        elsewhere: staging.DeviceTransfer | None,
    ) -> None:
        self._device, self._bring, self._elsewhere = device, bring, elsewhere

    def device_of(self, tag: str) -> object | None:
        """Return the device of storages with this location tag: this one, or that of `elsewhere`."""
        if tag in ("cpu", str(self._device)):
            return self
        return None if self._elsewhere is None else self._elsewhere.device_of(tag)

    def copy(self, device: Any, plan: _C.TransferPlan) -> torch.UntypedStorage:
        """Return the one storage that holds all of a plan."""
        if device is self:
            return self._bring(plan)
        assert self._elsewhere is not None, "it has said where"
        return self._elsewhere.copy(device, plan)
