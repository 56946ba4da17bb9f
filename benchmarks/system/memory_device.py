"""Simulates a device in host memory, with asynchronous copies, for the staged copy without a GPU."""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable
from typing import Any

import torch


class MemoryDevice:
    """A device in host memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return host memory."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    block = allocate

    def stream(self) -> _MemoryStream:
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

    def record(self) -> _MemoryEvent:
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
