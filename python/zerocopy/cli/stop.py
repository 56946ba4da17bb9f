"""``zerocopy stop``: stops the model server."""

from __future__ import annotations

import argparse

from zerocopy.cli import runner, serving
from zerocopy.cli.output import say
from zerocopy.launch import control
from zerocopy.share.client import connection

DESCRIPTION = """
Stops the model server, and waits until it has ended. Processes keep the results that they use. The next call starts
another server. The fork servers of "run --warm" end too, as soon as their programs have ended.
"""

EPILOG = serving.exit_codes(
    fine="stopped",
    bad="no server was running",
    trouble="the server does not end, or its socket is not safe",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    serving.add_arguments(parser)


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Stop it, and return the exit code."""
    return serving.run(parser, options, _stop)


def _stop() -> int:
    ended = control.stop_all()
    if ended:
        say([f"fork server {pid} of warm starts ends when its programs have ended" for pid in ended])
    if connection.end_server():
        say(["the model server has ended"])
    elif not ended:
        say(["no model server is running"])
        return runner.BAD
    return runner.FINE
