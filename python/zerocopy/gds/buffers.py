"""Storages that are read into again and again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from zerocopy import _C
from zerocopy.errors import UnsupportedError
from zerocopy.gds import driver
from zerocopy.gds.channel import untyped


def register_buffer(storage: torch.UntypedStorage) -> None:
    """Register the memory of a storage with cuFile, as ``torch.cuda.gds.gds_register_buffer``.

    Registering takes longer than many a read: it is worth it for what is read into, or saved, more than once. Twice is
    once, until it is deregistered twice. Loads and saves use what is registered by themselves.

    Parameters
    ----------
    storage : torch.UntypedStorage
        On a CUDA device. Deregister it before its memory is given back.

    Raises
    ------
    zerocopy.UnsupportedError
        cuFile is not there (:func:`available` says why), the storage is not on its device, or cuFile refuses it:
        pinned memory of GPUs is scarce.
    OSError
        cuFile failed.

    Examples
    --------
    >>> import torch, zerocopy
    >>> storage = torch.UntypedStorage(1 << 20)  # of the CPU
    >>> try:
    ...     zerocopy.gds.register_buffer(storage)
    ... except zerocopy.UnsupportedError:
    ...     print("not that one")
    not that one
    """
    cufile, native = _of(storage)
    with driver.ready(native.device):
        cufile.register_buffer(native)


def deregister_buffer(storage: torch.UntypedStorage) -> None:
    """Undo :func:`register_buffer`, as ``torch.cuda.gds.gds_deregister_buffer``.

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
    cufile, native = _of(storage)
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


def _of(storage: torch.UntypedStorage) -> tuple[_C.GdsDriver, torch.UntypedStorage]:
    native, cufile = untyped(storage), driver.opened()
    if native.device.type not in cufile.devices:
        raise UnsupportedError(f"cuFile takes no memory of the device {native.device}")
    return cufile.driver, native
