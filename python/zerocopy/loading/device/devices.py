"""The devices that the road leads to, as the road sees them: memory there, memory to copy from, a lane of copies.

:class:`Cuda` is the real one. :class:`Memory` is its twin in ordinary memory, with copies that go on behind the
caller's back as a GPU's do: what the road is tested and measured with where there is no GPU.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Mark(Protocol):
    """A place in a lane."""

    def query(self) -> bool:
        """Return whether all copies before it are done."""

    def synchronize(self) -> None:
        """Wait until they are."""


class Lane(Protocol):
    """Copies that are done one after the other while the caller goes on."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Begin to copy bytes. Both stay untouched until a mark behind this is reached."""

    def mark(self) -> Mark:
        """Return the place behind the last copy."""

    def close(self) -> None:
        """Wait for all copies; afterwards none touches memory. Raises what went wrong with one."""


class Device(Protocol):
    """Where storages are wanted."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return so many bytes there."""

    def block(self, nbytes: int) -> torch.Tensor:
        """Return so many bytes on the CPU that a lane copies from without waiting."""

    def lane(self) -> Lane:
        """Return a lane of copies to there."""


class Cuda:
    """A CUDA device, by what torch's Python side has of it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return device memory, of torch's own allocator."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def block(self, nbytes: int) -> torch.Tensor:
        """Return page-locked memory."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def lane(self) -> Lane:
        """Return a stream beside the current one."""
        return _CudaLane(self._device)

    def __str__(self) -> str:
        return str(self._device)


class _CudaLane:
    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        # The memory that was allocated may have been somebody's who is not yet done with it.
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        return self._stream.record_event()

    def close(self) -> None:
        self._stream.synchronize()


class Memory:
    """Ordinary memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return memory."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    block = allocate

    def lane(self) -> Lane:
        """Return a thread that copies."""
        return _MemoryLane(self.move)

    def move(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy bytes, on the lane's thread. What it raises the lane's caller learns later."""
        # Not by target.copy_: OpenMP's threads would wait, spinning, on processors that fill the next slots.
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel())

    def __str__(self) -> str:
        return str(self._device)


class _MemoryLane:
    def __init__(self, move: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        self._move = move
        self._fault: BaseException | None = None
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="zerocopy.devices", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            if isinstance(task, threading.Event):
                task.set()
            elif self._fault is None:
                try:
                    self._move(*task)
                except BaseException as fault:  # raised where the caller asks, as CUDA's are
                    self._fault = fault
            task = None  # its memory is not held while there is nothing to do

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._queue.put((target, source))

    def mark(self) -> Mark:
        reached = threading.Event()
        self._queue.put(reached)
        return _MemoryMark(self, reached)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self.rethrow()

    def rethrow(self) -> None:
        if self._fault is not None:
            raise self._fault


class _MemoryMark:
    def __init__(self, lane: _MemoryLane, reached: threading.Event) -> None:
        self._lane, self._reached = lane, reached

    def query(self) -> bool:
        return self._reached.is_set()

    def synchronize(self) -> None:
        self._reached.wait()
        self._lane.rethrow()


#: What the road leads to, by the types of torch's devices.
KINDS: dict[str, Callable[[torch.device], Device]] = {"cuda": Cuda}
