"""Create and check sealed memfds: shared memory that no process can change."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Sequence
from typing import Any

from zerocopy.share.errors import ServerError
from zerocopy.share.wire import file_identity

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_NOEXEC_SEAL = 8  # MFD_NOEXEC_SEAL of Linux 6.3 forbids making the memory executable


def create(name: str) -> int:
    """Return a new memfd, which can be sealed."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _NOEXEC_SEAL)
    except OSError:
        return os.memfd_create(name, flags)


def seal(descriptor: int) -> None:
    """Seal a memfd: no process can change or resize it any more."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)


def sealed(name: str, content: Sequence[Any]) -> int:
    """Return a sealed memfd that contains the buffers in order."""
    descriptor = create(name)
    try:
        for buffer in content:
            write(descriptor, memoryview(buffer).cast("B"))
        seal(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def reserve(descriptor: int, size: int) -> None:
    """Allocate `size` bytes for a memfd. Raise ``OSError`` if the memory is not available."""
    if size:
        os.posix_fallocate(descriptor, 0, size)


def write(descriptor: int, buffer: memoryview, offset: int | None = None) -> None:
    """Write a whole buffer by write(2): a mapping would kill the process (SIGBUS) when memory is full."""
    done = 0
    while done < buffer.nbytes:
        rest = buffer[done:]
        done += os.write(descriptor, rest) if offset is None else os.pwrite(descriptor, rest, offset + done)


def content(descriptor: int) -> bytes:
    """Return all bytes of a memfd."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def environment_of(content: bytes) -> dict[bytes, bytes]:
    """Parse NAME=VALUE strings separated by zero bytes, as in /proc/PID/environ."""
    found = (item.partition(b"=") for item in content.split(b"\0"))
    return {name: value for name, equals, value in found if name and equals}


def require_sealed(descriptor: int, size: int) -> None:
    """Raise ``ServerError`` unless a descriptor is a sealed memfd of at least `size` bytes."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    found = os.fstat(descriptor).st_size
    if seals & SEALS != SEALS or found < size:
        raise ServerError(
            f"expected a sealed memfd of at least {size} bytes, found {found} bytes, seals {seals:#x}"
        )


def require_file(descriptor: int, identity: Sequence[int]) -> None:
    """Raise ``ServerError`` unless a descriptor is the regular file with this identity."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or file_identity.identity(status) != tuple(identity):
        raise ServerError(
            "the model server sent a different file than it announced, or the file has just changed"
        )
