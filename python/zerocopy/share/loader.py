"""The process that computes a result, publishes it, and ends: whatever it has loaded or started ends with it."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import pickle
import signal
import socket
import sys
import traceback

from zerocopy.share import by_value, frames, memory
from zerocopy.share.errors import FrameError, ServerError

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the call that the server has been sent: ``sys.argv`` has the socket to it, and the call."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    server, *call = (int(argument) for argument in sys.argv[2:])
    for descriptor in (server, *call):
        os.set_inheritable(descriptor, False)
    with socket.socket(fileno=server) as connection:
        status = 1
        try:
            _run(connection, call)
            status = 0
        except (FrameError, OSError) as error:  # the server has gone, or does not want it any more
            logging.getLogger("zerocopy").error("%s", error)  # to the server, which has the output
    sys.stdout.flush()
    os._exit(status)  # without waiting for threads that the call has left


def _run(connection: socket.socket, descriptors: list[int]) -> None:
    head, *parts = descriptors
    about = pickle.loads(memory.content(head))
    sys.path[:] = about["path"]
    sys.argv = about["argv"]
    from zerocopy.share import computing, references  # torch's import has the program's environment by now

    try:
        computing.compute(connection, about, parts)
    except (ServerError, references.LostReference) as error:
        state = "lost" if isinstance(error, references.LostReference) else "refused"
        frames.send(connection, {"op": "refused", "state": state, "why": str(error)})
    except BaseException as error:
        _report(connection, error)


def _report(connection: socket.socket, error: BaseException) -> None:
    """Send an exception, with its traceback as text."""
    text = "".join(traceback.format_exception(error))
    descriptor = memory.sealed("zerocopy-error", [_pickled(error, text)])
    frames.send(connection, {"op": "failed"}, [descriptor])
    os.close(descriptor)


def _pickled(error: BaseException, text: str) -> bytes:
    described = f"{type(error).__qualname__}: {_message_of(error)}"
    with contextlib.suppress(Exception):
        content = by_value.dumps(error)
        if type(pickle.loads(content)) is type(error):  # not all that can be pickled can be made again
            return pickle.dumps((content, described, text))
    return pickle.dumps((None, described, text))


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<no message>"
