"""Plain reading and writing of storages: those of the CPU at once, those of a GPU through a little pinned memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

import torch

from zerocopy import _torch
from zerocopy.errors import FormatError
from zerocopy.gds import driver
from zerocopy.loading.device import pinned_ring
from zerocopy.loading.objects.builder import tensor_over
from zerocopy.process.os_errors import naming

PIECE = 16 << 20

#: Moves bytes between the file, so far behind where it begins, and memory of the host.
Move = Callable[[memoryview, int], None]


def read(
    descriptor: int, name: str, offset: int, storage: torch.UntypedStorage, begin: int, size: int
) -> None:
    """Fill a part of a storage from a file. Raises FormatError where that ends, OSError."""

    def move(memory: memoryview, done: int) -> None:
        while memory:
            got = os.preadv(descriptor, [memory], offset + done)
            if not got:
                raise FormatError(f"{name}: the file ends before byte {offset + done:#x}")
            memory, done = memory[got:], done + got

    with naming(name):
        _through(storage, begin, size, move, to_storage=True)


def write(descriptor: int, name: str, offset: int, storage: torch.UntypedStorage) -> None:
    """Write a storage's bytes to a file. Raises OSError."""

    def move(memory: memoryview, done: int) -> None:
        while memory:
            put = os.pwrite(descriptor, memory, offset + done)
            memory, done = memory[put:], done + put

    with naming(name):
        _through(storage, 0, storage.nbytes(), move, to_storage=False)


def _through(storage: torch.UntypedStorage, begin: int, size: int, move: Move, *, to_storage: bool) -> None:
    if storage.device.type != "cpu":
        _staged_copy(storage, begin, size, move, to_storage=to_storage)
        return
    memory = _torch.bytes_of(storage)[begin : begin + size]
    for at in range(0, size, PIECE):
        move(memory[at : at + PIECE], at)


def _staged_copy(
    storage: torch.UntypedStorage, begin: int, size: int, move: Move, *, to_storage: bool
) -> None:
    """Move bytes between a file and a device, by two pieces of pinned memory.

    While one is on its way to the device the other is filled from the file.
    """
    pieces = [_Piece(min(size, PIECE), storage.device) for _ in range(min(2, -(-size // PIECE)))]
    with driver.ready(storage.device), _all_done(pieces):
        for number, at in enumerate(range(0, size, PIECE)):
            piece = pieces[number % 2]
            step = min(size - at, PIECE)
            there = tensor_over(storage, torch.uint8, begin + at, (step,), (1,), False, False, False)
            if to_storage:
                piece.wait()
                move(piece.memory[:step], at)
                there.copy_(piece.tensor[:step], non_blocking=True)
                piece.note()
            else:
                piece.tensor[:step].copy_(there)
                move(piece.memory[:step], at)


@contextlib.contextmanager
def _all_done(pieces: Sequence[_Piece]) -> Iterator[None]:
    """Wait for what a block gives the device to do, also where it ends early.

    The storage may be somebody else's memory next, on another stream.
    """
    try:
        try:
            yield
        finally:
            for piece in pieces:
                piece.wait()
    except RuntimeError:  # of CUDA: who knows what still reads them, and whether they can be given back
        for piece in pieces:
            pinned_ring.keep_for_good(piece.tensor)
        raise


class _Piece:
    """Memory of the host, and what was last done with it."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.tensor = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=self._on_gpu)
        self.memory = _torch.bytes_of(_torch.untyped_of(self.tensor))[:size]
        self._event = torch.cuda.Event() if self._on_gpu else None

    def note(self) -> None:
        """Remember the work that was given to the device."""
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """Wait until that is done."""
        if self._event is not None:
            self._event.synchronize()
