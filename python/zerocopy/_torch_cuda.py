"""The private names of torch by which processes share CUDA memory; those about loading are in ``_torch``."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch

Handle = tuple[Any, ...]


def exported(storage: torch.UntypedStorage) -> Handle:
    """Return what others open a CUDA storage by, as long as this process has it. Nothing writes to it now."""
    device, handle, nbytes, offset, counter, place, event, _ = storage._share_cuda_()
    # Torch has receivers count down in a file of shared memory, for a sender that uses its memory again. The holder
    # does not, and is ended in ways that would leave the file; a receiver that finds none leaves it at that.
    with contextlib.suppress(OSError):
        Path("/dev/shm", os.fsdecode(counter).lstrip("/")).unlink()
    return device, handle, nbytes, offset, counter, place, event, False  # no event to wait for


def opened(handle: Handle) -> torch.UntypedStorage:
    """Return a storage over another process's CUDA memory."""
    torch.cuda.init()
    found: torch.UntypedStorage = torch.UntypedStorage._new_shared_cuda(*handle)
    return found
