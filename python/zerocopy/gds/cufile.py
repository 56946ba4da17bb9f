"""``torch.cuda.gds``: whether it can be used here, and why not."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from zerocopy.errors import UnsupportedError

#: The types of devices whose memory cuFile takes.
DEVICES = frozenset({"cuda"})

# Where NVIDIA's kernel module shows itself. cuFile 1.17 never returns where CUDA works and this is missing, as in some
# containers.
_KERNEL_DRIVER = Path("/proc/driver/nvidia")


def refusal() -> str:
    """Return why cuFile cannot be used on this machine, or an empty string."""
    try:
        gds = _module()
    except ImportError:
        return f"torch {torch.__version__} has no torch.cuda.gds, which releases since 2.7 have"
    if not torch.cuda.is_available():
        return "torch.cuda.is_available() is False"
    if hasattr(gds, "is_available") and not gds.is_available():
        return "torch was built without GPUDirect Storage"
    if torch.version.cuda and not _KERNEL_DRIVER.exists():
        return f"{_KERNEL_DRIVER} is missing, without which cuFile may wait forever"
    return ""


def _module() -> Any:
    return importlib.import_module("torch.cuda.gds")


def open_file(descriptor: int, name: str, access: int) -> Any:
    """Return ``torch.cuda.gds.GdsFile`` over an open file.

    Raises
    ------
    zerocopy.UnsupportedError
        cuFile cannot be used here, or refuses the file.
    """
    if reason := refusal():
        raise UnsupportedError(f"{name}: {reason}")
    path = f"/proc/self/fd/{descriptor}"
    try:
        # torch's class reports an error that nobody can catch if it cannot open the file.
        os.close(os.open(path, access | os.O_DIRECT))
    except OSError as error:
        raise UnsupportedError(f"{name}: O_DIRECT is refused: {error.strerror}") from None
    try:
        return _module().GdsFile(path, access)
    except RuntimeError as error:
        raise UnsupportedError(f"{name}: {error}") from error


def call(function: str, storage: torch.UntypedStorage) -> None:
    """Call a function of ``torch.cuda.gds`` on a storage. Raises UnsupportedError if cuFile refuses."""
    if storage.device.type not in DEVICES:
        raise UnsupportedError(f"expected memory of a CUDA device for cuFile, got {storage.device}")
    try:
        with ready(storage.device):
            getattr(_module(), function)(storage)
    except RuntimeError as error:
        raise UnsupportedError(str(error)) from error


@contextlib.contextmanager
def ready(device: torch.device) -> Iterator[None]:
    """Select a device for a block, after waiting for the work that it was given before.

    cuFile ignores torch's streams. A kernel that is still running would overwrite what is read, and what it writes
    would be missing in what is saved.
    """
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        torch.cuda.synchronize(device)
        yield
