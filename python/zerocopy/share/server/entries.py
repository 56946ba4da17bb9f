"""Keep results as descriptors, count the clients that hold them, and bound their memory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import secrets
import select
import time
from collections.abc import Iterator
from typing import NamedTuple

from zerocopy.share.conditions.conditions import Conditions
from zerocopy.share.errors import ServerError
from zerocopy.share.wire import file_identity, messages
from zerocopy.share.wire.connections import Connection
from zerocopy.share.wire.frames import Body

Checksum = tuple[int, int]

_MAX_OF_KEY = 16
_MAX_DIGEST = 64
_MAX_REFUSALS = 4096


class Holding:
    """A descriptor that results have in common, closed with the last of them."""

    def __init__(self, descriptor: int, size: int, identity: list[int] | None) -> None:
        self.descriptor, self.size, self.identity = descriptor, size, identity

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)

    @property
    def is_memory(self) -> bool:
        """Return whether it is sealed memory, which costs something, or a file."""
        return self.identity is None


class Leases:
    """Tells whether a client still has what it was given.

    Each gets the writing end of a pipe, which its mappings keep: the reading end hangs up when the last one, in the
    client or in what it forked, is gone. As long as this side has a writing end too nothing can be told, so that is
    closed for the question.
    """

    def __init__(self) -> None:
        self._read, self._write = -1, -1
        self._asked: list[int] = []  # reading ends of pipes that clients may still have

    def descriptor(self) -> int:
        """Return what a client is to be given."""
        if self._write < 0:
            self._read, self._write = os.pipe2(os.O_CLOEXEC)
        return self._write

    def are_held(self) -> bool:
        """Return whether any client has it."""
        if self._write >= 0:
            os.close(self._write)
            self._asked.append(self._read)
            self._read, self._write = -1, -1
        held = [end for end in self._asked if not _hung_up(end)]
        for end in set(self._asked) - set(held):
            os.close(end)
        self._asked = held
        return bool(held)

    def __del__(self) -> None:
        for end in (self._read, self._write, *self._asked):
            with contextlib.suppress(OSError):
                os.close(end)


def _hung_up(end: int) -> bool:
    poll = select.poll()
    poll.register(end, 0)
    return bool(poll.poll(0))


class Resident:
    """A result on a device: the descriptors by which clients open it, and the pipe that keeps its owner alive.

    Parameters
    ----------
    descriptors : list of int
        From the device owner: memory with the handle, the writing end of the pipe, and others. They stay the
        caller's.
    size : int
        Bytes on the device.
    pid : int
        The device owner.
    """

    def __init__(self, descriptors: list[int], size: int, pid: int) -> None:
        self._holdings = [Holding(os.dup(descriptor), 0, None) for descriptor in descriptors]
        self.size, self.pid = size, pid

    @property
    def is_there(self) -> bool:
        """Return whether the device owner is there: only that process has the reading end."""
        return not _hung_up(self._holdings[1].descriptor)

    def answer(self) -> tuple[messages.Answer, list[int]]:
        """Return what a client is sent, and the descriptors along with it."""
        return messages.Answer("resident"), [holding.descriptor for holding in self._holdings]


@dataclasses.dataclass(eq=False)
class Entry:
    """A result."""

    key: str
    name: str
    parts: list[tuple[Holding, int, int]]
    layout: Body
    conditions: Conditions
    seconds: float  # that computing it took
    moved: list[str]  # the generators of random numbers that computing it used
    arguments: list[str] = dataclasses.field(default_factory=list)  # the ids of those that it has in it
    # No other result has it, here or elsewhere.
    id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))
    leases: Leases = dataclasses.field(default_factory=Leases)
    created: float = dataclasses.field(default_factory=time.time)
    used: float = dataclasses.field(default_factory=time.monotonic)
    hits: int = 0
    digest: str = ""  # of a fresh copy
    _residents: dict[str, Resident] = dataclasses.field(default_factory=dict)  # by device

    def hold(self, device: str, resident: Resident) -> None:
        """Have it on a device too, as long as it is kept."""
        self._residents[device] = resident

    def residents(self) -> dict[str, Resident]:
        """Return where it is now, by device."""
        self._residents = {where: there for where, there in self._residents.items() if there.is_there}
        return self._residents

    def answer(self, with_paths: bool = False, is_own: bool = False) -> tuple[messages.Ready, list[int]]:
        """Return what a client is sent, and the descriptors along with it.

        Parameters
        ----------
        with_paths : bool
            Whether the client has to ask for itself whether the paths are what they were.
        is_own : bool
            Whether the result was computed for this client's call.
        """
        parts = [[offset, size, holding.identity] for holding, offset, size in self.parts]
        descriptors = [holding.descriptor for holding, _, _ in self.parts]
        body = self.conditions.as_body() if with_paths else self._body_without_paths
        ready = messages.Ready(
            self.id, parts, self.layout, self.arguments, body, self.moved, self.digest, is_own
        )
        return ready, [*descriptors, self.leases.descriptor()]

    @functools.cached_property
    def _body_without_paths(self) -> Body:
        return self.conditions.without_paths().as_body()

    def description(self) -> Body:
        """Return what ``status`` says of it."""
        return {
            "key": self.key,
            "name": self.name,
            "memory": sum(holding.size for holding, _, _ in self.parts if holding.is_memory),
            "mapped": sum(size for holding, _, size in self.parts if not holding.is_memory),
            "files": sorted(path for path, identity in self.conditions.files.items() if identity),
            "unseen": self.conditions.unseen,
            "resident": {
                where: {"memory": there.size, "pid": there.pid} for where, there in self.residents().items()
            },
            "random": self.moved,
            "attached": self.leases.are_held(),
            "hits": self.hits,
            "created": self.created,
            "used": time.time() - (time.monotonic() - self.used),
            "seconds": self.seconds,
        }


class Refusal(NamedTuple):
    """A call that only the client itself can make, as long as the conditions hold."""

    answer: messages.Declined
    conditions: Conditions


class Entries:
    """All results, within a limit of memory.

    Calls of one key may have several results, which are of different folders, environments or modules.

    Parameters
    ----------
    limit : int or None
        Bytes of sealed memory that results may have together.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._entries: dict[str, list[Entry]] = {}  # of each key, the newest first
        self._contents: dict[Checksum, tuple[Entry, Holding, int]] = {}
        self._refusals: dict[str, Refusal] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter([entry for entries in self._entries.values() for entry in entries])

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def find(self, key: str, known: file_identity.Files, is_near: bool, skip: list[str]) -> Entry | None:
        """Return a result, if the files that it was made of are what they were.

        Parameters
        ----------
        key : str
            Of the call.
        known : dict
            Files as the client has just seen them.
        is_near : bool
            Whether the client sees the same files by the same paths as this process.
        skip : list of str
            Ids of results that the client was sent and did not take.
        """
        for entry in list(self._entries.get(key, ())):
            if entry.id in skip:
                continue
            if is_near and not entry.conditions.files_hold(known):
                self.remove(entry)
                continue
            entry.used = time.monotonic()
            entry.hits += 1
            return entry
        return None

    def note_not_taken(self, key: str, entry_id: str) -> None:
        """Take back the count of one use of a result: a client was sent it, and did not take it."""
        for entry in self._entries.get(key, ()):
            entry.hits -= entry.id == entry_id

    def add(self, entry: Entry, checksums: list[tuple[int, int, int]]) -> None:
        """Keep a result, in the place of an older one that differs in its files only."""
        self._refusals.pop(entry.key, None)
        for older in list(self._entries.get(entry.key, ())):
            if older.conditions.without_paths() == entry.conditions.without_paths():
                self.remove(older)
        of_key = self._entries.setdefault(entry.key, [])
        of_key.insert(0, entry)
        for older in of_key[_MAX_OF_KEY:]:
            self.remove(older)
        holding, begin, _ = entry.parts[0]
        for size, crc, offset in checksums:
            self._contents[size, crc] = entry, holding, begin + offset

    def remove(self, entry: Entry) -> None:
        """Forget a result. Clients that have it keep it."""
        of_key = self._entries.get(entry.key, [])
        if entry in of_key:
            of_key.remove(entry)
        if not of_key:
            self._entries.pop(entry.key, None)
        for checksum in [known for known, (owner, _, _) in self._contents.items() if owner is entry]:
            del self._contents[checksum]

    def refuse(self, key: str, refusal: Refusal) -> None:
        """Remember that only the client itself can make a call."""
        self._refusals.pop(key, None)
        self._refusals[key] = refusal
        while len(self._refusals) > _MAX_REFUSALS:
            del self._refusals[next(iter(self._refusals))]

    def refusal(self, key: str, known: file_identity.Files) -> Refusal | None:
        """Return why only the client itself can make a call; None if it can be tried."""
        found = self._refusals.get(key)
        if found is not None and not found.conditions.files_hold(known):
            found = None
            del self._refusals[key]
        return found

    def by_id(self, wanted: str) -> Entry | None:
        """Return the very result that a client had."""
        return next((entry for entry in self if entry.id == wanted), None)

    def send(self, connection: Connection, wanted: str) -> None:
        """Send the very result that a client or worker had."""
        entry = self.by_id(wanted)
        if entry is None:
            connection.send(messages.Answer("absent"))
        else:
            connection.send(*entry.answer(), holding=entry)

    def keep_digest(self, wanted: str, digest: str) -> None:
        """Keep the digest of a fresh copy of a result."""
        entry = self.by_id(wanted)
        if entry is not None:
            entry.digest = str(digest)[:_MAX_DIGEST]

    def places(self, wanted: list[Checksum]) -> list[tuple[Holding, int] | None]:
        """Return where such bytes may be."""
        found = [self._contents.get((size, crc)) for size, crc in wanted]
        return [None if place is None else place[1:] for place in found]

    @property
    def memory(self) -> int:
        """Bytes of sealed memory that are kept."""
        return sum(size for size in self._holdings().values())

    def _holdings(self, of: set[str] | None = None) -> dict[Holding, int]:
        chosen = [entry for entry in self if of is None or entry.id in of]
        return {
            holding: holding.size for entry in chosen for holding, _, _ in entry.parts if holding.is_memory
        }

    def make_room(self, size: int) -> None:
        """Forget what has not been used for longest, but nothing that clients have, until so much fits.

        ``ServerError`` if it cannot.
        """
        if self.limit is None:
            return
        held = {entry.id for entry in self if entry.leases.are_held()}
        staying = sum(self._holdings(held).values())
        if staying + size > self.limit:  # then nothing is forgotten in vain
            raise ServerError(
                f"{size} bytes do not fit: the model server's limit is {self.limit} (ZEROCOPY_MAX_BYTES), and clients "
                f"hold {staying} of them"
            )
        for entry in sorted(self, key=lambda entry: entry.used):
            if self.memory + size <= self.limit:
                return
            if entry.id not in held:
                self.remove(entry)
