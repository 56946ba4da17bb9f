"""``zerocopy stop``: ends the fork servers of warm starts."""

from __future__ import annotations

import argparse

from zerocopy.cli import runner
from zerocopy.cli.output import say
from zerocopy.launch import control

DESCRIPTION = """
Ends the fork servers of "zerocopy run --warm", as soon as their programs have ended. The next warm start begins
another one.
"""

EPILOG = runner.exit_codes(
    fine="they end",
    bad="no fork server was running",
    trouble="the folder of their sockets is not safe",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare no options."""


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """End them, and return the exit code."""
    ended = control.stop_all()
    say([f"fork server {pid} of warm starts ends when its programs have ended" for pid in ended])
    if not ended:
        say(["no fork server of warm starts is running"])
    return runner.FINE if ended else runner.BAD
