"""The private names of torch by which processes share CUDA memory; those about loading are in ``_torch``."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch

from zerocopy._torch.private_names import private, private_or_none

Handle = tuple[Any, ...]

_SHARED_MEMORY = Path("/dev/shm")


def allocate_apart() -> None:
    """Have torch's allocator take new memory from the driver in pieces of their own, which every release exports.

    Segments that grow (``expandable_segments`` of ``PYTORCH_CUDA_ALLOC_CONF``) older releases cannot export, and newer
    ones only to who may trace this process.
    """
    for name in ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings"):
        change = private_or_none(f"torch._C.{name}")
        if change is not None:
            change("expandable_segments:False")
            return


def exported(storage: torch.UntypedStorage) -> Handle:
    """Return what others open a CUDA storage by, as long as this process has it. Nothing writes to it now."""
    device, handle, nbytes, offset, counter, place, event, _ = private("torch.UntypedStorage._share_cuda_")(
        storage
    )
    # Torch has receivers count down in a file of shared memory, for a sender that uses its memory again. The holder
    # does not, and is ended in ways that would leave the file; a receiver that finds none leaves it at that.
    with contextlib.suppress(OSError):
        (_SHARED_MEMORY / os.fsdecode(counter).lstrip("/")).unlink()
    return device, handle, nbytes, offset, counter, place, event, False  # no event to wait for


def forget_exported() -> None:
    """Take away what CUDA has put into shared memory for this process, when nobody has what it exported any more.

    CUDA does that itself in a process that ends by exit(). A process that the fork server has forked ends by _exit().
    """
    for path in _SHARED_MEMORY.glob(f"cuda.shm.*.{os.getpid():x}.*"):
        with contextlib.suppress(OSError):
            path.unlink()


def opened(handle: Handle) -> torch.UntypedStorage:
    """Return a storage over another process's CUDA memory."""
    torch.cuda.init()
    found: torch.UntypedStorage = private("torch.UntypedStorage._new_shared_cuda")(*handle)
    return found
