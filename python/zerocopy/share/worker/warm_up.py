"""Loads and publishes a small checkpoint in a loader that was forked ahead, before its call comes.

After a fork, the first access to each page takes time. No client waits for that loader yet, so the call itself then
takes less time.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys

import torch

from zerocopy import patching
from zerocopy.saving.mapped_files import MappedFiles
from zerocopy.share.objects.dedupe import find_nothing
from zerocopy.share.objects.publish import publish
from zerocopy.share.wire import sealed_memory
from zerocopy.share.wire.hashes import Hashes
from zerocopy.share.worker import compute, worker


class WarmUp:
    """Prepares a loader for its call. The fork server creates the object, and each loader runs it once."""

    def __init__(self) -> None:
        self._checkpoint = -1
        with contextlib.suppress(Exception):  # as in run()
            content = io.BytesIO()
            torch.save({"weight": torch.empty(1, device="cpu")}, content)
            self._checkpoint = sealed_memory.sealed("zerocopy-warm-up", [content.getbuffer()])

    def run(self) -> None:
        """Warm up. Errors are ignored, because the call itself reports them."""
        worker.seed_numpy()
        # file_tracker.Reading walks through both.
        set(sys.modules)
        importlib.invalidate_caches()
        with contextlib.suppress(Exception):
            self.load_and_publish()
        if self._checkpoint >= 0:
            os.close(self._checkpoint)

    def load_and_publish(self) -> None:
        """Load the checkpoint as a call does, publish the result, and delete it."""
        compute.patch_loading()
        try:
            loaded = torch.load(f"/proc/self/fd/{self._checkpoint}", weights_only=True)
        finally:
            patching.unpatch()
        with MappedFiles() as mapped:
            publish(loaded, mapped, find_nothing, _reserve, compute.can_attach, {}, Hashes()).close()


def _reserve(_: int) -> None:
    """Do nothing, because the server does not count this memory."""
