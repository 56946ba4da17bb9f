"""Runs a program on a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios


def run_on_terminal(command: list[str], columns: int, **environment: str) -> tuple[int, str]:
    """Run a command whose standard output is a terminal of that width. Return its exit code and what it printed."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    with subprocess.Popen(
        command, stdout=its, stderr=subprocess.STDOUT, env={**known, "TERM": "xterm", **environment}
    ) as process:
        os.close(its)
        printed = b""
        while piece := _read(ours):
            printed += piece
        os.close(ours)
    return process.returncode, printed.decode().replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # Linux says EIO where the other end is closed.
        return b""
