"""The way between an open file and storages: by cuFile where it takes both, else plainly."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from typing import Any

import torch

from zerocopy import _torch
from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.gds import cufile
from zerocopy.loading.objects.builder import tensor_over
from zerocopy.process.os_errors import naming

log = logging.getLogger("zerocopy")

_PIECE = 16 << 20
#: Bytes: copying a smaller storage through the host's memory takes less time than a request.
LARGE = 1 << 20

#: Moves bytes between memory of the host and the file, whose offset is given.
_Move = Callable[[memoryview, int], None]


class Channel:
    """Reads and writes storages of any device. The maker keeps the descriptor open.

    Parameters
    ----------
    descriptor, name : int, str
        Of the file.
    access : int
        How it is open: ``os.O_RDONLY``, ``os.O_WRONLY`` or ``os.O_RDWR``.

    Attributes
    ----------
    native : torch.cuda.gds.GdsFile or None
        cuFile's file.
    reason : str
        Why cuFile is not used; empty if it is.
    """

    def __init__(self, descriptor: int, name: str, access: int) -> None:
        self._descriptor, self._name, self._access = descriptor, name, access
        self.native: Any = None
        try:
            self.register()
        except UnsupportedError as error:
            self.reason = str(error)

    def register(self) -> None:
        """Open the file with cuFile. Raises UnsupportedError."""
        if self.native is None:
            self.native = cufile.open_file(self._descriptor, self._name, self._access)
            self.reason = ""

    def deregister(self, reason: str) -> None:
        """Close cuFile's file."""
        self.native, self.reason = None, reason

    def read(self, storage: torch.UntypedStorage, offset: int) -> None:
        """Fill a storage. Raises FormatError if the file ends too early, OSError."""
        found = os.fstat(self._descriptor)
        if stat.S_ISREG(found.st_mode) and offset + storage.nbytes() > found.st_size:
            raise _too_short(self._name, found.st_size)
        storage.data_ptr()  # memory that is shared until it is written to is copied now
        if not self._by_cufile("load_storage", storage, offset):
            with naming(self._name):
                _by_host(storage, offset, self._fill, to_storage=True)

    def write(self, storage: torch.UntypedStorage, offset: int) -> None:
        """Write a storage's bytes. Raises OSError."""
        if not self._by_cufile("save_storage", storage, offset):
            with naming(self._name):
                _by_host(storage, offset, self._drain, to_storage=False)

    def _by_cufile(self, method: str, storage: torch.UntypedStorage, offset: int) -> bool:
        """Return whether cuFile moved the bytes."""
        if self.native is None or storage.device.type not in cufile.DEVICES or storage.nbytes() < LARGE:
            return False
        try:
            with cufile.ready(storage.device):
                getattr(self.native, method)(storage, offset)
        except RuntimeError as error:
            self.deregister(f"{self._name}: {error}")
            log.info("%s: without cuFile: %s", self._name, str(error))  # its frames hold the file
            return False
        return True

    def _fill(self, memory: memoryview, offset: int) -> None:
        while memory:
            got = os.preadv(self._descriptor, [memory], offset)
            if not got:
                raise _too_short(self._name, offset)
            memory, offset = memory[got:], offset + got

    def _drain(self, memory: memoryview, offset: int) -> None:
        while memory:
            put = os.pwrite(self._descriptor, memory, offset)
            memory, offset = memory[put:], offset + put


def _too_short(name: str, size: int) -> FormatError:
    return FormatError(f"{name}: the file ends before byte {size:#x}")


def _by_host(storage: torch.UntypedStorage, offset: int, move: _Move, *, to_storage: bool) -> None:
    """Move bytes between a file and a storage, through pinned memory if the storage is on a GPU."""
    size = storage.nbytes()
    if storage.device.type == "cpu" or not size:
        move(_torch.bytes_of(storage), offset)
        return
    pinned = storage.device.type == "cuda" and size >= LARGE
    host = torch.empty(min(size, _PIECE), dtype=torch.uint8, device="cpu", pin_memory=pinned)
    memory = _torch.bytes_of(_torch.untyped_of(host))
    with cufile.ready(storage.device):
        for begin in range(0, size, _PIECE):
            step = min(size - begin, _PIECE)
            there = tensor_over(storage, torch.uint8, begin, (step,), (1,), False, False, False)
            if to_storage:
                move(memory[:step], offset + begin)
                there.copy_(host[:step])
            else:
                host[:step].copy_(there)
                move(memory[:step], offset + begin)
