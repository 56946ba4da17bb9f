"""Connections to the server: kept for the next request, by one thread at a time, and not across a fork."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zerocopy.process import interrupts
from zerocopy.share.client import start_server
from zerocopy.share.errors import FrameError, ServerError
from zerocopy.share.wire import frames, messages, sockets, versions
from zerocopy.share.wire.frames import Message

#: Seconds for an answer that takes no computing.
_PATIENCE = 60.0
_MAX_KEPT = 4
_MAX_POLL_MS = (1 << 31) - 1  # milliseconds


class _Kept(NamedTuple):
    """A connection between two requests."""

    place: Path
    connection: socket.socket
    status: os.stat_result
    user: int  # for whom the server answers

    def is_whole(self) -> bool:
        """Return whether its descriptor still is this socket: programs close, and use anew, what they did not open."""
        try:
            return os.path.samestat(os.fstat(self.connection.fileno()), self.status)
        except OSError:
            return False

    def close(self) -> None:
        """Close it, unless its descriptor is the program's."""
        if self.is_whole():
            self.connection.close()
        else:
            self.connection.detach()


class Channels:
    """The connections of this process that nobody uses at the moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[_Kept] = []
        os.register_at_fork(after_in_child=self._forget)

    def take(self, place: Path) -> socket.socket | None:
        """Return one that was kept."""
        with self._lock:
            while self._kept:
                kept = self._kept.pop()
                if kept.place == place and kept.user == os.geteuid() and kept.is_whole():
                    return kept.connection
                kept.close()
        return None

    def keep(self, place: Path, connection: socket.socket) -> None:
        """Keep one for the next request."""
        try:
            kept = _Kept(place, connection, os.fstat(connection.fileno()), os.geteuid())
        except OSError:  # the program has closed it meanwhile
            connection.detach()
            return
        with self._lock:
            if len(self._kept) < _MAX_KEPT:
                self._kept.append(kept)
                return
        connection.close()

    def _forget(self) -> None:
        """Leave to the parent what is the parent's: in the child its descriptors are closed."""
        self._lock = threading.Lock()
        inherited, self._kept = self._kept, []
        for kept in inherited:
            kept.close()


_channels = Channels()


class Exchange:
    """A request and what follows, over one connection that is nobody else's meanwhile.

    Parameters
    ----------
    place : Path
        The server's.
    starts : bool
        Whether a server is started where none is.
    """

    def __init__(self, place: Path, starts: bool = True) -> None:
        self._place, self._starts = place, starts
        self._connection = _channels.take(place) or self._connected()
        self._may_ask_again = True

    @property
    def is_connected(self) -> bool:
        """Return whether there is a server."""
        return self._connection is not None

    def _connected(self) -> socket.socket | None:
        with interrupts.allowed():
            if self._starts:
                return start_server.connected(self._place, _PATIENCE)
            return sockets.connect(self._place, _PATIENCE)

    def ask(self, request: object, descriptors: Sequence[int] = (), timeout: float = _PATIENCE) -> Message:
        """Return the answer, its body as one of the answers in messages.py. ``ServerError`` if none comes."""
        try:
            return self._ask({**vars(request), "versions": versions.own()}, descriptors, timeout)
        except TimeoutError:
            self.close()
            raise ServerError(f"the model server has not answered for {timeout:g} s") from None
        except (FrameError, OSError) as error:
            self.close()
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise ServerError(f"this process cannot ask the model server: {error}") from error
            if not self._may_ask_again:
                raise ServerError(f"the model server went away: {error}") from error
        # The server may have ended, for example because it was idle, and so may a kept connection. Asked again, once.
        self._may_ask_again = False
        self._connection = self._connected()
        if self._connection is None:
            raise ServerError("the model server went away")
        return self.ask(request, descriptors, timeout)

    def _ask(self, body: object, descriptors: Sequence[int], timeout: float) -> Message:
        if self._connection is None:
            raise FrameError("it is not there")
        self._connection.settimeout(timeout)
        frames.send(self._connection, body, descriptors)
        _await(self._connection, timeout)
        answer = frames.receive(self._connection)
        self._may_ask_again = False
        try:
            return answer._replace(body=messages.of_server(answer.body))
        except FrameError:
            answer.close()
            raise

    def process(self) -> int | None:
        """Return a descriptor of the server's process; None where that cannot be seen from here."""
        if self._connection is None:
            return None
        with contextlib.suppress(OSError, ServerError):
            return os.pidfd_open(sockets.require_same_user(self._connection))
        return None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def end(self) -> None:
        """Keep the connection for another request."""
        if self._connection is not None:
            _channels.keep(self._place, self._connection)
            self._connection = None


def _await(connection: socket.socket, timeout: float) -> None:
    """Wait for an answer to begin. ``TimeoutError``."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    with interrupts.allowed():
        if not poll.poll(min(timeout * 1000, _MAX_POLL_MS)):
            raise TimeoutError


def ask_if_there(request: object) -> Message | None:
    """Return the server's answer, or None without a server."""
    exchange = Exchange(sockets.path(), starts=False)
    if not exchange.is_connected:
        return None
    try:
        answer = exchange.ask(request)
    except ServerError:
        if sockets.connect(sockets.path(), 1) is None:
            return None
        raise
    exchange.end()
    return answer


def require(answer: Any, state: str) -> None:
    """Raise ``ServerError`` with the server's reason, unless its answer has this state."""
    if answer.state != state:
        reason = getattr(
            answer, "why", f"expected the answer {state!r} of the model server, found {answer.state!r}"
        )
        raise ServerError(str(reason))


def end_server() -> bool:
    """End the server and wait for it. Return whether there was one."""
    place = sockets.path()
    exchange = Exchange(place, starts=False)
    if not exchange.is_connected:
        return False
    deadline = time.monotonic() + _PATIENCE
    process = exchange.process()
    with contextlib.suppress(ServerError):
        exchange.ask(messages.Shutdown())
    exchange.close()
    if process is not None:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        poll.poll(max(deadline - time.monotonic(), 0) * 1000)
        os.close(process)
    while is_locked(place):
        if time.monotonic() > deadline:
            raise ServerError("the model server did not stop in time")
        time.sleep(0.005)
    return True


def is_locked(place: Path) -> bool:
    """Return whether a server has the lock of a path."""
    if not place.with_name(f"{place.name}.lock").exists():
        return False
    with sockets.lock(place) as is_ours:
        return not is_ours
