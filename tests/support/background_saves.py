"""Saves in the background, held where a test wants them."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from zerocopy import Saving, _core, _torch
from zerocopy.saving import saves_under_way
from zerocopy.saving.pickled_object import PickledObject

LARGE = torch.ones(8 << 20, dtype=torch.uint8)
LARGEST = torch.ones(64 << 20, dtype=torch.uint8)


class StoppedWriters:
    """Has every process that writes stopped at its first bytes, until :meth:`go_on`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._begun: list[int] = []
        begun = self._begun

        class Stopped(_core.PlannedSave):
            def begin_in_copy(self) -> None:
                processors = os.sched_getaffinity(0)
                # Both on one: this thread has its turn again long before the other could write LARGEST. Where it may,
                # it keeps its turn.
                os.sched_setaffinity(0, {min(processors)})
                with contextlib.suppress(PermissionError):
                    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
                try:
                    super().begin_in_copy()
                    assert self.process is not None
                    os.kill(self.process, signal.SIGSTOP)
                    os.sched_setaffinity(self.process, processors)
                finally:
                    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
                    os.sched_setaffinity(0, processors)
                begun.append(self.process)

        patch.setattr(_core, "PlannedSave", Stopped)

    def go_on(self, *savings: Saving) -> None:
        """Let the writers of these go on; without any, all."""
        for process in [process_of(saving) for saving in savings] or list(self._begun):
            self._begun.remove(process)
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def process_of(saving: Saving) -> int:
    """Return the process that writes."""
    found = (job for job in saves_under_way.everywhere() if job.saving is saving)  # type: ignore[attr-defined]
    process: int = next(found)._process
    return process


def without_unnamed_files() -> object:
    """Return an ``os`` that makes no files without a name."""

    class Os:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        @staticmethod
        def open(path: Path, flags: int, mode: int = 0o777) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "not here")
            return os.open(path, flags, mode)

    return Os()


def scribble(obj: Any) -> None:
    """Write to all storages of an object in place."""
    parts = PickledObject(obj)
    for number in range(len(parts.sizes)):
        storage = parts.storage(number)
        if storage.device.type == "cpu" and storage.nbytes():
            content = _torch.bytes_of(storage)
            content[:] = bytes(~byte & 0xFF for byte in content[:64].tolist())[:1] * content.nbytes
