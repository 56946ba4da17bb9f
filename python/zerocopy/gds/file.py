"""``zerocopy.gds.GdsFile``: ``torch.cuda.gds.GdsFile``, on every release and every machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from zerocopy._native import _C
from zerocopy.errors import UnsupportedError
from zerocopy.gds import driver, staging
from zerocopy.gds.availability import Availability, availability_of
from zerocopy.gds.channel import Channel, Part, checked_offset, untyped


class GdsFile:
    """A file whose bytes go to storages and back by cuFile, where that takes both.

    Storages on CUDA devices go by cuFile; those on the CPU, and all where cuFile is not there or refuses, are read and
    written plainly. Any offset and any size will do: whole blocks of 4096 bytes go directly, the ends over the host.
    A read of fewer bytes than the storage has raises an error.

    Parameters
    ----------
    filename : str or PathLike
        The file.
    flags : int
        As for ``os.open``: ``os.O_RDONLY``, ``os.O_RDWR | os.O_CREAT``, ... ``O_DIRECT`` need not be said. With
        ``O_APPEND`` too it is the offset that says where.

    Attributes
    ----------
    filename : str
        The file.
    fd : int
        Its descriptor; -1 when it is closed.
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

    fd = -1  # until there is one: __del__ looks at it

    def __init__(self, filename: str | os.PathLike[str], flags: int = os.O_RDONLY) -> None:
        self.filename, self.flags = os.fsdecode(filename), flags
        self.fd = os.open(filename, flags & ~(os.O_DIRECT | os.O_APPEND) | os.O_CLOEXEC, 0o666)
        self._channel = Channel(self.fd, self.filename)
        try:
            self._channel.register_if_taken()
        except BaseException:
            self.close()
            raise

    @property
    def handle(self) -> _C.GdsFile | None:
        """Return cuFile's handle of the file, or None."""
        return self._channel.native

    @property
    def reason(self) -> str:
        """Why cuFile does not know the file; empty where it does."""
        return self._channel.reason

    def availability(self) -> Availability:
        """Return what GPUDirect Storage comes to with this file."""
        return availability_of(Path(f"/proc/self/fd/{self._open()}"))

    def register_handle(self) -> None:
        """Have cuFile know the file, as it does from the beginning where it can.

        Raises
        ------
        zerocopy.UnsupportedError, OSError
            It does not take it, and why.
        """
        self._open()
        self._channel.register()

    def deregister_handle(self) -> None:
        """Have cuFile forget the file; it is read and written plainly from then on."""
        self._channel.deregister()

    def load_storage(self, storage: torch.UntypedStorage, offset: int = 0) -> None:
        """Fill a storage from the file.

        Parameters
        ----------
        storage : torch.UntypedStorage
            All of it is filled, and there when this returns.
        offset : int
            In the file.

        Raises
        ------
        zerocopy.FormatError
            The file ends too early.
        OSError
            It cannot be read.
        """
        self._open()
        self._channel.read(untyped(storage), checked_offset(offset))

    def load_storages(self, storages: Iterable[tuple[torch.UntypedStorage, int]]) -> None:
        """Fill many storages, as :meth:`load_storage` each, by batches where the library has them.

        Parameters
        ----------
        storages : iterable of (torch.UntypedStorage, int)
            Each with its offset in the file.

        Raises
        ------
        zerocopy.FormatError, OSError
            As :meth:`load_storage`. The contents of the storages are then undefined.
        """
        self._open()
        found = [(untyped(storage), checked_offset(offset)) for storage, offset in storages]
        self._channel.read_all(Part(offset, storage, 0, storage.nbytes()) for storage, offset in found)

    def load_storage_async(
        self, storage: torch.UntypedStorage, offset: int = 0, stream: torch.cuda.Stream | None = None
    ) -> Loading:
        """Begin to fill a storage, in the order of a stream's work where the library can.

        Parameters
        ----------
        storage : torch.UntypedStorage
            Nobody else may use it until ``wait()`` of the result has returned.
        offset : int
            In the file.
        stream : torch.cuda.Stream, optional
            Default: the current one of the storage's device.

        Returns
        -------
        Loading
        """
        native, offset = untyped(storage), checked_offset(offset)
        loading, file = Loading(self._open(), self.filename, native, offset), self._channel.native
        if file is None or not driver.takes(native) or not native.nbytes():
            return loading
        native.data_ptr()  # one that shares memory until it is written to gets its own now
        if native.device.type != "cuda":
            loading.begun = file.begin_read(native, offset, stream)
            return loading
        with torch.cuda.device(native.device):
            stream = stream or torch.cuda.current_stream(native.device)
            stream.query()  # so that this thread has CUDA's context, which a call of the runtime gives it: cuFile asks
            loading.begun = file.begin_read(native, offset, stream)
            return loading

    def save_storage(self, storage: torch.UntypedStorage, offset: int = 0) -> None:
        """Write a storage's bytes to the file.

        Parameters
        ----------
        storage : torch.UntypedStorage
            All of it is written when this returns, though perhaps not to the disk: ``os.fsync`` sees to that.
        offset : int
            In the file.

        Raises
        ------
        OSError
            It cannot be written to.
        """
        self._open()
        self._channel.write(untyped(storage), checked_offset(offset))

    def close(self) -> None:
        """Close the file; again does nothing."""
        if self.fd >= 0:
            self.deregister_handle()
            descriptor, self.fd = self.fd, -1
            os.close(descriptor)

    def _open(self) -> int:
        if self.fd < 0:
            raise ValueError("I/O operation on closed file.")
        return self.fd

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Loading:
    """A storage that is being filled; the file may be closed meanwhile.

    Attributes
    ----------
    begun : _C.GdsRead or None
        The request in cuFile.
    """

    begun: _C.GdsRead | None = None
    _descriptor = -1  # until there is one, and when all is done

    def __init__(self, descriptor: int, name: str, storage: torch.UntypedStorage, offset: int) -> None:
        self._name, self._storage, self._offset = name, storage, offset
        self._descriptor = os.dup(descriptor)

    def wait(self) -> torch.UntypedStorage:
        """Return the storage when its bytes are there. Raises as :meth:`GdsFile.load_storage`."""
        if self._descriptor >= 0:
            size = self._storage.nbytes()
            if size and not self._came():
                staging.read(self._descriptor, self._name, self._offset, self._storage, 0, size)
            self._close()
        return self._storage

    def _came(self) -> bool:
        """Wait for cuFile, and return whether it brought the bytes; else they are read plainly."""
        if self.begun is None:
            return False
        try:
            # The default stream belongs to the current device, which may differ in this thread.
            with driver.ready(self._storage.device):
                self.begun.wait()
        except UnsupportedError:
            return False
        return True

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def __del__(self) -> None:
        if self._descriptor < 0 or sys.is_finalizing():
            return
        try:
            if self.begun is not None:
                with driver.ready(self._storage.device):
                    self.begun = None  # waits for what is under way: the storage may be gone next
        finally:
            self._close()
