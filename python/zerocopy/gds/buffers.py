"""Storages that are read into again and again."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import torch

from zerocopy._native import _C
from zerocopy.errors import UnsupportedError
from zerocopy.gds import driver
from zerocopy.gds.channel import untyped

log = logging.getLogger("zerocopy")


def register_buffer(storage: torch.UntypedStorage) -> None:
    """Register the memory of a storage with cuFile, as ``torch.cuda.gds.gds_register_buffer``.

    Registering takes longer than many a read: it is worth it for what is read into, or saved, more than once. Twice is
    once, until it is deregistered twice. Loads and saves use what is registered by themselves. Without cuFile there is
    nothing to register with, and no need: an INFO line of the logger "zerocopy" says why.

    Parameters
    ----------
    storage : torch.UntypedStorage
        On a CUDA device. Deregister it before its memory is given back.

    Raises
    ------
    zerocopy.UnsupportedError
        The storage is not on cuFile's device, or cuFile refuses it: pinned memory of GPUs is scarce.
    OSError
        cuFile failed.

    Examples
    --------
    >>> import torch, zerocopy
    >>> if torch.cuda.is_available():
    ...     storage = torch.UntypedStorage(1 << 20, device="cuda")
    ...     zerocopy.gds.register_buffer(storage)
    ...     zerocopy.gds.deregister_buffer(storage)
    """
    native = untyped(storage)
    if reason := driver.refusal():
        log.info("a buffer is not registered: %s", reason)
        return
    cufile = _that_takes(native)
    with driver.ready(native.device):
        cufile.register_buffer(native)


def deregister_buffer(storage: torch.UntypedStorage) -> None:
    """Undo :func:`register_buffer`, as ``torch.cuda.gds.gds_deregister_buffer``. Without cuFile nothing is to undo.

    Parameters
    ----------
    storage : torch.UntypedStorage
        One that is registered.

    Raises
    ------
    ValueError
        It is not registered.
    zerocopy.UnsupportedError, OSError
        As :func:`register_buffer`.
    """
    native = untyped(storage)
    if driver.refusal():
        return
    cufile = _that_takes(native)
    with driver.ready(native.device):
        cufile.deregister_buffer(native)


@contextlib.contextmanager
def registered(storage: torch.UntypedStorage) -> Iterator[None]:
    """Have a storage registered in a block, where the driver has a use for it and takes it."""
    try:
        is_registered = driver.opened().driver.properties["nvfs"] != (0, 0)
        if is_registered:
            register_buffer(storage)
    except (UnsupportedError, OSError):  # it is read into all the same
        is_registered = False
    try:
        yield
    finally:
        if is_registered:
            deregister_buffer(storage)


def _that_takes(storage: torch.UntypedStorage) -> _C.GdsDriver:
    cufile = driver.opened()
    if storage.device.type not in cufile.devices:
        raise UnsupportedError(f"expected memory of a CUDA device for cuFile, got {storage.device}")
    return cufile.driver
