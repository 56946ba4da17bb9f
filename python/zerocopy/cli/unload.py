"""``zerocopy unload``: results that the model server need not keep any longer."""

from __future__ import annotations

import argparse

from zerocopy.cli import reading, serving
from zerocopy.cli.output import complain, escaped, say
from zerocopy.share import unload

DESCRIPTION = """
Has the model server forget results. Processes that have one keep it, and the next call computes it anew. Its memory is
given back when the last process has let go of it.
"""

EPILOG = serving.exit_codes(
    fine="forgotten",
    bad="there is no such result, or no server",
    trouble="it does not answer, or its socket is not safe",
)
FORMATTER = argparse.RawDescriptionHelpFormatter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    serving.add_arguments(parser)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--all", action="store_true", help="all results")
    chosen.add_argument(
        "keys",
        metavar="KEY",
        nargs="*",
        default=[],
        help="a key as ps shows it, or its first characters (six at least), or the name of a function",
    )


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Unload, and return the exit code."""
    return serving.run(parser, options, lambda: max(map(_unload, ["*"] if options.all else options.keys)))


def _unload(key: str) -> int:
    count = unload(key)
    named = "all results" if key == "*" else escaped(key)
    if count:
        say([f"{named}: {count} forgotten"])
        return reading.FINE
    complain(f"zerocopy unload: {named}: there is no such result")
    return reading.BAD
