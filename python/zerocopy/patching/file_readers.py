"""Finds out whether any process reads a file, so that the file must not be overwritten.

The kernel grants a write lease only if no other process has the file open or mapped, whatever its user or container.
It refuses leases on files of another user and on network file systems, and an overlay grants them wrongly. There the
mappings in ``/proc/*/maps`` decide, of the processes that this process may inspect.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

from zerocopy import _core
from zerocopy.saving.mapped_files import identity_of

#: A file system that maps files of another one, so that the kernel grants a lease although the file is mapped.
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
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.path.samestat(os.fstat(int(number)), status):
                flags = fcntl.fcntl(int(number), fcntl.F_GETFL)
                if not flags & os.O_PATH:
                    yield flags & os.O_ACCMODE
        except OSError:  # the descriptor of the listing itself is closed by now
            continue


def _has_other_users(descriptor: int) -> bool | None:
    """Return whether a file is open or mapped anywhere else; None if the kernel does not say.

    The lease ends at once. A process that opens the file meanwhile waits, and this process gets SIGURG, which Python
    ignores by default.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return None if _core.file_system_of_descriptor(descriptor)[0] == _STACKED else False


def _is_mapped(descriptor: int) -> bool:
    """Return whether a file is mapped by this process, or by another that this process may inspect."""
    identity = identity_of(descriptor)
    return identity is not None and any(f" {identity} ".encode() in maps for maps in _all_maps())


def _all_maps() -> Iterator[bytes]:
    """Yield the mappings of each process, as the kernel writes them."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                yield Path(f"/proc/{name}/maps").read_bytes()
            except OSError:  # it has ended, or is another user's
                continue
