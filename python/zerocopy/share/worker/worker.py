"""The process that computes a result, publishes it, and ends: whatever it has loaded or started ends with it."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import NoReturn

from zerocopy.process.collector import collector_paused
from zerocopy.share.errors import FrameError, ServerError
from zerocopy.share.objects import exceptions
from zerocopy.share.wire import frames, messages, sealed_memory
from zerocopy.share.worker import process_attributes

_log = logging.getLogger("zerocopy")


@collector_paused  # collections take a seventh of the time of importing torch, and free nothing
def import_all() -> None:
    """Import what every loader needs: what it patches and seeds takes longer to import than most calls take."""
    from zerocopy.share.worker import compute, device_owner  # noqa: F401

    seeded = ["numpy.random"] if "numpy" in sys.modules else []
    for name in ["safetensors.torch", "zerocopy.patching.safetensors_load", *seeded]:
        with contextlib.suppress(
            Exception
        ):  # a package that is not there, or damaged: the call itself will say so
            importlib.import_module(name)


def run(server: int, client: int, descriptors: Sequence[int]) -> NoReturn:
    """Run a call, and end.

    Parameters
    ----------
    server : int
        The socket to the server.
    client : int
        The client's process.
    descriptors : sequence of int
        The client's files: its description of the call, its environment, the call.
    """
    status = 1
    with socket.socket(fileno=server) as connection:
        try:
            process_attributes.take_over(client)
            _run(connection, descriptors)
            status = 0
        except (FrameError, OSError) as error:  # the server has gone, or does not want it any more
            _log.error("%s", error)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)  # without waiting for threads that the call has left


def _run(connection: socket.socket, descriptors: Sequence[int]) -> None:
    from zerocopy.share.client import result_references
    from zerocopy.share.worker import compute, device_owner

    head, environment, *parts = descriptors
    try:
        info = pickle.loads(sealed_memory.content(head))
        _become(info, sealed_memory.content(environment))
        if isinstance(info, messages.Residence):
            device_owner.hold(connection, info)
        else:
            compute.compute(connection, info, parts)
    except (ServerError, result_references.LostReference) as error:
        state = "lost" if isinstance(error, result_references.LostReference) else "refused"
        frames.send(connection, messages.Refused(state, str(error)[:4000]))
    except BaseException as error:
        _report(connection, error)


def _become(info: messages.Process, environment: bytes) -> None:
    """Have this process be where its client is."""
    os.environb.clear()
    os.environb.update(sealed_memory.environment_of(environment))
    time.tzset()
    os.chdir(info.cwd)
    sys.path[:] = info.path
    sys.argv = info.argv
    seed_numpy()


def seed_numpy() -> None:
    """Have NumPy's generator begin anew, if NumPy is imported. Python's own generator sees to that itself."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _report(connection: socket.socket, error: BaseException) -> None:
    """Send an exception, with its traceback as text."""
    text = "".join(traceback.format_exception(error))
    descriptor = sealed_memory.sealed("zerocopy-error", [_pickled(error, text)])
    frames.send(connection, messages.Failed(), [descriptor])
    os.close(descriptor)


def _pickled(error: BaseException, text: str) -> bytes:
    described = f"{type(error).__qualname__}: {_message_of(error)}"
    content = exceptions.dumps(error)
    return pickle.dumps((content, described, text))


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<no message>"
