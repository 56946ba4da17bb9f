"""Target devices of the staged copy: device memory, page-locked memory, and a stream of copies.

:class:`Cuda` is one. Tests and benchmarks simulate another in host memory (``benchmarks/system/memory_device.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Cuda:
    """A CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return memory of torch's allocator for the device."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def block(self, nbytes: int) -> torch.Tensor:
        """Return page-locked memory, which a stream can copy from asynchronously."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def stream(self) -> CudaStream:
        """Return a CUDA stream that waits for the current one."""
        return CudaStream(self._device)

    def __str__(self) -> str:
        return str(self._device)


class CudaStream:
    """Copies that run one after the other, while the caller continues."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        # Kernels of the current stream may still use memory that the allocator has reused for the target.
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Begin to copy bytes. Neither tensor may be changed before a later event has been reached."""
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def record(self) -> Any:
        """Return the point after the last copy: an event with ``query`` and ``synchronize``."""
        return self._stream.record_event()

    def close(self) -> None:
        """Wait for all copies. Raises the error of a copy that failed."""
        self._stream.synchronize()


#: Devices that the staged copy serves, by the type of torch's device.
KINDS: dict[str, Callable[[torch.device], Any]] = {"cuda": Cuda}
