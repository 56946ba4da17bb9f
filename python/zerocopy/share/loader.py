"""The process that computes a result, publishes it, and ends: whatever it has loaded or started ends with it."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import pickle
import signal
import socket
import sys
import traceback
from typing import Any

from zerocopy.share import frames, memory
from zerocopy.share.errors import FrameError, ServerError
from zerocopy.share.frames import Message

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the call that the server has been sent: ``sys.argv`` has the socket to it, and the call."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    server, call = (int(argument) for argument in sys.argv[2:])
    os.set_inheritable(server, False)
    os.set_inheritable(call, False)
    with socket.socket(fileno=server) as connection:
        status = 1
        try:
            _run(connection, call)
            status = 0
        except (FrameError, OSError) as error:  # the server has gone, or does not want it any more
            sys.stderr.write(f"{error}\n")
    sys.stdout.flush()
    os._exit(status)  # without waiting for threads that the call has left


def _run(connection: socket.socket, call: int) -> None:
    content = memoryview(memory.content(call))
    length = int.from_bytes(content[:8], "big")
    about = pickle.loads(content[8 : 8 + length])
    sys.path[:] = about["path"]
    sys.argv = about["argv"]
    from zerocopy.share import computing  # torch's import has the program's environment by now

    try:
        computing.compute(connection, about, content[8 + length :])
    except (ServerError, computing.LostReference) as error:
        state = "lost" if isinstance(error, computing.LostReference) else "refused"
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
    for pickler in _picklers():
        with contextlib.suppress(Exception):
            content = pickler(error)
            if type(pickle.loads(content)) is type(error):
                return pickle.dumps((content, described, text))
    return pickle.dumps((None, described, text))


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<no message>"


def _picklers() -> Any:
    yield lambda error: pickle.dumps(error, protocol=5)
    with contextlib.suppress(ImportError):
        import dill

        yield lambda error: dill.dumps(error, protocol=5, recurse=True)
