"""Memory that is shared between processes and can be changed by none of them: sealed memfds."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Sequence
from typing import Any

from zerocopy.share.errors import ServerError
from zerocopy.share.wire import file_identity

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_NOEXEC_SEAL = 8  # of Linux 6.3: it can never be made executable either


def create(name: str) -> int:
    """Return a new memfd, which can be sealed."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _NOEXEC_SEAL)
    except OSError:
        return os.memfd_create(name, flags)


def seal(descriptor: int) -> None:
    """Make a memfd what it is for good."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)


def sealed(name: str, content: Sequence[Any]) -> int:
    """Return a sealed memfd with these buffers one behind the other."""
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
    """Make a memfd as long as that, with memory behind every byte of it, or raise what the system says."""
    if size:
        os.posix_fallocate(descriptor, 0, size)


def write(descriptor: int, buffer: memoryview, offset: int | None = None) -> None:
    """Write all of a buffer, never through a mapping: where memory ends that raises instead of killing."""
    done = 0
    while done < buffer.nbytes:
        rest = buffer[done:]
        done += os.write(descriptor, rest) if offset is None else os.pwrite(descriptor, rest, offset + done)


def content(descriptor: int) -> bytes:
    """Return what is in a memfd."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def environment_of(content: bytes) -> dict[bytes, bytes]:
    """Return the variables that were sent as the kernel keeps them, a zero byte behind each."""
    found = (item.partition(b"=") for item in content.split(b"\0"))
    return {name: value for name, equals, value in found if name and equals}


def require_sealed(descriptor: int, size: int) -> None:
    """Raise ``ServerError`` unless a descriptor is a sealed memfd of so many bytes at least."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if seals & SEALS != SEALS or os.fstat(descriptor).st_size < size:
        raise ServerError("the model server sent memory that is not sealed")


def require_file(descriptor: int, identity: Sequence[int]) -> None:
    """Raise ``ServerError`` unless a descriptor is the regular file that was promised."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or file_identity.identity(status) != tuple(identity):
        raise ServerError(
            "the model server sent a different file than it announced, or the file has just changed"
        )
