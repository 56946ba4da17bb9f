"""``zerocopy.gds.GdsFile`` and registered buffers: those of ``torch.cuda.gds``, on every release and every machine."""

from __future__ import annotations

import logging
import operator
import os
from types import TracebackType
from typing import Any, Self, SupportsIndex

import torch

from zerocopy import _torch
from zerocopy.gds import cufile
from zerocopy.gds.channel import Channel

log = logging.getLogger("zerocopy")


class GdsFile:
    """A file whose bytes go to storages and back by cuFile, where that takes both.

    Storages on CUDA devices go by ``torch.cuda.gds.GdsFile``. Those on the CPU, those of less than a megabyte, and all
    where cuFile is missing or refuses, are read and written plainly. Any offset and any size will do.

    Parameters
    ----------
    filename : str or PathLike
        The file.
    flags : int
        As for ``os.open``: ``os.O_RDONLY``, ``os.O_RDWR | os.O_CREAT``, ... ``O_DIRECT`` is implied, ``O_APPEND`` is
        ignored.

    Attributes
    ----------
    filename : str
        The file.
    fd : int
        Its descriptor; -1 after :meth:`close`.
    handle : object
        cuFile's handle, or None.
    reason : str
        Why cuFile is not used. Empty if it is.

    Raises
    ------
    OSError
        The file cannot be opened.

    See Also
    --------
    zerocopy.storage_offsets : Where the storages of a checkpoint are.

    Examples
    --------
    >>> import os, pathlib, tempfile, torch, zerocopy
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "bytes"
    >>> storage = torch.UntypedStorage(10000).fill_(7)
    >>> with zerocopy.gds.GdsFile(path, os.O_RDWR | os.O_CREAT) as file:
    ...     file.save_storage(storage, 4096)
    ...     file.load_storage(storage.fill_(0), 4096)
    >>> storage[9999]
    7
    """

    fd = -1  # until it is open: __del__ looks at it

    def __init__(self, filename: str | os.PathLike[str], flags: int = os.O_RDONLY) -> None:
        self.filename, self.flags = os.fsdecode(filename), flags
        self.fd = os.open(filename, flags & ~(os.O_DIRECT | os.O_APPEND) | os.O_CLOEXEC, 0o666)
        self._channel = Channel(self.fd, self.filename, flags & os.O_ACCMODE)

    @property
    def handle(self) -> Any:
        """Return cuFile's handle of the file, or None."""
        return getattr(self._channel.native, "handle", None)

    @property
    def reason(self) -> str:
        """Return why cuFile is not used; an empty string if it is."""
        return self._channel.reason

    def register_handle(self) -> None:
        """Use cuFile for the file, as it is from the beginning if possible.

        Raises
        ------
        zerocopy.UnsupportedError
            cuFile is missing, or refuses the file.
        """
        self._open().register()

    def deregister_handle(self) -> None:
        """Read and write the file plainly from now on."""
        self._channel.deregister("it is not registered")

    def load_storage(self, storage: torch.UntypedStorage, offset: SupportsIndex = 0) -> None:
        """Fill a storage from the file.

        Parameters
        ----------
        storage : torch.UntypedStorage
            All of its bytes are filled when this returns.
        offset : int
            In the file.

        Raises
        ------
        zerocopy.FormatError
            The file ends too early.
        OSError
            It cannot be read.
        """
        self._open().read(_untyped(storage), _checked(offset))

    def save_storage(self, storage: torch.UntypedStorage, offset: SupportsIndex = 0) -> None:
        """Write a storage's bytes to the file.

        Parameters
        ----------
        storage : torch.UntypedStorage
            All of its bytes are written when this returns, but may not be on the disk before ``os.fsync``.
        offset : int
            In the file.

        Raises
        ------
        OSError
            It cannot be written to.
        """
        self._open().write(_untyped(storage), _checked(offset))

    def close(self) -> None:
        """Close the file. Closing it again does nothing."""
        if self.fd >= 0:
            descriptor, self.fd = self.fd, -1
            if hasattr(self, "_channel"):
                self.deregister_handle()
            os.close(descriptor)

    def _open(self) -> Channel:
        if self.fd < 0:
            raise ValueError("I/O operation on closed file.")
        return self._channel

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def register_buffer(storage: torch.UntypedStorage) -> None:
    """Register the memory of a storage with cuFile, as ``torch.cuda.gds.gds_register_buffer``.

    Registering takes longer than many a read. It is worth it for a storage that is read into, or saved, repeatedly.
    Without cuFile nothing is registered, and an INFO line of the logger "zerocopy" says why.

    Parameters
    ----------
    storage : torch.UntypedStorage
        On a CUDA device. Deregister it before its memory is freed.

    Raises
    ------
    zerocopy.UnsupportedError
        The storage is not on a CUDA device, or cuFile refuses it: pinned memory of GPUs is scarce.

    Examples
    --------
    >>> import torch, zerocopy
    >>> if torch.cuda.is_available():
    ...     storage = torch.UntypedStorage(1 << 20, device="cuda")
    ...     zerocopy.gds.register_buffer(storage)
    ...     zerocopy.gds.deregister_buffer(storage)
    """
    native = _untyped(storage)
    if reason := cufile.refusal():
        log.info("a buffer is not registered: %s", reason)
    else:
        cufile.call("gds_register_buffer", native)


def deregister_buffer(storage: torch.UntypedStorage) -> None:
    """Undo :func:`register_buffer`, as ``torch.cuda.gds.gds_deregister_buffer``. Without cuFile this does nothing.

    Parameters
    ----------
    storage : torch.UntypedStorage
        One that is registered.

    Raises
    ------
    zerocopy.UnsupportedError
        It is not registered.

    Examples
    --------
    >>> import torch, zerocopy
    >>> if torch.cuda.is_available():
    ...     storage = torch.UntypedStorage(1 << 20, device="cuda")
    ...     zerocopy.gds.register_buffer(storage)
    ...     zerocopy.gds.deregister_buffer(storage)
    """
    native = _untyped(storage)
    if not cufile.refusal():
        cufile.call("gds_deregister_buffer", native)


def _untyped(storage: Any) -> torch.UntypedStorage:
    """Return the ``UntypedStorage`` of a storage. Raise TypeError for anything else."""
    if isinstance(storage, torch.storage.TypedStorage):
        return _torch.untyped(storage)
    if not isinstance(storage, torch.UntypedStorage):
        raise TypeError(f"expected a torch.UntypedStorage, got {type(storage).__name__}")
    return storage


def _checked(offset: SupportsIndex) -> int:
    """Return an offset in a file as an int. Raise ValueError for anything else."""
    try:
        found = operator.index(offset)
    except TypeError:
        found = -1
    if not 0 <= found < 1 << 63:
        raise ValueError(f"expected an offset in a file, got {offset!r}")
    return found
