"""A ring of page-locked slots, which chunks pass through on their way to a device.

::

    chunk      0  1  2  3  4  5 ...
    slot       a  b  c  a  b  c         threads fill a slot, a stream copies it to the device, then it is reused
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from zerocopy import _torch, environment
from zerocopy._native import _C
from zerocopy.loading import backends
from zerocopy.loading.device import devices

#: Sizes of a ring's blocks, which are allocated when a load needs them: 114 MiB in all. The first block is small,
#: because locking 16 MiB takes ten times as long as copying them.
BLOCKS = (2 << 20, *7 * (16 << 20,))

_PAGE = 4096
_MAX_SLOTS = 8
_DRAINING = 2  # slots that are being copied to the device; threads fill the others


class Ring:
    """Slots for one load at a time. The memory is kept for the next load."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._blocks: list[torch.Tensor] = []

    @property
    def nbytes(self) -> int:
        """Return the bytes of allocated blocks."""
        return sum(_torch.untyped_of(block).nbytes() for block in self._blocks)

    @property
    def is_ours(self) -> bool:
        """Return whether this process made the ring. In a forked child the lock may be held forever."""
        return self._process == os.getpid()

    def copy(self, plan: _C.TransferPlan, device: devices.Cuda, whole: torch.Tensor) -> None:
        """Copy all chunks of `plan` to `whole`, a tensor on the device.

        Afterwards, also after an error, no thread reads the file and no stream writes to the device.
        """
        with self._lock:
            stream = device.stream()
            try:
                plan.start(environment.threads(backends.LOCAL_THREADS))
                self._pass(plan, device, stream, whole)
            except BaseException:
                plan.stop()
                try:
                    stream.close()
                except RuntimeError:
                    # The device may still read from the blocks, so they cannot be used again.
                    self._blocks.clear()
                raise
            plan.stop()
            stream.close()

    def _pass(
        self, plan: _C.TransferPlan, device: devices.Cuda, stream: devices.CudaStream, whole: torch.Tensor
    ) -> None:
        fresh = self._slots(device, plan.slot)
        filling: deque[torch.Tensor] = deque()  # by chunk
        draining: deque[tuple[Any, torch.Tensor]] = deque()
        lent = 0

        def lend(slot: torch.Tensor) -> None:
            nonlocal lent
            if lent < plan.chunks:
                plan.lend(_torch.untyped_of(slot), int(slot.storage_offset()))
                filling.append(slot)
                lent += 1

        for chunk in range(plan.chunks):
            # Threads fill the first slots while the next ones are being locked.
            for slot in islice(fresh, min(2, plan.chunks - lent)):
                lend(slot)
            while draining and (len(draining) > _DRAINING or not filling or draining[0][0].query()):
                event, slot = draining.popleft()
                event.synchronize()
                lend(slot)
            plan.wait(chunk)
            slot = filling.popleft()
            for begin, offset, size in plan.copies(chunk):
                stream.copy(whole[offset : offset + size], slot[begin : begin + size])
            draining.append((stream.record(), slot))

    def _slots(self, device: devices.Cuda, size: int) -> Iterator[torch.Tensor]:
        """Yield slots of `size` bytes. A block is allocated when its first slot is needed."""
        count = 0
        for i, nbytes in enumerate(BLOCKS):
            if i == len(self._blocks):
                try:
                    block = _page_aligned(device, nbytes)
                    if block.is_pinned():
                        keep_for_good(block)
                    self._blocks.append(block)
                except RuntimeError:
                    if count == 0:
                        raise
                    return  # the ring works with fewer slots
            for begin in range(0, nbytes - size + 1, size):
                yield self._blocks[i][begin : begin + size]
                count += 1
                if count == _MAX_SLOTS:
                    return


def _page_aligned(device: devices.Cuda, nbytes: int) -> torch.Tensor:
    """Return a block that begins at a page, as O_DIRECT requires."""
    block = device.block(nbytes)
    if lead := -block.data_ptr() % _PAGE:
        del block
        block = device.block(nbytes + _PAGE)
        lead = -block.data_ptr() % _PAGE
    return block[lead : lead + nbytes]


def keep_for_good(block: torch.Tensor) -> None:
    """Keep page-locked memory until the process ends.

    torch's allocator records a CUDA event when such memory is freed. If CUDA refuses, torch aborts the process. CUDA
    refuses on a broken device and in a forked child. There the memory would be freed when modules are cleared at exit,
    at the latest.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(block))


_rings: dict[type, Ring] = {}


def of(device: devices.Cuda) -> Ring:
    """Return this process's ring for devices of this class."""
    ring = _rings.get(type(device))
    if ring is None or not ring.is_ours:
        ring = _rings[type(device)] = Ring()
    return ring
