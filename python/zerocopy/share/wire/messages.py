"""Messages between clients, the model server, its workers and its fork server: one class for each, read here only.

A message on the wire is the JSON object of its fields (frames.py). ``op`` names the class of a request or report,
``state`` that of an answer. Fields that the class does not have are ignored. A client's requests also have its
``versions``, which are compared before a request is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from zerocopy.share.errors import FrameError
from zerocopy.share.wire.frames import Body

# ------------------------------------------------------------------------- a client to the server


@dataclasses.dataclass
class Load:
    """Asks for a result by its key. `files` are those of the arguments, `skip` results that were not true there."""

    key: str
    files: list[Any]
    namespace: list[int]
    is_strict: bool
    skip: list[str]
    op: str = "load"


@dataclasses.dataclass
class Compute:
    """Asks for a worker. Descriptors: a :class:`Call` or :class:`Residence`, the environment, parts of the call.

    Attributes
    ----------
    absent : dict
        The body of the :class:`Load` or :class:`Resident` to which the answer was "absent". The server looks again,
        because another client's worker may have ended since.
    """

    absent: Body
    name: str
    namespace: list[int]
    timeout: float
    python: str
    op: str = "compute"


@dataclasses.dataclass
class Attach:
    """Asks for one result, which the client or worker had before."""

    id: str
    op: str = "attach"


@dataclasses.dataclass
class Keep:
    """Brings the digest of a fresh copy of a result, by which other clients see that theirs is unchanged."""

    id: str
    digest: str
    op: str = "keep"


@dataclasses.dataclass
class Resident:
    """Asks for the copy of a result on a device. `key` is that of bringing it there."""

    id: str
    device: str
    key: str
    op: str = "resident"


@dataclasses.dataclass
class AskStatus:
    """Asks what the server keeps."""

    entries: bool = True
    op: str = "status"


@dataclasses.dataclass
class Unload:
    """Has results forgotten."""

    key: str
    op: str = "unload"


@dataclasses.dataclass
class Shutdown:
    """Ends the server."""

    op: str = "shutdown"


# ------------------------------------------------------------------------- a worker to the server


@dataclasses.dataclass
class Find:
    """Asks where bytes of these sizes and checksums were published."""

    checksums: list[Any]
    op: str = "find"


@dataclasses.dataclass
class Reserve:
    """Asks for room for a result."""

    size: int
    op: str = "reserve"


@dataclasses.dataclass
class Published:
    """Brings a result: a descriptor for each part."""

    parts: list[Any]
    layout: Body
    conditions: Body
    moved: list[str]
    checksums: list[Any]
    arguments: list[str]
    op: str = "published"


@dataclasses.dataclass
class Here:
    """Reports that only the client itself can make the call, as long as the conditions hold."""

    state: str
    why: str
    conditions: Body
    op: str = "here"


@dataclasses.dataclass
class Held:
    """Reports that a process holds a result on a device."""

    id: str
    device: str
    size: int
    pid: int
    op: str = "held"


@dataclasses.dataclass
class Failed:
    """Reports the exception of a call, which is in the descriptor."""

    op: str = "failed"


@dataclasses.dataclass
class Refused:
    """Reports why the call has no result."""

    state: str
    why: str
    op: str = "refused"


# -------------------------------------------------------------------- the server and its fork server


@dataclasses.dataclass
class Fork:
    """Asks for a worker; its descriptors are output, socket, and those of :class:`Compute`."""

    number: int
    client: int  # its process


@dataclasses.dataclass
class Forked:
    """Reports that a worker was forked."""

    number: int
    pid: int
    op: str = "forked"


@dataclasses.dataclass
class Ended:
    """Reports that a worker has ended."""

    number: int
    status: int
    op: str = "ended"


# ------------------------------------------------------------------------------------- answers


@dataclasses.dataclass
class Ready:
    """Brings a result: a descriptor for each part, and the lease."""

    id: str
    parts: list[Any]
    layout: Body
    arguments: list[str]
    conditions: Body
    moved: list[str]
    digest: str = ""  # of a fresh copy, if a client has computed it
    is_own: bool = False  # computed for the call of this client
    state: str = "ready"


@dataclasses.dataclass
class Answer:
    """Says "absent", "lost", "ending", "kept", "reserved"; with descriptors "resident", "failed" and the exception."""

    state: str


@dataclasses.dataclass
class Declined:
    """Says why the call has no result: "refused"; "moved", "unsupported" if only the client can call."""

    why: str
    state: str = "refused"


@dataclasses.dataclass
class Places:
    """Says which descriptor and offset have the bytes of each checksum."""

    places: list[Any]
    state: str = "places"


@dataclasses.dataclass
class Status:
    """Says what the server keeps: as :func:`zerocopy.share.status`."""

    pid: int
    started: float
    memory: int
    max_bytes: int | None
    connections: int
    loading: list[str]
    loaded: int
    entries: list[Body]
    state: str = "status"


@dataclasses.dataclass
class Unloaded:
    """Says how many results were forgotten."""

    count: int
    state: str = "unloaded"


# ------------------------------------------------------------- a client to a worker, as pickles


@dataclasses.dataclass
class Process:
    """The folder, paths and arguments of a client, with which its worker runs."""

    path: list[str]
    argv: list[str]
    cwd: str


@dataclasses.dataclass
class Call(Process):
    """A call: with descriptors the parts that the layout tells of, as (offset, size, descriptor or origin)."""

    name: str
    files: dict[str, Any]
    state: dict[str, Any]
    torchs_globals: list[tuple[str, str]]
    generators: dict[str, bytes] | None
    is_strict: bool
    parts: list[tuple[int, int, Any]]
    layout: Body


@dataclasses.dataclass
class Residence(Process):
    """A result to be held on a device. `kind` is the pickle of the class that does it."""

    id: str
    device: str
    kind: bytes


# ------------------------------------------------------------------------------------- reading

_OF_CLIENT = {kind.op: kind for kind in (Load, Compute, Attach, Keep, Resident, AskStatus, Unload, Shutdown)}
_OF_WORKER = {kind.op: kind for kind in (Find, Reserve, Attach, Published, Here, Held, Failed, Refused)}
_OF_FORK_SERVER = {kind.op: kind for kind in (Forked, Ended)}
_OF_SERVER = {
    **{kind.state: kind for kind in (Ready, Places, Status, Unloaded)},
    **dict.fromkeys(("absent", "lost", "ending", "kept", "reserved", "resident", "failed"), Answer),
    **dict.fromkeys(("refused", "moved", "unsupported"), Declined),
}


def of_client(body: Body) -> Any:
    """Return a client's request. ``FrameError`` for anything else."""
    return _read(body, "op", _OF_CLIENT)


def of_worker(body: Body) -> Any:
    """Return a worker's request or report. ``FrameError`` for anything else."""
    return _read(body, "op", _OF_WORKER)


def of_fork_server(body: Body) -> Any:
    """Return a fork server's report. ``FrameError`` for anything else."""
    return _read(body, "op", _OF_FORK_SERVER)


def of_server(body: Body) -> Any:
    """Return an answer of the server. ``FrameError`` for anything else."""
    return _read(body, "state", _OF_SERVER)


def _read(body: Body, tag: str, kinds: Mapping[str, Any]) -> Any:
    kind = kinds.get(str(body.get(tag)))
    if kind is None:
        raise FrameError(f"expected {tag} to be one of {', '.join(kinds)}, found {body.get(tag)!r:.50}")
    try:
        return kind(**{name: body[name] for name in kind.__dataclass_fields__ if name in body})
    except TypeError as error:
        raise FrameError(f"expected all fields of {kind.__name__}: {error}") from None
