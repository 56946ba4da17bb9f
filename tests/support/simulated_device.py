"""A device in ordinary memory that counts what it is asked for, and fails where it is told to."""

from __future__ import annotations

import mmap
import threading
import time
import weakref

import torch

from benchmarks.system.memory_device import MemoryDevice


class Pages(mmap.mmap):
    """Memory that goes back to the system, and can be asked whether it has."""


class SimulatedDevice(MemoryDevice):
    """Options and observations of one test are attributes of the class."""

    allocations: list[int]
    blocks: list[int]
    copies: list[tuple[int, int, int]]  # address in the ring, on the device, size
    alive: weakref.WeakSet[Pages]  # what was allocated and is still used
    fails_at: int  # that copy fails
    fault: BaseException
    room: int  # bytes that it has
    delay: float  # seconds a copy

    def allocate(self, nbytes: int) -> torch.Tensor:
        cls = type(self)
        if nbytes > cls.room:
            raise torch.cuda.OutOfMemoryError("simulated device out of memory")
        cls.room -= nbytes
        cls.allocations.append(nbytes)
        pages = Pages(-1, max(nbytes, 1))
        cls.alive.add(pages)
        return torch.frombuffer(pages, dtype=torch.uint8)[:nbytes]

    def block(self, nbytes: int) -> torch.Tensor:
        type(self).blocks.append(nbytes)
        return torch.frombuffer(Pages(-1, nbytes), dtype=torch.uint8)

    def move(self, target: torch.Tensor, source: torch.Tensor) -> None:
        cls = type(self)
        assert threading.current_thread() is not threading.main_thread()
        cls.copies.append((source.data_ptr(), target.data_ptr(), target.numel()))
        if len(cls.copies) == cls.fails_at:
            raise cls.fault
        time.sleep(cls.delay)
        target.copy_(source)


def fresh_simulated_device() -> type[SimulatedDevice]:
    """Return a new class of simulated device, with empty records."""
    state = {
        "allocations": [],
        "blocks": [],
        "copies": [],
        "alive": weakref.WeakSet(),
        "fails_at": 0,
        "fault": RuntimeError("CUDA error: an illegal memory access was encountered"),
        "room": 1 << 40,
        "delay": 0.0,
    }
    return type("FreshDevice", (SimulatedDevice,), state)
