"""Saves in the background, held where a test wants them."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import pytest
import torch

from zerocopy import _core, _torch
from zerocopy.saving.pickled_object import PickledObject

LARGE = torch.ones(8 << 20, dtype=torch.uint8)
LARGEST = torch.ones(64 << 20, dtype=torch.uint8)


class StoppedWriters:
    """Has every process that writes stopped at its first bytes, until :meth:`go_on`.

    Attributes
    ----------
    processes : list of int
        All of them, in the order of the saves.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.processes: list[int] = []
        begun = self.processes

        class Stopped(_core.ArchiveWriter):
            def begin_in_copy(self, earlier: list[int]) -> int:
                processors = os.sched_getaffinity(0)
                # Both on one: this thread has its turn again long before the other could write LARGEST. Where it may,
                # it keeps its turn.
                os.sched_setaffinity(0, {min(processors)})
                with contextlib.suppress(PermissionError):
                    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
                try:
                    process = super().begin_in_copy(earlier)
                    os.kill(process, signal.SIGSTOP)
                    os.sched_setaffinity(process, processors)
                finally:
                    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
                    os.sched_setaffinity(0, processors)
                begun.append(process)
                return process

        patch.setattr(_core, "ArchiveWriter", Stopped)

    def go_on(self, *numbers: int) -> None:
        """Let the writers of these saves go on; without any, all."""
        for number in numbers or range(len(self.processes)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.processes[number], signal.SIGCONT)


def scribble(obj: Any) -> None:
    """Write to all storages of an object in place."""
    parts = PickledObject(obj)
    for number in range(len(parts.sizes)):
        storage = parts.storage(number)
        if storage.device.type == "cpu" and storage.nbytes():
            content = _torch.bytes_of(storage)
            content[:] = bytes(~byte & 0xFF for byte in content[:64].tolist())[:1] * content.nbytes
