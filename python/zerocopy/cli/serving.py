"""Shared by the commands of the model server: options, exit codes, errors."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from zerocopy import display
from zerocopy._version import __version__
from zerocopy.cli import output, runner
from zerocopy.errors import Error

_SCHEMA = 1
_SOCKET = "ZEROCOPY_SOCKET"
_MAX_LENGTH = 2000


def exit_codes(fine: str, bad: str, trouble: str) -> str:
    """Return what the help says of exit codes."""
    return f"""
exit codes:
  {runner.FINE}  {fine}
  {runner.BAD}  {bad}
  {runner.TROUBLE}  trouble: {trouble}
"""


def add_arguments(parser: argparse.ArgumentParser, *, json: bool = False) -> None:
    """Declare which server is meant, and how it is told."""
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help=f"the socket of the server, in a folder that only you can use (default: {_SOCKET}, or one for each torch)",
    )
    if json:
        parser.add_argument(
            "--json", action="store_true", help="print one JSON object (docs/cli.md describes it)"
        )


def run(parser: argparse.ArgumentParser, options: argparse.Namespace, command: Callable[[], int]) -> int:
    """Run a command against the server that the options name, and return its exit code."""
    try:
        with _socket(options.socket):
            code = command()
            output.flush()
            return code
    except BrokenPipeError:
        output.silence_stdout()
        return runner.BROKEN_PIPE
    except KeyboardInterrupt:
        return runner.INTERRUPTED
    except (Error, OSError, ValueError) as error:
        output.print_error(f"{parser.prog}: {output.escaped(str(error), _MAX_LENGTH)}")
        return runner.TROUBLE


@contextlib.contextmanager
def _socket(path: str | None) -> Iterator[None]:
    before = os.environ.get(_SOCKET)
    if path is not None:
        os.environ[_SOCKET] = path
    try:
        yield
    finally:
        if path is not None:
            del os.environ[_SOCKET]
            os.environ.update({} if before is None else {_SOCKET: before})


def say_json(command: str, **content: Any) -> None:
    """Print what a command has found, as one JSON object."""
    output.say_json({"schema": _SCHEMA, "command": command, "zerocopy": __version__, **content})


def size(count: int) -> str:
    """Return a number of bytes in the units of ``ZEROCOPY_MAX_BYTES``."""
    return display.size(count, 1024)


def span(seconds: float) -> str:
    """Write a span of time as people read it."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
