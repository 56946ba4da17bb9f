"""Target devices of the staged copy: device memory, page-locked memory, and a stream of copies.

:class:`Cuda` is a real device. :class:`Memory` simulates one in host memory, with asynchronous copies, so that the
staged copy can be tested and measured without a GPU.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A point in a stream of copies."""

    def query(self) -> bool:
        """Return whether all copies before this point are done."""

    def synchronize(self) -> None:
        """Wait until all copies before this point are done."""


class CopyStream(Protocol):
    """Copies that run one after the other, while the caller continues."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Begin to copy bytes. Neither tensor may be changed before a later event has been reached."""

    def record(self) -> Event:
        """Return the point after the last copy."""

    def close(self) -> None:
        """Wait for all copies. Raises the error of a copy that failed."""


class Device(Protocol):
    """A device that storages are copied to."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return uninitialised bytes on the device."""

    def block(self, nbytes: int) -> torch.Tensor:
        """Return uninitialised bytes in host memory that a stream can copy from asynchronously."""

    def stream(self) -> CopyStream:
        """Return a new stream of copies to the device."""


class Cuda:
    """A CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return memory of torch's allocator for the device."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def block(self, nbytes: int) -> torch.Tensor:
        """Return page-locked memory."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def stream(self) -> CopyStream:
        """Return a CUDA stream that waits for the current one."""
        return _CudaStream(self._device)

    def __str__(self) -> str:
        return str(self._device)


class _CudaStream:
    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        # Kernels of the current stream may still use memory that the allocator has reused for the target.
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def record(self) -> Event:
        return self._stream.record_event()

    def close(self) -> None:
        self._stream.synchronize()


class Memory:
    """A simulated device in host memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return host memory."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    block = allocate

    def stream(self) -> CopyStream:
        """Return a stream whose copies run in a thread."""
        return _MemoryStream(self.move)

    def move(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy bytes in the stream's thread. The stream raises its exception later."""
        # target.copy_ would start OpenMP threads, which spin on processors that fill the next slots.
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel())

    def __str__(self) -> str:
        return str(self._device)


class _MemoryStream:
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
                except BaseException as fault:  # raised at the next synchronisation, as CUDA does
                    self._fault = fault
            task = None  # an idle thread holds no tensor

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._queue.put((target, source))

    def record(self) -> Event:
        reached = threading.Event()
        self._queue.put(reached)
        return _MemoryEvent(self, reached)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self.rethrow()

    def rethrow(self) -> None:
        if self._fault is not None:
            raise self._fault


class _MemoryEvent:
    def __init__(self, stream: _MemoryStream, reached: threading.Event) -> None:
        self._stream, self._reached = stream, reached

    def query(self) -> bool:
        return self._reached.is_set()

    def synchronize(self) -> None:
        self._reached.wait()
        self._stream.rethrow()


#: Devices that the staged copy serves, by the type of torch's device.
KINDS: dict[str, Callable[[torch.device], Device]] = {"cuda": Cuda}
