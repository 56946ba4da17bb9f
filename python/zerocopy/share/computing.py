"""Runs a call in a loader, and publishes what it returns."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import torch  # noqa: F401  its libraries have to be there before _C is loaded

import zerocopy
from zerocopy import importing
from zerocopy.mapped import MappedFiles, Place
from zerocopy.share import attaching, calls, client, files, frames
from zerocopy.share.errors import ServerError
from zerocopy.share.placing import Checksum
from zerocopy.share.publishing import Published, Publisher
from zerocopy.share.reading import Reading


class LostReference(Exception):
    """An argument is an earlier result that the server does not have any more."""


def compute(connection: socket.socket, about: dict[str, Any], blob: memoryview) -> None:
    """Run a call, and send the server what it returns."""
    client.be_loader()
    calls.apply(about["settings"])
    _map_files()
    session = _Session(connection)
    with Reading(about["files"]) as reading:
        function, args, kwargs = calls.decode(blob, session.resolve)
        result = function(*args, **kwargs)
    with MappedFiles(session.descriptors) as mapped:
        publisher = Publisher(mapped, session.find, session.reserve)
        published = publisher.publish(result, session.arguments, session.works)
        session.send(published, reading, about)


def _map_files() -> None:
    """Have what reads checkpoints map them: what lies in a file's mapping is published as that file."""
    zerocopy.patch()
    importing.when_imported("safetensors", lambda _: zerocopy.patch(safetensors=True))


class _Session:
    """What a loader and the server say to each other."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.arguments: list[Any] = []
        self.descriptors: list[int] = []  # of what was published before, and is mapped here

    def _ask(self, body: dict[str, Any]) -> frames.Message:
        frames.send(self._connection, body)
        return frames.receive(self._connection)

    def resolve(self, wanted: str) -> Any:
        """Return an earlier result."""
        answer = self._ask({"op": "attach", "id": wanted})
        if answer.body.get("state") != "ready":
            raise LostReference(wanted)
        self.descriptors += answer.descriptors[:-1]
        found = attaching.attach(answer.body, answer.descriptors)
        self.arguments.append(found)
        return found

    def find(self, checksums: list[Checksum]) -> list[Place | None]:
        """Return where such bytes were published before."""
        answer = self._ask({"op": "find", "checksums": checksums})
        return [
            None if place is None else Place(answer.descriptors[place[0]], place[1])
            for place in answer.body["places"]
        ]

    def reserve(self, size: int) -> None:
        """Ask for room."""
        why = self._ask({"op": "reserve", "size": size}).body["why"]
        if why is not None:
            raise ServerError(why)

    def works(self, published: Published) -> bool:
        """Return whether the machine can build a result."""
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            body, descriptors = _described(published)
            attaching.attach(body, [*descriptors, writing])
        except Exception:  # whatever it is, Python's unpickler has another way
            return False
        finally:
            os.close(reading)
            os.close(writing)
        return True

    def send(self, published: Published, reading: Reading, about: dict[str, Any]) -> None:
        """Publish."""
        body, descriptors = _described(published)
        found = reading.found()
        body |= {
            "op": "published",
            "cwd": about["cwd"] if about["depends_on_cwd"] or reading.has_relative_paths else None,
            "files": list(found.items()),
            "checksums": published.checksums,
        }
        frames.send(self._connection, body, descriptors)


def _described(published: Published) -> tuple[dict[str, Any], list[int]]:
    descriptors = [part.descriptor for part in published.parts]
    parts = [[part.offset, part.size, _identity_of(part.descriptor)] for part in published.parts]
    return {"parts": parts, "layout": published.layout}, descriptors


def _identity_of(descriptor: int) -> Sequence[int] | None:
    """Return which file it is; of memory that has none: None."""
    status = os.fstat(descriptor)
    return None if status.st_nlink == 0 else files.identity(status)
