"""Runs commands in this process, with a terminal or another file as their standard output."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import struct
import termios
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from zerocopy.__main__ import main


def run_into(output: Any, arguments: Sequence[str]) -> tuple[object, str]:
    """Run a command whose standard output is a file. Return its exit code, and its standard error."""
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            code: object = main(arguments)
        except SystemExit as ended:
            code = ended.code
    return code, errors.getvalue()


def run_into_closed_pipe(arguments: Sequence[str]) -> tuple[object, str]:
    """Run a command whose output nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        return run_into(output, arguments)


def run_into_full_device(arguments: Sequence[str], is_buffered: bool = True) -> tuple[object, str]:
    """Run a command whose output has no room."""
    with Path("/dev/full").open("wb", buffering=-1 if is_buffered else 0) as file:
        return run_into(io.TextIOWrapper(file, write_through=not is_buffered), arguments)


def run_on_terminal(arguments: Sequence[str], columns: int, **environment: str) -> tuple[object, str]:
    """Run a command at a terminal of that width. Return its exit code, and what it printed."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    printed = bytearray()
    reader = threading.Thread(target=_read_all, args=(ours, printed))
    reader.start()
    with os.fdopen(its, "w", buffering=1) as terminal, pytest.MonkeyPatch.context() as patch:
        for name in ("COLUMNS", "NO_COLOR"):
            patch.delenv(name, raising=False)
        for name, value in {"TERM": "xterm", **environment}.items():
            patch.setenv(name, value)
        with contextlib.redirect_stdout(terminal), contextlib.redirect_stderr(terminal):
            code = main(arguments)
    reader.join()
    os.close(ours)
    return code, printed.decode().replace("\r\n", "\n")


def _read_all(descriptor: int, printed: bytearray) -> None:
    with contextlib.suppress(OSError):  # Linux says EIO where the other end is closed
        while piece := os.read(descriptor, 1 << 16):
            printed += piece
