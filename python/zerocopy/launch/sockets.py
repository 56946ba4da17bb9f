"""Messages of fork servers and their clients: packets of JSON, with file descriptors attached.

The sockets lie in the folder of warm starts, which :func:`records.folder` has found private. Both sides ask the kernel
who the other is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing it would slow a client of warm starts
    from pathlib import Path

_MOST_DESCRIPTORS = 240  # the kernel takes 253
_LARGEST = 1 << 20  # the kernel takes less
_CUT = int(socket.MSG_CTRUNC | socket.MSG_TRUNC)  # of an enum the first "&" takes 80 µs
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def connect(place: str | Path, timeout: float) -> socket.socket | None:
    """Connect to the server. Return None if no server listens. ``OSError``."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST)
        connection.settimeout(timeout)
        connection.connect(os.fspath(place))
        require_same_user(connection)
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError) and error.errno in (errno.ECONNREFUSED, errno.ENOENT):
            return None
        raise
    return connection


def listen(place: Path) -> socket.socket:
    """Listen at a path, and replace an old socket there. The caller must hold the lock."""
    kind = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    listener = socket.socket(socket.AF_UNIX, kind)
    # The socket has a temporary name until it listens, so a client that finds it finds a server.
    fresh = place.with_name(f".{os.getpid()}")
    fresh.unlink(missing_ok=True)
    listener.bind(os.fspath(fresh))
    listener.listen(socket.SOMAXCONN)
    fresh.rename(place)
    return listener


def require_same_user(connection: socket.socket) -> None:
    """Raise ``PermissionError`` unless the process at the other end has the same user."""
    _, uid, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    if uid != os.geteuid():
        raise PermissionError(f"user {uid} is at the other end of the socket")


def send(connection: socket.socket, body: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message. ``OSError``, also if it is too long."""
    socket.send_fds(connection, [json.dumps(body).encode()], descriptors, socket.MSG_NOSIGNAL)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Wait for a message. Return it with its descriptors, for the caller to own. ``OSError``, also if none comes."""
    text, descriptors, flags, _ = socket.recv_fds(
        connection, _LARGEST, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
    )
    if not text or flags & _CUT:
        close_all(descriptors)
        raise ConnectionError("the connection was closed" if not text else "the message was cut")
    return json.loads(text), descriptors


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


@contextlib.contextmanager
def lock(place: Path) -> Iterator[bool]:
    """Hold the lock of a path within a block. Yield False if another process holds it. The lock file is not removed."""
    with place.with_name(f"{place.name}.lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
