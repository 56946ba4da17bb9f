"""Fuzzes messages to the model server: frames, their descriptors, requests.

An input's first byte says how many descriptors come with the rest, which goes to a server over a socket, in pieces.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import random
import socket
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "support")]

import engine  # noqa: E402
import mutate_bytes  # noqa: E402

from zerocopy.share.errors import FrameError  # noqa: E402
from zerocopy.share.server.server import Server  # noqa: E402
from zerocopy.share.settings import Settings  # noqa: E402
from zerocopy.share.wire import frames, sealed_memory, versions  # noqa: E402
from zerocopy.share.wire.connections import Connection  # noqa: E402

_PIECE = 700
_MAX_DESCRIPTORS = 20


def _request(op: str, **body: Any) -> bytes:
    return frames.encode({"op": op, "versions": versions.own(), **body})


def seeds() -> dict[str, bytes]:
    """Return a request of each kind, and several behind each other."""
    about = {"namespace": [1, 2, 3], "is_strict": False}
    known = [["/tmp/x", [1, 2, 3, 4, 5]], ["/tmp/y", None]]
    load = _request("load", key="k" * 40, files=known, skip=["0123456789abcdef"], **about)
    absent = {"op": "load", "key": "c" * 40, "files": [], "skip": [], **about}
    compute = {"absent": absent, "namespace": [1, 2, 3], "name": "a.b", "python": "/nowhere", "timeout": 2.0}
    requests = {
        "load": b"\0" + load,
        "status": b"\0" + _request("status", entries=True),
        "unload": b"\0" + _request("unload", key="*"),
        "attach": b"\0" + _request("attach", id="0123456789abcdef"),
        "compute": b"\3" + _request("compute", **compute, descriptors=3),
    }
    return requests | {"several": b"\0" + load + requests["status"][1:] + requests["unload"][1:]}


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return frames changed; their lengths are made right again, mostly."""
    body = _changed(data[5:], rng) if rng.random() < 0.7 else mutate_bytes.mutate_bytes(data[5:], rng)
    length = len(body) if rng.random() < 0.8 else rng.choice((0, 1, len(body) + 1, 1 << 20, (1 << 32) - 1))
    first = rng.choice((data[0] if data else 0, 0, 0, 1, 3, 16, 19))
    return bytes([first]) + length.to_bytes(4, "big") + body


_ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3, 2**70, 1.5, "", "*", "k" * 40, "/", [], {}, [[]], [["/", [1]]], "\0", "\ud800",
)  # fmt: skip


def _changed(text: bytes, rng: random.Random) -> bytes:
    """Return JSON with something else in the place of a few values."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return mutate_bytes.mutate_bytes(text, rng)
    for _ in range(rng.randrange(1, 4)):
        inner = body
        while isinstance(inner, (dict, list)) and inner:
            keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
            key = rng.choice(keys)
            if not isinstance(inner[key], (dict, list)) or rng.random() < 0.5:
                inner[key] = copy.deepcopy(rng.choice(_ODD))
                break
            inner = inner[key]
    return json.dumps(body).encode()


@functools.cache
def _server() -> Server:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    listener.bind("")  # a name that nobody knows
    listener.listen()
    return Server(listener, Settings(None, 3600.0))


def check(data: bytes) -> str:
    """Send it all, and see that the server has neither ended nor kept anything."""
    server = _server()
    before = set(_descriptors())
    outcome = _parsed(data[1:])
    ours, theirs = socket.socketpair()
    with ours:
        theirs.setblocking(False)
        connection = Connection(theirs, os.getpid(), server._selector)
        server._connections[connection] = None
        server._selector.register(theirs, 1, lambda mask: server._serve(connection, mask))
        _send(ours, data)
        ours.shutdown(socket.SHUT_WR)
        while connection in server._connections:
            for event, mask in server._selector.select(0):
                event.data(mask)
    server._is_ending = False
    assert not server._loads, "something is being loaded"
    assert set(_descriptors()) <= before, "descriptors are left"
    return outcome


def _parsed(data: bytes) -> str:
    """Take frames apart at once, and piece by piece: that is the same."""
    whole = _messages([data])
    assert whole == _messages([data[i : i + 3] for i in range(0, len(data), 3)])
    return "loaded" if whole else "refused"


def _messages(pieces: list[bytes]) -> list[Any]:
    inbox, found = frames.Inbox(0), []
    with contextlib.suppress(FrameError):
        for piece in pieces:
            inbox.feed(piece)
            found.extend(repr(message.body) for message in inbox.messages())
    return found


def _send(connection: socket.socket, data: bytes) -> None:
    count = data[0] % _MAX_DESCRIPTORS if data else 0
    sent = [sealed_memory.sealed("fuzz", [b"x"]) for _ in range(count)]
    try:
        with contextlib.suppress(BrokenPipeError):
            frames.send_some(connection, data[1 : 1 + _PIECE] or b"\0", sent)
            if len(data) > 1 + _PIECE:
                connection.send(data[1 + _PIECE :])
    finally:
        frames.close_all(sent)


def _descriptors() -> list[str]:
    return [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]  # noqa: PTH110,PTH208


TARGET = engine.Target("share", seeds, mutate, check)

if __name__ == "__main__":
    engine.main(TARGET)
