"""Takes the steps of a call without a server when the client is imported, so that the first call need not be slower.

A first call takes three times as long as a second one: caches are empty, Python has not adapted its bytecode yet, and
pages of code and of the heap are touched for the first time. Nobody waits for a model while modules are imported.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator

import torch

from zerocopy.share.client import calls
from zerocopy.share.client.result_references import References
from zerocopy.share.conditions import interrupts
from zerocopy.share.conditions.conditions import Conditions
from zerocopy.share.objects import attach, dedupe, publish, serialized
from zerocopy.share.wire import frames, messages, sockets

# As many as a small model has: their memory stays with the allocator, for the result of the first call.
_TENSORS = 200


@interrupts.deferred()
def warm_up() -> None:
    """Encode a call, and build a result of small tensors that comes by a socket."""
    sockets.path()
    with References(None) as known:
        calls.encode(torch.load, (sys.executable,), {}, known, is_strict=False)
    with _slot_names_as_they_were():
        published = _published()
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe2(os.O_CLOEXEC)
    sent = [part.descriptor for part in published.parts]
    try:
        parts = [[part.offset, part.size, None] for part in published.parts]
        conditions = Conditions(imported=["torch"]).as_body()
        frames.send(theirs, messages.Ready("", parts, published.layout, [], conditions, []), [*sent, writing])
        answer = frames.receive(ours)
        try:
            ready = messages.of_server(answer.body)
            Conditions(**ready.conditions).why_not_here()
            attach.attach(ready, answer.descriptors)
        finally:
            answer.close()
    finally:
        frames.close_all([reading, writing, *sent])
        ours.close()
        theirs.close()


@contextlib.contextmanager
def _slot_names_as_they_were() -> Iterator[None]:
    """Remove what pickling a tensor keeps in its class: an import leaves torch as it was."""
    had = "__slotnames__" in vars(torch.Tensor)
    try:
        yield
    finally:
        if not had and "__slotnames__" in vars(torch.Tensor):
            del torch.Tensor.__slotnames__  # type: ignore[attr-defined]


def _published() -> publish.Published:
    """Return a dictionary of tensors as a worker publishes it."""
    state = {str(number): torch.zeros(1, dtype=torch.uint8, device="cpu") for number in range(_TENSORS)}
    storages = publish.Storages()
    content = serialized.plain_of(state, storages, storages.store)
    assert content is not None, "plain tensors"
    found = [(storage.data_ptr(), storage.nbytes()) for storage in storages.found]
    spans, seats = dedupe.spans_of(found)
    placed = dedupe.Placed(spans, seats, [size for _, size in found], [None] * len(spans), {})
    return publish.write(content, storages, placed)
