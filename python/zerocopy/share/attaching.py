"""Rebuilds a result from what the server sent: maps its parts copy-on-write, and builds the object over them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from zerocopy import _C
from zerocopy.share import blueprints, memory
from zerocopy.share.errors import ServerError
from zerocopy.share.frames import Body
from zerocopy.share.publishing import MAGIC


def attach(body: Body, descriptors: Sequence[int], arguments: Sequence[Any] = ()) -> Any:
    """Return a result. Each call gives a new one, whose memory no other sees change.

    Parameters
    ----------
    body : dict
        The server's answer: ``parts``, ``files`` and ``layout``.
    descriptors : sequence of int
        One for each part, and the lease behind them. They stay the caller's.
    arguments : sequence
        What the result may have in it as it is.

    Raises
    ------
    ServerError
        If a descriptor is not what the answer says.
    """
    parts, layout = body["parts"], body["layout"]
    *held, lease = descriptors
    if len(held) != len(parts):
        raise ServerError("the model server sent other descriptors than parts")
    for descriptor, (offset, size, identity) in zip(held, parts, strict=True):
        if identity is None:
            memory.require_sealed(descriptor, offset + size)
        else:
            memory.require_file(descriptor, identity)
    if os.pread(held[0], len(MAGIC), parts[0][0]) != MAGIC:
        raise ServerError("the model server sent memory that it did not fill")
    archive = _C.Archive.open_published(
        [(descriptor, offset, size) for descriptor, (offset, size, _) in zip(held, parts, strict=True)],
        lease,
        layout["table"],
        layout["storages"],
        *layout["pickle"],
    )
    where = layout["skeleton"]
    skeleton = None if where is None else os.pread(held[0], where[1], parts[0][0] + where[0])
    return blueprints.build(archive, skeleton, arguments)
