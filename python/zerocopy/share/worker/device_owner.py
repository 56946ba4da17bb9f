"""The device owner: a process that fills an allocation on a device with a result, exports it once, and then waits.

It is a worker that goes on. The server gets the writing end of a pipe from it, and gives that to each client. When the
last of these ends is closed, however its process has ended, no process uses the memory any more, and the owner ends.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import socket

import torch

from zerocopy._native import _C
from zerocopy.loading.device import staging
from zerocopy.share.client import result_references
from zerocopy.share.client.resident import Kind, ResidentPlacement
from zerocopy.share.objects import attach, serialized
from zerocopy.share.wire import frames, messages, sealed_memory

_PR_SET_PDEATHSIG = 1


def hold(connection: socket.socket, info: messages.Residence) -> None:
    """Bring a result to a device, tell the server, and keep it there until nobody has it.

    Parameters
    ----------
    connection : socket.socket
        To the server.
    info : Residence
        The result, and its device.
    """
    device = torch.device(info.device)
    kind: Kind = pickle.loads(info.kind)(device)
    whole = _filled(connection, info.id, kind, device)
    handle, descriptors = kind.export(whole) if whole.nbytes() else (None, [])
    content = sealed_memory.sealed("zerocopy-resident", [pickle.dumps((whole.nbytes(), handle))])
    reading, writing = os.pipe2(os.O_CLOEXEC)
    # From here on it is the pipe that it ends with, not the process that it was forked from.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    report = messages.Held(info.id, info.device, whole.nbytes(), os.getpid())
    frames.send(connection, report, [content, writing, *descriptors])
    connection.close()
    frames.close_all([content, writing])
    _be_silent()
    os.read(reading, 1)
    kind.forget()


def _filled(connection: socket.socket, entry: str, kind: Kind, device: torch.device) -> torch.UntypedStorage:
    """Return the allocation with a result in it."""
    frames.send(connection, messages.Attach(entry))
    answer = frames.receive(connection)
    ready = messages.of_server(answer.body)
    if not isinstance(ready, messages.Ready):
        raise result_references.LostReference(entry)
    found: list[torch.UntypedStorage] = []

    def bring(plan: _C.TransferPlan) -> torch.UntypedStorage:
        found.append(staging.copy(kind, plan))
        return found[-1]

    try:
        archive, _ = attach.checked(ready, answer.descriptors)
        placement = ResidentPlacement(device, bring, elsewhere=None)
        serialized.buffers_of(archive, serialized.AS_IT_IS._replace(transfer=placement))
    finally:
        answer.close()
    return found[0] if found else torch.UntypedStorage(0)  # all of it was on other devices


def _be_silent() -> None:
    """Let go of what it was heard by."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)
