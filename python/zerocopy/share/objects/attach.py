"""Rebuilds a result from what the server sent: maps its parts copy-on-write, and builds the object over them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from zerocopy._native import _C
from zerocopy.share.errors import ServerError
from zerocopy.share.objects import serialized
from zerocopy.share.objects.publish import MAGIC
from zerocopy.share.wire import sealed_memory
from zerocopy.share.wire.messages import Ready


def attach(
    ready: Ready,
    descriptors: Sequence[int],
    arguments: Sequence[Any] | None = None,
    resolve: Callable[[str], Any] | None = None,
    resident: Callable[[], Any] | None = None,
) -> Any:
    """Return a result. Each call gives a new one, whose memory no other sees change.

    Parameters
    ----------
    ready : Ready
        The server's answer.
    descriptors : sequence of int
        One for each part, and the lease behind them. They stay the caller's.
    arguments : sequence, optional
        Objects that the result may contain unchanged.
    resolve : callable, optional
        Returns them, where they are not given, by their names.
    resident : callable, optional
        Returns the transfer to the device where the result is resident.

    Raises
    ------
    ServerError
        If a descriptor is not what the answer says.
    """
    archive, skeleton = checked(ready, descriptors)
    if arguments is None:
        arguments = [resolve(name) for name in ready.arguments] if resolve else ()
    return serialized.build(archive, skeleton, arguments, resident=resident)


def checked(ready: Ready, descriptors: Sequence[int]) -> tuple[_C.Archive, bytes | None]:
    """Return an answer's archive, and the skeleton if there is one. ``ServerError`` as :func:`attach`."""
    parts = ready.parts
    *held, lease = descriptors
    if len(held) != len(parts):
        raise ServerError(
            f"expected {len(parts)} descriptors of the model server, one for each part, found {len(held)}"
        )
    for descriptor, (offset, size, identity) in zip(held, parts, strict=True):
        if identity is None:
            sealed_memory.require_sealed(descriptor, offset + size)
        else:
            sealed_memory.require_file(descriptor, identity)
    own = [(descriptor, offset, size) for descriptor, (offset, size, _) in zip(held, parts, strict=True)]
    return opened(own, lease, ready.layout)


def opened(
    parts: list[tuple[int, int, int]], lease: int, layout: dict[str, Any]
) -> tuple[_C.Archive, bytes | None]:
    """Return what was published in (descriptor, offset, size): an archive, and the skeleton if there is one."""
    first, begin, _ = parts[0]
    if os.pread(first, len(MAGIC), begin) != MAGIC:
        raise ServerError("the model server sent memory that it did not fill")
    tables = tuple(layout["mappings"]), tuple(layout["storages"]), tuple(layout["pickle"])
    archive = _C.Archive.open_published(parts, lease, *tables)
    where = layout["skeleton"]
    return archive, None if where is None else os.pread(first, where[1], begin + where[0])


def memory_of(ready: Ready, descriptors: Sequence[int]) -> list[tuple[int, int]]:
    """Return which of an answer's descriptors are memory, not files: their parts' numbers, and they."""
    return [
        (number, descriptor)
        for number, ((_, _, identity), descriptor) in enumerate(zip(ready.parts, descriptors, strict=False))
        if identity is None
    ]
