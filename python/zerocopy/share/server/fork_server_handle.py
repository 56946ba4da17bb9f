"""The fork server as the model server sees it: started for the first worker, ended long after the last."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from zerocopy.share.conditions import watching
from zerocopy.share.wire import frames, messages
from zerocopy.share.wire.connections import Connection

_ROOT = Path(__file__).resolve().parents[3]
_BOOT = "import sys; sys.path.append(sys.argv[1]); from zerocopy.share.worker.fork_server import main; main()"
#: Variables that are read when torch is imported, or before. A fork server serves clients that have the same.
_IMPORTED = tuple(b"TORCH_ PYTORCH_ OMP_ MKL_ KMP_ GOMP_ CUDA_ LD_ PYTHON ATEN_".split())

Environment = dict[bytes, bytes]
#: Is given each report of a fork server; None at its end.
Hear = Callable[[messages.Forked | messages.Ended | None], None]


class ForkServer:
    """A process that forks workers.

    Parameters
    ----------
    python : str
        The client's.
    environment : dict
        The client's.
    selector : selectors.BaseSelector
        The server's.
    hear : callable
        Is given its reports; None at its end.
    """

    def __init__(
        self, python: str, environment: Environment, selector: selectors.BaseSelector, hear: Hear
    ) -> None:
        self._kind = _kind(python, environment)
        self._hear, self._selector = hear, selector
        self.used = time.monotonic()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                # Not where the client is, whose folder may hold modules of any name.
                self._process = subprocess.Popen(
                    [python, "-P", "-c", _BOOT, os.fspath(_ROOT), str(theirs.fileno())],
                    env=_watched(environment),
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._connection = Connection(ours, self._process.pid, selector)
        selector.register(ours, selectors.EVENT_READ, self._serve)
        self.is_gone = False

    def suits(self, python: str, environment: Environment) -> bool:
        """Return whether a client's workers can be its children."""
        return not self.is_gone and self._kind == _kind(python, environment)

    def fork(self, number: int, client: int, descriptors: list[int]) -> None:
        """Have it fork a worker for a process. ``FrameError``, ``OSError``."""
        self.used = time.monotonic()
        # They may wait for torch to be imported; the caller closes its own.
        held = [os.dup(descriptor) for descriptor in descriptors]
        self._connection.send(messages.Fork(number, client), held, holding=frames.Closing(held))

    def _serve(self, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                self._connection.flush()
            if mask & selectors.EVENT_READ:
                goes_on = self._connection.read()
                for message in self._connection.messages():
                    message.close()
                    self._hear(messages.of_fork_server(message.body))
                if not goes_on:
                    self.end()
        except (
            Exception
        ):  # of a report that cannot be read: another fork server is started when one is needed
            self.end()

    def end(self) -> None:
        """End the process, and its children with it."""
        if self.is_gone:
            return
        self.is_gone = True
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._hear(None)


def _watched(environment: Environment) -> Environment:
    """Return the environment of a process that notes what it reads.

    The library comes last of those that are preloaded: what comes before, as a sanitizer must, calls it all the same.
    """
    library = watching.library()
    if library is None:
        return environment
    preloaded = environment.get(b"LD_PRELOAD", b"")
    return {**environment, b"LD_PRELOAD": b" ".join(filter(None, (preloaded, os.fsencode(library))))}


def _kind(python: str, environment: Environment) -> object:
    return python, {name: value for name, value in environment.items() if name.startswith(_IMPORTED)}
