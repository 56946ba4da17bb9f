"""Starts the server where none listens: once, whoever else tries to at the same time."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

from zerocopy.process import descendants
from zerocopy.share.errors import ServerError
from zerocopy.share.wire import sockets

#: Seconds for a server to begin to listen.
_PATIENCE = 30.0
_ROOT = Path(__file__).resolve().parents[3]
# The server outlives the program, so it closes descriptors that the program's children inherit.
_BOOT = (
    "import os, sys; os.closerange(3, 1 << 16); os.chdir('/'); sys.path.append(sys.argv[1]); "
    "from zerocopy.share.server.server import main; main()"
)


def connected(place: Path, timeout: float) -> socket.socket:
    """Return a connection to the server of a path, started if need be. ``ServerError``."""
    try:
        return _connected(place, timeout)
    except (OSError, ValueError, TypeError) as error:  # the last two: Python does not know where it is itself
        raise ServerError(f"could not start a model server at {place}: {error}") from error


def _connected(place: Path, timeout: float) -> socket.socket:
    deadline = time.monotonic() + _PATIENCE
    connection = sockets.connect(place, timeout)
    starting: _Starting | None = None
    pause = 0.002
    try:
        while connection is None:
            if starting is None:
                sockets.prepare(place)
                starting = _Starting(place)
            if time.monotonic() > deadline:
                raise ServerError(
                    f"the model server did not begin to listen at {place} after {_PATIENCE:g} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
            status = starting.status()
            connection = sockets.connect(place, timeout)
            if connection is None and status is not None:
                ended, starting = starting, None
                why = ended.close()
                if status != 0:
                    raise ServerError(f"could not start a model server at {place}: {why}")
                # Another was quicker, and may have ended since.
    finally:
        if starting is not None:
            if connection is not None and not starting.is_at(connection):
                # Another was quicker, and has the lock. Ours would serve if that one ended before ours has looked.
                starting.end()
            starting.close()
    return connection


class _Starting:
    """A server that may not listen yet: in a session of its own, since it outlives this process.

    No ``Popen``, which warns of processes that go on.
    """

    def __init__(self, place: Path) -> None:
        self._reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-c", _BOOT, os.fspath(_ROOT), os.fspath(place)],
                descendants.unreached(os.environ),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, writing, 2),
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGCHLD,),  # ignored, it would not tell of its children's ends
            )
        except BaseException:
            os.close(self._reading)
            raise
        finally:
            os.close(writing)

    def status(self) -> int | None:
        """Return its exit status; None while it runs."""
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:  # the program lets the system reap its children
            return None if Path(f"/proc/{self._pid}").exists() else 0
        return None if pid == 0 else os.waitstatus_to_exitcode(status)

    def is_at(self, connection: socket.socket) -> bool:
        """Return whether this is who a connection leads to, or may be, as far as it can be seen from here."""
        return sockets.require_same_user(connection) in (self._pid, 0)

    def end(self) -> None:
        """End it, which serves nobody yet."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def close(self) -> str:
        """Return the last line that the server printed, and listen no more."""
        os.set_blocking(self._reading, False)
        try:
            printed = os.read(self._reading, 1 << 16).decode(errors="replace").strip()
        except BlockingIOError:
            printed = ""
        os.close(self._reading)
        return printed.splitlines()[-1][:500] if printed else "the server printed nothing"
