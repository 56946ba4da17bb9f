"""``zerocopy unload``: removes kept results."""

from __future__ import annotations

import argparse

from zerocopy.cli import ps, runner
from zerocopy.cli.output import escaped, print_error, say
from zerocopy.share import status, unload

DESCRIPTION = """
Removes results that zerocopy.share keeps, and results that refer to them. A process that uses a result keeps it, and
the next call computes the result anew.
"""

EPILOG = runner.exit_codes(
    fine="removed",
    bad="no such result is kept",
    trouble="the cache folder is another user's, or open to others",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--all", action="store_true", help="all results")
    chosen.add_argument(
        "keys",
        metavar="KEY",
        nargs="*",
        default=[],
        help="a key, function or file as ps prints it, or the first characters of a key (six at least)",
    )


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Unload, and return the exit code."""
    return max(map(_unload, ["*"] if options.all else options.keys))


def _unload(key: str) -> int:
    count = unload(key)
    if not count and key not in ("", "-"):
        count = sum(unload(result.key) for result in ps.matching(status(), key))
    named = "all results" if key == "*" else escaped(key)
    if count:
        say([f"{named}: {count} removed"])
        return runner.FINE
    print_error(f"zerocopy unload: {named}: no such result is kept; zerocopy ps lists them")
    return runner.BAD
