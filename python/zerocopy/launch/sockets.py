"""Listens and connects at a socket of the user's own, and checks the user at the other end.

The socket's folder is its user's alone, and so is the socket; both sides ask the kernel who the other is. A place that
somebody else could have prepared is refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from zerocopy.errors import Error

if TYPE_CHECKING:  # a client of warm starts has no time to import it
    from pathlib import Path

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class UnsafeSocketError(Error, RuntimeError):
    """A socket cannot be used: it is another user's, might be, or cannot be reached."""


def require_private(folder: str | Path) -> None:
    """Raise ``UnsafeSocketError`` unless a folder is this user's, and nobody else's."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise UnsafeSocketError(f"{folder} is not a folder, so it cannot contain a socket")
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise UnsafeSocketError(
            f"{folder} is of user {status.st_uid} and mode {stat.S_IMODE(status.st_mode):o}: the folder of a socket "
            "must be yours alone (mode 700)"
        )


def connect(place: str | Path, timeout: float) -> socket.socket | None:
    """Connect to the server; None where none listens. ``UnsafeSocketError`` where somebody else does, or might."""
    try:
        require_private(os.path.dirname(place))  # noqa: PTH120
        status = os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
        raise UnsafeSocketError(f"{place} is not a socket of yours")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(timeout)
        connection.connect(_address(place))
        require_same_user(connection)
    except OSError as error:
        connection.close()
        if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
            return None
        raise UnsafeSocketError(f"{place}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def listen(place: Path) -> socket.socket:
    """Listen at a path, and replace an old socket there. The caller must hold the lock."""
    require_private(place.parent)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    # Under a name of its own until it listens: whoever finds the socket finds a server.
    fresh = place.with_name(f".{os.getpid()}")
    fresh.unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        listener.bind(_address(fresh))
    finally:
        os.umask(before)
    listener.listen(socket.SOMAXCONN)
    fresh.rename(place)
    return listener


def _address(place: str | Path) -> str:
    address = os.fspath(place)
    if len(os.fsencode(address)) > 107:
        raise UnsafeSocketError(f"{address}: a socket's path has at most 107 bytes")
    return address


def require_same_user(connection: socket.socket) -> int:
    """Return the other side's process; ``UnsafeSocketError`` unless its user is this one's."""
    pid, uid, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    if uid != os.geteuid():
        raise UnsafeSocketError(f"user {uid} is at the other end of the socket")
    return int(pid)


@contextlib.contextmanager
def lock(place: Path) -> Iterator[bool]:
    """Hold the lock of a path within a block, or learn that another does. The file stays: it is what is locked."""
    with place.with_name(f"{place.name}.lock").open("ab") as file:
        os.fchmod(file.fileno(), 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
