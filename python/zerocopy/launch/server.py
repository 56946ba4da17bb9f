"""The fork server of warm starts: has imported a program's modules, runs nothing else, and forks on request.

It lives in the session of the clients that it serves, so that a child can join its client's process group: Ctrl-C,
Ctrl-Z and the terminal then reach the program as they reach any other.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from zerocopy.launch import child, circumstances, ending, preload, program, queries, records, sockets
from zerocopy.launch.queries import Queries
from zerocopy.launch.request import Request, doubt_of_record, importable_ahead

IDLE_SECONDS = 900.0
MAX_SERVERS = 4
_PATIENCE = 5.0  # seconds to wait for a client's request
_MAX_RESTARTS = 16

Program = Callable[[], object]


def main() -> None:
    """Serve until no more clients come. In a forked child, run the client's program instead."""
    run = _serve()
    if run is not None:
        program.run(run)


def _serve() -> Program | None:
    ending.prepare()
    os.closerange(3, 1 << 16)
    payload = os.read(0, os.fstat(0).st_size)
    request = json.loads(payload)
    record, program_request = records.Record(**request["record"]), Request(*request["request"])
    captured = os.memfd_create("zerocopy-output", os.MFD_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(captured, 1)
    os.dup2(captured, 2)
    environment, ahead = dict(os.environ), importable_ahead(record)
    try:
        with preload.watched(program_request.words) as seen, queries.noted() as asked:
            preload.import_all(ahead, record.foreign, captured)
            if "torch" in sys.modules:
                program.patch_loading(program_request.share)
    except preload.HasEffects as error:
        _exclude(record, error.module, request)
    record = record._replace(
        variables=sorted({*record.variables, *seen}),
        set_by_imports={
            name: os.environ.get(name)
            for name in sorted({*os.environ, *environment})
            if os.environ.get(name) != environment.get(name)
        },
    )
    records.save(record)
    if doubt_of_record(record):
        return None
    if importable_ahead(record) != ahead:
        _begin_again(record, request)
    for number in range(3):
        os.dup2(null, number)
    os.close(captured)
    os.close(null)
    described = circumstances.describe(
        request["path"],
        environment,
        record.variables,
        ahead,
        program_request,
    )
    place = Path(records.socket_of(described))
    with contextlib.ExitStack() as held:
        if not held.enter_context(sockets.lock(place)):
            return None
        _make_room(place)
        ending.note_what_is_loaded()
        preload.settle()
        with sockets.listen(place) as listener:
            server = _Server(listener, held, place, described, record, asked, program_request)
            try:
                return server.run()
            finally:
                server.close()


def _exclude(record: records.Record, module: str, request: dict[str, Any]) -> NoReturn:
    """Start again without a package, because a package cannot be unloaded from this process."""
    excluded = sorted({*record.excluded, module})
    if module in record.excluded or len(excluded) > _MAX_RESTARTS:
        record = record._replace(doubt=f"{module} cannot be imported ahead")
        records.save(record)
        sys.exit()
    record = record._replace(excluded=excluded)
    records.save(record)
    _begin_again(record, request)


def _begin_again(record: records.Record, request: dict[str, Any]) -> NoReturn:
    """Become a new fork server with other imports."""
    payload = json.dumps({**request, "record": record._asdict()}).encode()
    descriptor = os.memfd_create("zerocopy-warm")
    os.write(descriptor, payload)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.dup2(descriptor, 0)
    os.execve(
        sys.executable, [sys.executable, *sys.orig_argv[1:]], circumstances.as_given(request["environment"])
    )


def _make_room(place: Path) -> None:
    """End the least recently used fork servers of this user, so that few remain."""
    from zerocopy.launch import control

    others = sorted(control.status(), key=lambda found: -found["used"])
    for found in others[MAX_SERVERS - 1 :]:
        if found["socket"] != str(place):
            control.stop(found["socket"])


class _Client:
    """A client whose program runs, and the process of that program."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection, self.pid = connection, pid

    def tell(self, body: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it has gone
            sockets.send(self.connection, body)


class _Server:
    def __init__(
        self,
        listener: socket.socket,
        held: contextlib.ExitStack,
        place: Path,
        described: str,
        record: records.Record,
        asked: Queries,
        request: Request,
    ) -> None:
        self._listener, self._held, self._place = listener, held, place
        self._described, self._record, self._ahead = described, record, importable_ahead(record)
        self._clients: dict[int, _Client] = {}
        self._kill = os.killpg if request.is_apart else os.kill  # launchers kill the groups of their ranks
        self._files = preload.Files(asked)
        self._absent = asked.absent
        self._modules = tuple(sys.modules)
        self._started = self._used = time.time()
        self._starts = 0
        self._is_ending = False
        self._handlers = {number: signal.getsignal(number) for number in (signal.SIGCHLD, signal.SIGHUP)}
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        for source in (listener, self._woken):
            self._selector.register(source, selectors.EVENT_READ)
        self._leader: int | None = None
        with contextlib.suppress(OSError):
            self._leader = os.pidfd_open(request.session[0])
            self._selector.register(self._leader, selectors.EVENT_READ)

    def run(self) -> Program | None:
        """Serve; return the program in the child that is to run it."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that it wakes the selector
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the server checks for the session's end itself
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        while self._clients or not self._is_ending:
            ready = [key.fileobj for key, _ in self._selector.select(IDLE_SECONDS)]
            if not ready and not self._clients:
                break
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
                self._reap()
            for source in ready:
                if source == self._leader:
                    self._end_listening()
                elif isinstance(source, socket.socket) and source not in (self._listener, self._woken):
                    self._lose(source)
            if self._listener in ready and not self._is_ending:
                found = self._accept()
                if found is not None:
                    return found
        return None

    def close(self) -> None:
        """Remove the socket, unless this is a child."""
        if not self._is_ending and self._listener.fileno() >= 0:
            self._place.unlink(missing_ok=True)

    def _end_listening(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._place.unlink(missing_ok=True)
            self._selector.unregister(self._listener)
            self._listener.close()
        if self._leader is not None:
            self._selector.unregister(self._leader)
            os.close(self._leader)
            self._leader = None

    def _lose(self, connection: socket.socket) -> None:
        """End the program of a client that has ended, because in a plain start both would be one process."""
        for client in self._clients.values():
            if client.connection is connection:
                with contextlib.suppress(ProcessLookupError):
                    self._kill(client.pid, signal.SIGKILL)
        self._selector.unregister(connection)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
                if pid == 0:
                    return
                client = self._clients.get(pid)
                if os.WIFSTOPPED(status):
                    if client is not None:
                        client.tell({"stopped": os.WSTOPSIG(status)})
                    continue
                if client is not None:
                    client.tell({"ended": os.waitstatus_to_exitcode(status)})
                    self._forget(self._clients.pop(pid))
                self._used = time.time()

    def _forget(self, client: _Client) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(client.connection)
        client.connection.close()
        # If the program has imported more than the last time, its process has started another server for that.
        record = records.load(self._record.program)
        if record is None or doubt_of_record(record) or importable_ahead(record) != self._ahead:
            self._end_listening()

    def _accept(self) -> Program | None:
        connection, _ = self._listener.accept()
        descriptors: list[int] = []
        try:
            sockets.require_same_user(connection)
            connection.settimeout(_PATIENCE)
            # A client waits for this before it sends files, because files sent to a stopped process would stay open.
            sockets.send(connection, {"hello": os.getpid()})
            body, descriptors = sockets.receive(connection)
            if body["op"] == "start":
                return self._start(connection, body, descriptors)
            self._answer(connection, body["op"])
        except Exception as error:
            with contextlib.suppress(Exception):
                sockets.send(connection, {"refused": str(error)})
        sockets.close_all(descriptors)
        connection.close()
        return None

    def _answer(self, connection: socket.socket, op: str) -> None:
        if op == "stop":
            self._end_listening()
        sockets.send(
            connection,
            {
                "pid": os.getpid(),
                "program": self._record.program,
                "modules": len(self._ahead),
                "excluded": self._record.excluded,
                "started": self._started,
                "used": self._used,
                "starts": self._starts,
                "running": sorted(self._clients),
            },
        )

    def _start(
        self, connection: socket.socket, body: dict[str, Any], descriptors: list[int]
    ) -> Program | None:
        """Fork; return the program in the child, None in this process, which keeps the connection."""
        if body["circumstances"] != self._described:
            raise child.Refused("the circumstances are others")
        checked, word = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            os.close(word)
            return self._be_child(connection, body, descriptors, checked)
        os.close(checked)
        with open(word, "wb", buffering=0) as file:
            changed = self._files.changed()  # while the child prepares
            reason = f"{changed} has changed" if changed else ""
            if preload.has_other_threads():
                reason = "a thread runs in the fork server"
            if reason:  # without the go-ahead, the child ends
                self._end_listening()
                raise child.Refused(reason)
            file.write(b"g")
        sockets.close_all(descriptors)
        self._starts += 1
        self._used = time.time()
        self._clients[pid] = _Client(connection, pid)
        self._selector.register(connection, selectors.EVENT_READ)
        return None

    def _be_child(
        self, connection: socket.socket, body: dict[str, Any], descriptors: list[int], checked: int
    ) -> Program:
        try:
            signal.set_wakeup_fd(-1)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            # Closed now: at the end of the blocks its number will belong to one of the client's files.
            self._held.close()
            self._selector.close()
            for source in (self._listener, self._woken, self._waker):
                source.close()
            if self._leader is not None:
                os.close(self._leader)
            for client in self._clients.values():
                client.connection.close()
            connection = child.moved(connection, body)
            known = child.Imported(self._modules, self._absent)
            return child.prepared(connection, body, [checked, *descriptors], self._record, known)
        except BaseException as error:
            with contextlib.suppress(BaseException):
                sockets.send(connection, {"refused": str(error)})
            os._exit(1)
