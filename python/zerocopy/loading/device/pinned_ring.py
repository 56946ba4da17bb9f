"""The ring of the staged road: page-locked memory, and the chunks that pass through it.

::

    chunk      0  1  2  3  4  5 ...
    slot       a  b  c  a  b  c         lent to the next chunk, filled by threads, copied away by the device's lane,
                                        lent again when that copy is done
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Iterator
from itertools import islice

import torch

from zerocopy import _torch, environment
from zerocopy._native import _C
from zerocopy.loading import backends
from zerocopy.loading.device import devices

#: Memory of a ring, taken block by block as loads need it: 114 MiB at most. The first is for loads of one tensor or
#: two: to lock 16 MiB takes ten times as long as to copy them.
BLOCKS = (2 << 20, *7 * (16 << 20,))

_PAGE = 4096
_MOST_SLOTS = 8
_LEAVING = 2  # slots that are being copied from; the rest are being filled


class Ring:
    """Slots for one load at a time, kept for the next."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._blocks: list[torch.Tensor] = []

    @property
    def nbytes(self) -> int:
        """How much memory it has taken."""
        return sum(_torch.untyped_of(block).nbytes() for block in self._blocks)

    @property
    def is_ours(self) -> bool:
        """Whether this is not a copy in a forked process, whose lock nobody opens."""
        return self._process == os.getpid()

    def carry(self, haul: _C.Haul, device: devices.Device, whole: torch.Tensor) -> None:
        """Bring the chunks of a haul to `whole`, which lies on the device.

        When this returns, or raises, nothing reads the file or writes to the device any more.
        """
        with self._lock:
            lane = device.lane()
            try:
                haul.start(environment.threads(backends.LOCAL_THREADS))
                self._pass(haul, device, lane, whole)
            except BaseException:
                haul.stop()
                try:
                    lane.close()
                except (
                    RuntimeError
                ):  # the first error again, most likely: who knows what still reads the blocks
                    self._blocks.clear()
                raise
            haul.stop()
            lane.close()

    def _pass(self, haul: _C.Haul, device: devices.Device, lane: devices.Lane, whole: torch.Tensor) -> None:
        fresh = self._slots(device, haul.slot)
        filling: deque[torch.Tensor] = deque()  # by chunk
        leaving: deque[tuple[devices.Mark, torch.Tensor]] = deque()
        lent = 0

        def lend(slot: torch.Tensor) -> None:
            nonlocal lent
            if lent < haul.chunks:
                haul.lend(_torch.untyped_of(slot), int(slot.storage_offset()))
                filling.append(slot)
                lent += 1

        for chunk in range(haul.chunks):
            # The first are filled while the next are being locked.
            for slot in islice(fresh, min(2, haul.chunks - lent)):
                lend(slot)
            while leaving and (len(leaving) > _LEAVING or not filling or leaving[0][0].query()):
                mark, slot = leaving.popleft()
                mark.synchronize()
                lend(slot)
            haul.wait(chunk)
            slot = filling.popleft()
            for begin, place, size in haul.copies(chunk):
                lane.copy(whole[place : place + size], slot[begin : begin + size])
            leaving.append((lane.mark(), slot))

    def _slots(self, device: devices.Device, size: int) -> Iterator[torch.Tensor]:
        """Yield slots of a size, of memory that is taken when its first is wanted."""
        count = 0
        for i, nbytes in enumerate(BLOCKS):
            if i == len(self._blocks):
                try:
                    block = _from_page_border(device, nbytes)
                    if block.is_pinned():
                        keep_for_good(block)
                    self._blocks.append(block)
                except RuntimeError:
                    if count == 0:
                        raise
                    return  # what there is will do
            for begin in range(0, nbytes - size + 1, size):
                yield self._blocks[i][begin : begin + size]
                count += 1
                if count == _MOST_SLOTS:
                    return


def _from_page_border(device: devices.Device, nbytes: int) -> torch.Tensor:
    """Return a block that begins where a page does: O_DIRECT wants that."""
    block = device.block(nbytes)
    if lead := -block.data_ptr() % _PAGE:
        del block
        block = device.block(nbytes + _PAGE)
        lead = -block.data_ptr() % _PAGE
    return block[lead : lead + nbytes]


def keep_for_good(block: torch.Tensor) -> None:
    """Have page-locked memory never given back.

    torch's allocator, which is given back what a stream has copied from, records an event in that stream; where CUDA
    refuses, the process ends there and then. It refuses when the device is broken, and in a child that was forked: at
    the latest when modules are cleared, which would end a program by SIGABRT in place of its own error.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(block))


_rings: dict[type, Ring] = {}


def of(device: devices.Device) -> Ring:
    """Return the process's ring for devices of a kind."""
    ring = _rings.get(type(device))
    if ring is None or not ring.is_ours:
        ring = _rings[type(device)] = Ring()
    return ring
