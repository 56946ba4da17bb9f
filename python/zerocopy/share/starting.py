"""Starts the server where none listens: once, whoever else tries to at the same time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from zerocopy.share import sockets
from zerocopy.share.errors import ServerError

#: Seconds for a server to begin to listen.
_PATIENCE = 30.0
_ROOT = Path(__file__).resolve().parent.parent.parent
_BOOT = "import sys; sys.path.append(sys.argv[1]); from zerocopy.share.server import main; main()"


def connected(place: Path, timeout: float) -> socket.socket:
    """Return a connection to the server of a path, started if need be. ``ServerError``."""
    deadline = time.monotonic() + _PATIENCE
    connection = sockets.connect(place, timeout)
    process = None
    pause = 0.002
    while connection is None:
        if process is None:
            sockets.prepare(place)
            process = start(place)
        elif process.poll() not in (None, 0):  # 0: another was quicker
            raise ServerError(f"no model server could be started at {place}: {_said(process)}")
        if time.monotonic() > deadline:
            raise ServerError(f"no model server listens at {place} after {_PATIENCE:g} s")
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
        connection = sockets.connect(place, timeout)
        if connection is None and process.poll() == 0:  # the other one has ended since
            process = None
    return connection


def start(place: Path) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own, which outlives this process."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOT, os.fspath(_ROOT), os.fspath(place)],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _said(process: subprocess.Popen[bytes]) -> str:
    said = process.communicate()[1].decode(errors="replace").strip()
    return said.splitlines()[-1][:500] if said else f"it ended with status {process.returncode}"
