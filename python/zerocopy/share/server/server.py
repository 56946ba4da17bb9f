"""The model server: a process that keeps results and hands out their descriptors.

It has no torch, runs nothing of its clients' and unpickles nothing. One thread waits for all sockets at once:

    client ── load ──→ server ── ready, descriptors ──→ client            what is there
    client ── load ──→ absent ── compute, call ──→ server                 what is not
                                    └─ starts a loader ── published, descriptors ──→ server ──→ all who wait for it
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import resource
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from zerocopy.share.errors import ServerError
from zerocopy.share.server.entries import Entries
from zerocopy.share.server.loads import Loads
from zerocopy.share.settings import Settings
from zerocopy.share.wire import file_identity, messages, sockets
from zerocopy.share.wire.connections import Connection
from zerocopy.share.wire.versions import why_not

_log = logging.getLogger("zerocopy")

_MAX_CONNECTIONS = 1024
#: A frame that has begun has to end in so many seconds.
_FRAME_TIME = 10.0
_SHORTEST_KEY = 6  # characters that name a result by its key
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15


class Server:
    """The state that all clients of one socket share."""

    def __init__(self, listener: socket.socket, settings: Settings) -> None:
        self._listener, self._settings = listener, settings
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._connections: dict[Connection, None] = {}  # those idle for longest come first
        self.entries = Entries(settings.max_bytes)
        self._loads = Loads(self._selector, self.entries)
        self._started = time.time()
        self._last = time.monotonic()
        self._is_ending = False
        self._namespace = file_identity.namespace()

    def run(self) -> None:
        """Serve, until it is told to end or nothing has happened for long."""
        while not self._is_ending:
            for event, mask in self._selector.select(self._patience()):
                event.data(mask)
            self._loads.expire()
            self._drop_slow()
            self._is_ending |= self._is_idle()

    def close(self) -> None:
        """End all workers and connections. Clients then ask another server, so no socket may lead to this one."""
        self._loads.end()
        for connection in list(self._connections):
            self._drop(connection)

    def end(self) -> None:
        """Have it end."""
        self._is_ending = True

    def _patience(self) -> float:
        is_busy = self._loads or any(not connection.is_idle for connection in self._connections)
        return min(0.2 if is_busy else 5.0, self._settings.idle)

    def _is_idle(self) -> bool:
        if time.monotonic() - self._last <= self._settings.idle:
            return False
        if self._loads or any(entry.leases.are_held() for entry in self.entries):
            self._last = time.monotonic()
            return False
        return True

    # -------------------------------------------------------------------------------- connections

    def _accept(self, _: int) -> None:
        try:
            peer, _address = self._listener.accept()
        except OSError:  # the client has gone again, or this process has no descriptor left
            self._drop_idlest()
            return
        try:
            pid = sockets.require_same_user(peer)
        except (ServerError, OSError):
            peer.close()
            return
        if len(self._connections) >= _MAX_CONNECTIONS:
            self._drop_idlest()
        peer.setblocking(False)
        connection = Connection(peer, pid, self._selector)
        self._connections[connection] = None
        self._selector.register(peer, selectors.EVENT_READ, lambda mask: self._serve(connection, mask))

    def _serve(self, connection: Connection, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                connection.flush()
            if not mask & selectors.EVENT_READ:
                return
            if not connection.read():
                self._drop(connection)
                return
            for message in connection.messages():
                self._connections[connection] = self._connections.pop(connection)  # it is idle for least
                try:
                    self._answer(connection, message.body, message.descriptors)
                finally:
                    message.close()
        except Exception as error:  # whatever a client has sent, it costs that client alone
            _log.debug("model server: %s", error)
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._loads.forget(connection)
            connection.close()

    def _drop_slow(self) -> None:
        deadline = time.monotonic() - _FRAME_TIME
        for connection in list(self._connections):
            if connection.waits_since is not None and connection.waits_since < deadline:
                self._drop(connection)

    def _drop_idlest(self) -> None:
        """Close a connection whose client wants nothing: it makes another when it does."""
        for connection in self._connections:
            if connection.is_idle and not self._loads.waits(connection):
                self._drop(connection)
                return

    # ----------------------------------------------------------------------------------- requests

    def _answer(self, connection: Connection, body: dict[str, Any], descriptors: list[int]) -> None:
        difference = why_not(body)
        if difference and body["op"] != messages.Shutdown.op:
            connection.send(messages.Declined(difference))
            return
        request = messages.of_client(body)
        if not isinstance(request, messages.AskStatus):
            self._last = time.monotonic()
        match request:
            case messages.Load() | messages.Resident():
                if isinstance(request, messages.Load) and request.skip:
                    self.entries.note_not_taken(request.key, request.skip[-1])
                if not self._try_to_answer(connection, request):
                    connection.send(messages.Answer("absent"))
            case messages.Attach():
                self.entries.send(connection, request.id)
            case messages.Keep():
                self.entries.keep_digest(request.id, request.digest)
                connection.send(messages.Answer("kept"))
            case messages.Compute():
                absent, is_near = messages.of_client(request.absent), request.namespace == self._namespace
                if not self._try_to_answer(connection, absent):
                    self._loads.begin(connection, absent.key, request, descriptors, is_near)
            case messages.AskStatus():
                connection.send(self._status(request.entries))
            case messages.Unload():
                connection.send(messages.Unloaded(self._unload(request.key)))
            case messages.Shutdown():
                connection.send(messages.Answer("ending"))
                self.end()

    def _try_to_answer(self, connection: Connection, request: messages.Load | messages.Resident) -> bool:
        """Send the result, or have the client wait for the worker that computes it. False if neither is there."""
        if isinstance(request, messages.Resident):
            return self._try_to_send_resident(connection, request)
        known = {path: None if identity is None else tuple(identity) for path, identity in request.files}
        key, is_near = request.key, request.namespace == self._namespace  # the same files by the same paths
        refusal = self.entries.refusal(key, known) if request.is_strict else None
        if refusal is not None:
            connection.send(refusal.answer)
            return True
        entry = self.entries.find(key, known, is_near, request.skip)
        if entry is None:
            return self._loads.join(connection, key, is_near)
        connection.send(*entry.answer(with_paths=not is_near), holding=entry)
        return True

    def _try_to_send_resident(self, connection: Connection, request: messages.Resident) -> bool:
        entry = self.entries.by_id(request.id)
        if entry is None:
            connection.send(messages.Answer("lost"))
            return True
        there = entry.residents().get(request.device)
        if there is None:
            return self._loads.join(connection, request.key, True)
        connection.send(*there.answer(), holding=there)
        return True

    def _status(self, with_entries: bool) -> messages.Status:
        return messages.Status(
            os.getpid(),
            self._started,
            self.entries.memory,
            self.entries.limit,
            len(self._connections),
            self._loads.names(),
            self._loads.count,
            [entry.description() for entry in self.entries] if with_entries else [],
        )

    def _unload(self, key: str) -> int:
        is_long = len(key) >= _SHORTEST_KEY
        chosen = [
            e for e in self.entries if key in ("*", e.key, e.name) or (is_long and e.key.startswith(key))
        ]
        for entry in chosen:
            self.entries.remove(entry)
        return len(chosen)


def serve(place: Path) -> int:
    """Be the server of a path until it ends; return an exit status: 0 also where another serves there already."""
    sockets.prepare(place)
    with sockets.lock(place) as is_ours:
        if not is_ours:
            return 0
        _harden()
        settings = Settings.of_environment()
        listener = sockets.listen(place)
        own = os.lstat(place)
        server = Server(listener, settings)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: server.end())
        wake = _wake_on_signals(server)
        try:
            server.run()
        finally:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.lstat(place), own):
                    place.unlink()
            listener.close()
            server.close()
            wake.close()
    return 0


def _wake_on_signals(server: Server) -> socket.socket:
    """Have a signal end the waiting for sockets."""
    waiting, woken = socket.socketpair()
    for end in (waiting, woken):
        end.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    server._selector.register(waiting, selectors.EVENT_READ, lambda _: waiting.recv(64))
    return woken


def _harden() -> None:
    """Keep other processes of the user out of this one's descriptors, and have room for many."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_NAME, b"zerocopy-share", 0, 0, 0)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    """Be the server of the path in ``sys.argv``."""
    sys.exit(serve(Path(sys.argv[2])))
