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
from pathlib import Path
from typing import Any

from zerocopy.share import frames, memory
from zerocopy.share.connections import Connection
from zerocopy.share.entries import Entries, Entry, Holding
from zerocopy.share.errors import FrameError, ServerError
from zerocopy.share.frames import Body, Message

_KEPT_OUTPUT = 1 << 14
_ROOT = Path(__file__).resolve().parent.parent.parent
# As the first thing that the interpreter does: the program's own path comes later, with the call.
_BOOT = "import sys; sys.path.append(sys.argv[1]); from zerocopy.share.loader import main; main()"


@dataclasses.dataclass(eq=False)
class Load:
    """A loader process."""

    key: str
    name: str
    process: subprocess.Popen[bytes]
    connection: Connection
    pidfd: int
    deadline: float
    timeout: float
    begun: float = dataclasses.field(default_factory=time.monotonic)
    waiting: dict[Connection, str] = dataclasses.field(default_factory=dict)  # and their folders
    output: collections.deque[bytes] = dataclasses.field(default_factory=collections.deque)
    is_over: bool = False

    def said(self) -> str:
        """Return the end of what it printed."""
        return b"".join(self.output).decode(errors="replace")[-2000:].strip()


class Loads:
    """All loaders that run."""

    def __init__(self, selector: selectors.BaseSelector, entries: Entries) -> None:
        self._selector, self._entries = selector, entries
        self._loads: dict[str, Load] = {}
        self._dying: dict[Load, None] = {}  # killed, and not yet reaped
        self.count = 0

    def __bool__(self) -> bool:
        return bool(self._loads or self._dying)

    def names(self) -> list[str]:
        """Return what is being loaded."""
        return [load.name for load in self._loads.values()]

    def waits(self, connection: Connection) -> bool:
        """Return whether a client waits for a loader."""
        return any(connection in load.waiting for load in self._loads.values())

    def join(self, connection: Connection, key: str, cwd: str) -> bool:
        """Have a client wait for a result that is being computed; False if none is."""
        load = self._loads.get(key)
        if load is None:
            return False
        load.waiting[connection] = cwd
        return True

    def forget(self, connection: Connection) -> None:
        """Answer a client no more. The loader goes on: its result will be asked for again."""
        for load in self._loads.values():
            load.waiting.pop(connection, None)

    def begin(self, connection: Connection, body: Body, descriptors: list[int]) -> None:
        """Start a loader, unless one for the same is running."""
        if self.join(connection, body["key"], body["cwd"]):
            return
        call, environment, *parts = descriptors
        try:
            load = self._start(body, environment, [call, *parts])
        except (OSError, subprocess.SubprocessError) as error:
            connection.send({"state": "refused", "why": f"no loader could be started: {error}"})
            return
        load.waiting[connection] = body["cwd"]
        self._loads[load.key] = load
        self.count += 1

    def _start(self, body: Body, environment: int, call: list[int]) -> Load:
        variables = dict(
            item.split(b"=", 1) for item in memory.content(environment).split(b"\0") if b"=" in item
        )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writing, True)
        passed = [theirs.fileno(), *call]
        try:
            process = subprocess.Popen(
                [body["python"], "-P", "-c", _BOOT, os.fspath(_ROOT), *map(str, passed)],
                env=variables,
                cwd=body["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                pass_fds=passed,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(reading)
            raise
        finally:
            theirs.close()
            os.close(writing)
        ours.setblocking(False)
        connection = Connection(ours, process.pid, self._selector, frames.MOST_DESCRIPTORS)
        timeout = float(body["timeout"])
        load = Load(
            body["key"], str(body["name"]), process, connection, os.pidfd_open(process.pid),
            time.monotonic() + timeout, timeout,
        )  # fmt: skip
        self._selector.register(ours, selectors.EVENT_READ, lambda mask: self._hear(load, mask))
        self._selector.register(load.pidfd, selectors.EVENT_READ, lambda _: self._ended(load))
        self._selector.register(reading, selectors.EVENT_READ, lambda _: self._overhear(load, reading))
        return load

    # ------------------------------------------------------------------------- what a loader says

    def _hear(self, load: Load, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                load.connection.flush()
            if mask & selectors.EVENT_READ:
                goes_on = load.connection.read()
                for message in load.connection.messages():
                    self._take(load, message)
                    if load.is_over:
                        return
                if not goes_on:
                    self._selector.unregister(load.connection.peer)
        except (FrameError, OSError, KeyError, TypeError, ValueError) as error:
            self._fail(load, f"the loader of {load.name} sent what it should not: {error}")

    def _take(self, load: Load, message: Message) -> None:
        body = message.body
        said = body["op"]
        try:
            if said == "find":
                self._find(load, body["checksums"])
            elif said == "reserve":
                self._reserve(load, int(body["size"]))
            elif said == "attach":
                entry = self._entries.by_id(body["id"])
                load.connection.send(*(entry.answer() if entry else ({"state": "absent"}, [])), holding=entry)
            elif said == "published":
                self._publish(load, message)
            elif said == "failed":
                self._finish(load, {"state": "failed", "said": load.said()}, message.descriptors)
            elif said == "refused":
                self._finish(load, {"state": body["state"], "why": body["why"]}, [])
            else:
                raise FrameError(f"no message {said!r}")
        finally:
            message.close()

    def _find(self, load: Load, checksums: list[list[int]]) -> None:
        found = self._entries.places([(size, crc) for size, crc in checksums])
        holdings: dict[Holding, int] = {}
        places: list[list[int] | None] = []
        for place in found:
            if place is None or (place[0] not in holdings and len(holdings) == frames.MOST_DESCRIPTORS):
                places.append(None)
            else:
                places.append([holdings.setdefault(place[0], len(holdings)), place[1]])
        load.connection.send({"places": places}, [h.descriptor for h in holdings], holding=list(holdings))

    def _reserve(self, load: Load, size: int) -> None:
        try:
            self._entries.make_room(size)
        except ServerError as error:
            load.connection.send({"why": str(error)})
        else:
            load.connection.send({"why": None})

    def _publish(self, load: Load, message: Message) -> None:
        body, descriptors = message
        parts = body["parts"]
        holdings = self._holdings(parts, descriptors)
        entry = Entry(
            load.key,
            body["cwd"],
            load.name,
            [(holding, offset, size) for holding, (offset, size, _) in zip(holdings, parts, strict=True)],
            body["layout"],
            {path: None if identity is None else tuple(identity) for path, identity in body["files"]},
            time.monotonic() - load.begun,
            body["arguments"],
        )
        self._entries.make_room(holdings[0].size)
        self._entries.add(entry, [tuple(row) for row in body["checksums"]])
        waiting, load.waiting = load.waiting, {}
        for connection, cwd in waiting.items():
            if entry.cwd in (None, cwd):
                self._tell(connection, *entry.answer(), holding=entry)
            else:  # from there it would have been another
                self._tell(connection, {"state": "absent"}, [])
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
                memory.require_sealed(descriptor, 0)
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

    def _ended(self, load: Load) -> None:
        if not load.is_over:
            self._hear(load, selectors.EVENT_READ)  # it may have said something before
        status = load.process.wait()
        self._selector.unregister(load.pidfd)
        os.close(load.pidfd)
        if not load.is_over:
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            self._fail(load, f"the loader of {load.name} {how}")
        self._dying.pop(load, None)

    def expire(self) -> None:
        """End the loaders that take too long."""
        now = time.monotonic()
        for load in [load for load in self._loads.values() if now > load.deadline]:
            self._fail(
                load,
                f"the loader of {load.name} took longer than {load.timeout:g} s (ZEROCOPY_SHARE_TIMEOUT)",
            )

    def end(self) -> None:
        """End all loaders."""
        for load in list(self._loads.values()):
            self._fail(load, "the model server is ending")
        for load in self._dying:
            load.process.wait()

    def _fail(self, load: Load, why: str) -> None:
        said = load.said()
        self._finish(load, {"state": "refused", "why": f"{why}; it printed: {said}" if said else why}, [])

    def _finish(self, load: Load, body: Body, descriptors: list[int]) -> None:
        waiting, load.waiting = load.waiting, {}
        for connection in waiting:
            self._tell(connection, body, descriptors)
        self._end(load)

    def _tell(self, connection: Connection, body: Body, descriptors: list[int], holding: Any = None) -> None:
        copies = [os.dup(descriptor) for descriptor in descriptors] if holding is None else descriptors
        if holding is None:
            holding = [Holding(copy, 0, None) for copy in copies]
        with contextlib.suppress(OSError, FrameError):  # that one has gone: its own turn to be dropped comes
            connection.send(body, copies, holding=holding)

    def _end(self, load: Load) -> None:
        if load.is_over:
            return
        load.is_over = True
        self._loads.pop(load.key, None)
        load.connection.close()
        if load.process.returncode is None:
            self._dying[load] = None
        # And what it has forked.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(load.process.pid, signal.SIGKILL)
