"""Memory that processes share, in place of a GPU's: a memfd, whose descriptor stands for the handle.

The holder is another process and imports this, so what it does wrong are classes.
"""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Sequence
from typing import Any

import torch
from equality import untyped

from benchmarks.system.memory_device import MemoryDevice

HANDLE = "a handle"


class Memfd(MemoryDevice):
    """Storages that torch tags as CPU."""

    @staticmethod
    def find(device: torch.device) -> torch.device:
        return device

    def allocate(self, nbytes: int) -> torch.Tensor:
        self.descriptor = os.memfd_create("resident simulated")
        os.ftruncate(self.descriptor, nbytes)
        return _mapped(self.descriptor) if nbytes else torch.empty(0, dtype=torch.uint8)

    def export(self, whole: torch.UntypedStorage) -> tuple[Any, list[int]]:
        return (HANDLE, whole.nbytes()), [self.descriptor]

    def forget(self) -> None:
        """Do nothing: the memory of this simulated ends with its process."""

    def open(self, handle: Any, descriptors: Sequence[int]) -> torch.UntypedStorage:
        (descriptor,) = descriptors
        assert handle == (HANDLE, os.fstat(descriptor).st_size)
        return untyped(_mapped(descriptor))


def _mapped(descriptor: int) -> torch.Tensor:
    return torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)


class Full(Memfd):
    """One that has no room."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("simulated device out of memory")


class Deadly(Memfd):
    """One whose driver brings the process down."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")


class Broken(Memfd):
    """One that fails when all is there."""

    def export(self, whole: torch.UntypedStorage) -> tuple[Any, list[int]]:
        raise RuntimeError("CUDA error: invalid device context")
