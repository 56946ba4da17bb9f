"""The loaders that run, as the server sees them: who waits for each, what it says, and how it ends."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import selectors
import signal
import socket
import subprocess
import time
from typing import Any

from zerocopy.share.conditions.conditions import Conditions
from zerocopy.share.errors import FrameError, ServerError
from zerocopy.share.server.entries import Entries, Entry, Holding, Refusal, Resident
from zerocopy.share.server.fork_server_handle import ForkServer
from zerocopy.share.wire import frames, messages, sealed_memory
from zerocopy.share.wire.connections import Connection

_KEPT_OUTPUT = 1 << 14
#: Seconds that a fork server is kept without a worker.
_FORK_SERVER_IDLE = 300.0


@dataclasses.dataclass(eq=False)
class Load:
    """A loader process."""

    number: int
    key: str
    name: str
    fork_server: ForkServer
    connection: Connection
    timeout: float
    client: Connection  # whose call it is
    waiting: dict[Connection, bool]  # and whether each sees the same files as the server
    pid: int | None = None  # until it is forked
    begun: float = dataclasses.field(default_factory=time.monotonic)
    output: collections.deque[bytes] = dataclasses.field(default_factory=collections.deque)
    is_over: bool = False
    is_device_owner: bool = False  # it goes on by itself, as long as clients use the memory

    def printed(self) -> str:
        """Return the end of what it printed."""
        return b"".join(self.output).decode(errors="replace")[-2000:].strip()


class Loads:
    """All loaders that run."""

    def __init__(self, selector: selectors.BaseSelector, entries: Entries) -> None:
        self._selector, self._entries = selector, entries
        self._loads: dict[str, Load] = {}
        self._processes: dict[int, Load] = {}  # by number, until they are reaped
        self._fork_server: ForkServer | None = None
        self._retired: list[ForkServer] = []
        self.count = 0

    def __bool__(self) -> bool:
        return bool(self._loads)

    def names(self) -> list[str]:
        """Return what is being loaded."""
        return [load.name for load in self._loads.values()]

    def waits(self, connection: Connection) -> bool:
        """Return whether a client waits for a loader."""
        return any(connection in load.waiting for load in self._loads.values())

    def join(self, connection: Connection, key: str, is_near: bool) -> bool:
        """Have a client wait for a result that is being computed; False if none is."""
        load = self._loads.get(key)
        if load is None:
            return False
        load.waiting[connection] = is_near
        return True

    def forget(self, connection: Connection) -> None:
        """Answer a client no more. The loader goes on: its result will be asked for again."""
        for load in self._loads.values():
            load.waiting.pop(connection, None)

    def begin(
        self,
        connection: Connection,
        key: str,
        request: messages.Compute,
        descriptors: list[int],
        is_near: bool,
    ) -> None:
        """Start a loader. There must be none for that key."""
        try:
            load = self._start(connection, key, request, descriptors, is_near)
        except (OSError, FrameError, subprocess.SubprocessError) as error:
            connection.send(messages.Declined(f"no loader could be started: {error}"))
        else:
            self._loads[load.key] = load

    def _start(
        self, client: Connection, key: str, request: messages.Compute, call: list[int], is_near: bool
    ) -> Load:
        name, timeout = str(request.name), float(request.timeout)
        fork_server = self._fork_server_for(str(request.python), sealed_memory.content(call[1]))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        reading, writing = os.pipe2(os.O_CLOEXEC)
        self.count += 1
        try:
            fork_server.fork(self.count, client.pid, [writing, theirs.fileno(), *call])
        except BaseException:
            ours.close()
            os.close(reading)
            raise
        finally:
            theirs.close()
            os.close(writing)
        ours.setblocking(False)
        os.set_blocking(reading, False)
        connection = Connection(ours, 0, self._selector, frames.MAX_DESCRIPTORS)
        load = Load(self.count, key, name, fork_server, connection, timeout, client, {client: is_near})
        self._processes[load.number] = load
        self._selector.register(ours, selectors.EVENT_READ, lambda mask: self._hear(load, mask))
        self._selector.register(reading, selectors.EVENT_READ, lambda _: self._overhear(load, reading))
        return load

    def _fork_server_for(self, python: str, content: bytes) -> ForkServer:
        environment = sealed_memory.environment_of(content)
        if self._fork_server is None or not self._fork_server.suits(python, environment):
            # A fork server that is not needed any more ends with the last of its workers: see expire().
            self._retired += [self._fork_server] if self._fork_server else []
            self._fork_server = ForkServer(python, environment, self._selector, self._hear_fork_server)
        return self._fork_server

    def _hear_fork_server(self, report: messages.Forked | messages.Ended | None) -> None:
        if isinstance(report, messages.Forked):
            load = self._processes[report.number]
            load.pid = report.pid
            if load.is_over:
                _kill(load)
        elif isinstance(report, messages.Ended):
            self._ended(self._processes.pop(report.number), report.status)
        else:
            for load in [load for load in self._processes.values() if load.fork_server.is_gone]:
                del self._processes[load.number]
                self._fail(load, f"the loader of {load.name} has gone")

    # ------------------------------------------------------------------------- what a loader says

    def _hear(self, load: Load, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                load.connection.flush()
            if mask & selectors.EVENT_READ:
                goes_on = load.connection.read()
                for message in load.connection.messages():
                    with contextlib.closing(message):
                        self._take(load, messages.of_worker(message.body), message.descriptors)
                    if load.is_over:
                        return
                if not goes_on:
                    load.connection.leave()
        except Exception as error:  # the model's own code may have written to its socket
            self._fail(load, f"the loader of {load.name} sent what it should not: {error}")

    def _take(self, load: Load, report: Any, descriptors: list[int]) -> None:
        match report:
            case messages.Find():
                self._find(load, report.checksums)
            case messages.Reserve():
                self._reserve(load, int(report.size))
            case messages.Attach():
                self._entries.send(load.connection, report.id)
            case messages.Published():
                self._publish(load, report, descriptors)
            case messages.Here():
                self._refuse(load, report)
            case messages.Held():
                self._hold(load, report, descriptors)
            case messages.Failed():
                self._finish(load, messages.Answer("failed"), descriptors)
            case messages.Refused(state="lost"):
                self._finish(load, messages.Answer("lost"), [])
            case messages.Refused():
                self._finish(load, messages.Declined(report.why), [])

    def _find(self, load: Load, checksums: list[list[int]]) -> None:
        found = self._entries.places([(size, crc) for size, crc in checksums])
        holdings: dict[Holding, int] = {}
        places: list[list[int] | None] = []
        for place in found:
            if place is None or (place[0] not in holdings and len(holdings) == frames.MAX_DESCRIPTORS):
                places.append(None)
            else:
                places.append([holdings.setdefault(place[0], len(holdings)), place[1]])
        load.connection.send(
            messages.Places(places), [h.descriptor for h in holdings], holding=list(holdings)
        )

    def _reserve(self, load: Load, size: int) -> None:
        try:
            self._entries.make_room(size)
        except ServerError as error:
            load.connection.send(messages.Declined(str(error)))
        else:
            load.connection.send(messages.Answer("reserved"))

    def _publish(self, load: Load, report: messages.Published, descriptors: list[int]) -> None:
        parts = report.parts
        holdings = self._holdings(parts, descriptors)
        entry = Entry(
            load.key,
            load.name,
            [(holding, offset, size) for holding, (offset, size, _) in zip(holdings, parts, strict=True)],
            report.layout,
            Conditions(**report.conditions),
            time.monotonic() - load.begun,
            report.moved,
            report.arguments,
        )
        self._entries.make_room(holdings[0].size)
        self._entries.add(entry, [tuple(row) for row in report.checksums])
        waiting, load.waiting = load.waiting, {}
        for connection, is_near in waiting.items():
            answer, sent = entry.answer(with_paths=not is_near, is_own=connection is load.client)
            self._tell(connection, answer, sent, holding=entry)
        self._end(load)

    def _refuse(self, load: Load, report: messages.Here) -> None:
        answer = messages.Declined(str(report.why), report.state)
        self._entries.refuse(load.key, Refusal(answer, Conditions(**report.conditions)))
        self._finish(load, answer, [])

    def _hold(self, load: Load, report: messages.Held, descriptors: list[int]) -> None:
        entry = self._entries.by_id(report.id)
        if entry is None:
            self._finish(load, messages.Answer("lost"), [])
            return
        resident = Resident(descriptors, int(report.size), int(report.pid))
        entry.hold(report.device, resident)
        load.is_device_owner = True
        waiting, load.waiting = load.waiting, {}
        for connection in waiting:
            self._tell(connection, *resident.answer(), holding=resident)
        self._end(load)

    def _holdings(self, parts: list[Any], descriptors: list[int]) -> list[Holding]:
        """Return what holds the parts: memory that other results have already, by the one that they have."""
        known: dict[tuple[int, int], Holding] = {}
        for entry in self._entries:
            for holding, _, _ in entry.parts:
                status = os.fstat(holding.descriptor)
                known[status.st_dev, status.st_ino] = holding
        holdings: list[Holding] = []
        for (_, _, identity), descriptor in zip(parts, descriptors, strict=True):
            status = os.fstat(descriptor)
            if identity is None:
                sealed_memory.require_sealed(descriptor, 0)
            shared = known.get((status.st_dev, status.st_ino)) if identity is None else None
            holdings.append(shared or Holding(os.dup(descriptor), status.st_size, identity))
        return holdings

    def _overhear(self, load: Load, reading: int) -> None:
        try:
            data = os.read(reading, 1 << 16)
        except BlockingIOError:
            return
        if not data or load.is_over:
            self._selector.unregister(reading)
            os.close(reading)
            return
        load.output.append(data[-_KEPT_OUTPUT:])
        while sum(map(len, load.output)) > _KEPT_OUTPUT and len(load.output) > 1:
            load.output.popleft()

    # ---------------------------------------------------------------------------------- how it ends

    def _ended(self, load: Load, status: int) -> None:
        if not load.is_over:
            self._hear(load, selectors.EVENT_READ)  # it may have said something before
        if not load.is_over:
            end = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            self._fail(load, f"the loader of {load.name} {end}")

    def expire(self) -> None:
        """End the loaders that take too long, and fork servers that no client needs any more."""
        now = time.monotonic()
        for load in [load for load in self._loads.values() if now > load.begun + load.timeout]:
            self._fail(
                load,
                f"the loader of {load.name} took longer than {load.timeout:g} s (ZEROCOPY_SHARE_TIMEOUT)",
            )
        busy = {load.fork_server for load in self._processes.values() if not load.is_device_owner}
        if self._fork_server is not None and now > self._fork_server.used + _FORK_SERVER_IDLE:
            self._retired.append(self._fork_server)
            self._fork_server = None
        for fork_server in [fork_server for fork_server in self._retired if fork_server not in busy]:
            self._retired.remove(fork_server)
            fork_server.end()

    def end(self) -> None:
        """End all loaders."""
        for load in list(self._loads.values()):
            self._fail(load, "the model server is ending")
        for fork_server in (self._fork_server, *self._retired):
            if fork_server is not None:
                fork_server.end()

    def _fail(self, load: Load, why: str) -> None:
        printed = load.printed()
        self._finish(load, messages.Declined(f"{why}; it printed: {printed}" if printed else why), [])

    def _finish(self, load: Load, answer: object, descriptors: list[int]) -> None:
        waiting, load.waiting = load.waiting, {}
        for connection in waiting:
            self._tell(connection, answer, descriptors)
        self._end(load)

    def _tell(
        self, connection: Connection, answer: object, descriptors: list[int], holding: Any = None
    ) -> None:
        copies = [os.dup(descriptor) for descriptor in descriptors] if holding is None else descriptors
        if holding is None:
            holding = [Holding(copy, 0, None) for copy in copies]
        with contextlib.suppress(OSError, FrameError):  # that one has gone: its own turn to be dropped comes
            connection.send(answer, copies, holding=holding)

    def _end(self, load: Load) -> None:
        if load.is_over:
            return
        load.is_over = True
        self._loads.pop(load.key, None)
        load.connection.close()
        _kill(load)


def _kill(load: Load) -> None:
    """Kill a worker and its children. A device owner ends by itself, when no process uses its memory."""
    if load.pid is not None and not load.is_device_owner:
        for kill in (os.killpg, os.kill):  # it may not have a group of its own yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(load.pid, signal.SIGKILL)
