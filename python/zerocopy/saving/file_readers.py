"""Finds out whether a process reads a file, so that it must not be overwritten: this one, or another.

The kernel knows: it grants a write lease on a file only to its single user, be the others of another user or in
another container. Where it does not grant leases (to others than the owner, or on a network file system), or not
truthfully, the mappings count of the processes that this one may look at.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

from zerocopy._native import _C
from zerocopy.saving.mapped_files import identity_of

#: Whose mapped files are those of another file system: the kernel grants a lease on what is mapped.
_STACKED = "overlayfs"


def is_read(path: Path) -> bool:
    """Return whether a process maps the file at `path`, or has it open for reading, by whatever name."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return False
        modes = set(_own_modes(status))
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.O_RDONLY in modes:  # a lazy tensor has a descriptor of its file
            return True
        users = None if modes else _has_other_users(descriptor)
        return _is_mapped(descriptor) if users is None else users
    finally:
        os.close(descriptor)


def _own_modes(status: os.stat_result) -> Iterator[int]:
    """Yield how this process has the file with this status open."""
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            if os.path.samestat(os.fstat(int(number)), status):
                flags = fcntl.fcntl(int(number), fcntl.F_GETFL)
                if not flags & os.O_PATH:
                    yield flags & os.O_ACCMODE
        except OSError:  # that of the listing is closed
            continue


def _has_other_users(descriptor: int) -> bool | None:
    """Return whether a file is open or mapped anywhere else; None if the kernel does not say.

    The lease ends at once. Who opens the file meanwhile waits, and this process gets a signal that it ignores.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return None if _C.file_system_of_descriptor(descriptor)[0] == _STACKED else False


def _is_mapped(descriptor: int) -> bool:
    """Return whether this process maps a file, or another that it may look at does."""
    identity = identity_of(descriptor)
    return identity is not None and any(f" {identity} ".encode() in maps for maps in _all_maps())


def _all_maps() -> Iterator[bytes]:
    """Yield the mappings of each process, as the kernel writes them."""
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                yield Path(f"/proc/{name}/maps").read_bytes()
            except OSError:  # it has ended, or is another user's
                continue
