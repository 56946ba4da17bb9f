"""cuFile of this process: opened when it is first asked for, or the reason why it is not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from zerocopy._native import _C
from zerocopy.errors import UnsupportedError
from zerocopy.process.fork_safe import ForkSafeLock

# By names that the dynamic linker looks up, and where CUDA's own packages put them. No variable of the environment is
# asked.
_CUDA = ["libcuda.so.1"]
_CUFILE = ["libcufile.so.0", "/usr/local/cuda/lib64/libcufile.so.0"]
# Where NVIDIA's kernel module shows itself. libcufile 1.17 waits for ever where CUDA works and this is missing, as in
# some containers.
_KERNEL_DRIVER = "/proc/driver/nvidia"
_IN_PACKAGES = ("nvidia/cufile/lib/libcufile.so.0", "nvidia/cu13/lib/libcufile.so.0")


class Opened(NamedTuple):
    """A driver, and the types of the devices whose memory it takes."""

    driver: _C.GdsDriver
    devices: frozenset[str]


_lock = ForkSafeLock()
_opened: Opened | UnsupportedError | None = None


def opened() -> Opened:
    """Return this process's cuFile. Raises UnsupportedError with the reason where there is none; it stays so."""
    global _opened
    with _lock.held():
        if _opened is None:
            _opened = _open()
    if isinstance(_opened, UnsupportedError):
        raise UnsupportedError(str(_opened))
    return _opened


def refusal() -> str:
    """Return why cuFile cannot be used, or an empty string."""
    try:
        opened()
    except UnsupportedError as error:
        return str(error)
    return ""


def _open() -> Opened | UnsupportedError:
    beside_torch = [str(Path(torch.__file__).parent.parent / name) for name in _IN_PACKAGES]
    try:
        opened = _C.GdsDriver.open(_CUDA, _CUFILE + beside_torch, _KERNEL_DRIVER)
        made = Opened(opened, frozenset({"cuda"}))
    except UnsupportedError as error:
        return error
    os.register_at_fork(after_in_child=lambda: _leave_to_parent(made))
    return made


def _leave_to_parent(made: Opened) -> None:
    """Do without cuFile in a forked process: neither it nor CUDA works there."""
    global _opened
    if _opened is made:
        _opened = UnsupportedError("the parent process opened cuFile, which cannot be used after a fork")


def takes(storage: torch.UntypedStorage) -> bool:
    """Return whether a storage is on a device that cuFile is there for."""
    return storage.device.type in devices()


def devices() -> frozenset[str]:
    """Return the types of the devices to which the way is not that of ordinary memory."""
    found = _opened
    return found.devices if isinstance(found, Opened) else frozenset({"cuda"})


@contextlib.contextmanager
def ready(device: torch.device) -> Iterator[None]:
    """Make a device the current one in a block, when all that was asked of it is done.

    cuFile knows nothing of torch's streams: what a kernel has still to write would be written over what is read, and
    would be missing in what is saved.
    """
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        torch.cuda.synchronize(device)
        yield
