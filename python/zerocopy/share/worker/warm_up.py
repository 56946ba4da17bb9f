"""Loads and publishes a small checkpoint in a loader that waits for its call, which then takes less time.

A forked process pays for each page that it touches for the first time. Nobody waits for a loader that was forked
ahead, so it pays for most of them before the call comes.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys

import torch

from zerocopy import patching
from zerocopy.saving.mapped_files import FileExtent, MappedFiles
from zerocopy.share.objects.dedupe import Checksum
from zerocopy.share.objects.publish import publish
from zerocopy.share.wire import sealed_memory
from zerocopy.share.wire.hashes import Hashes
from zerocopy.share.worker import compute, worker


class WarmUp:
    """What a loader warms up with: made in the fork server, used in each loader once.

    Where it fails it does nothing: the call itself will say what is wrong.
    """

    def __init__(self) -> None:
        self._checkpoint = -1
        with contextlib.suppress(Exception):
            content = io.BytesIO()
            torch.save({"weight": torch.empty(1, device="cpu")}, content)
            self._checkpoint = sealed_memory.sealed("zerocopy-warm-up", [content.getbuffer()])

    def run(self) -> None:
        """Load the checkpoint as a call does, and publish it for nobody."""
        worker.seed_numpy()
        # file_tracker.Reading walks through both.
        set(sys.modules)
        importlib.invalidate_caches()
        if self._checkpoint < 0:
            return
        with contextlib.suppress(Exception), MappedFiles() as mapped:
            publish(self._loaded(), mapped, _find, _reserve, compute.can_attach, {}, Hashes()).close()
        os.close(self._checkpoint)

    def _loaded(self) -> object:
        compute.patch_loading()
        try:
            return torch.load(f"/proc/self/fd/{self._checkpoint}", weights_only=True)
        finally:
            patching.unpatch()


def _find(checksums: list[Checksum]) -> list[FileExtent | None]:
    return [None] * len(checksums)


def _reserve(_: int) -> None:
    """Do nothing: nobody counts the memory."""
