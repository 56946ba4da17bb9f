"""``zerocopy unload``: removes results from the model server."""

from __future__ import annotations

import argparse

from zerocopy.cli import ps, runner, serving
from zerocopy.cli.output import escaped, print_error, say
from zerocopy.share import status, unload

DESCRIPTION = """
Removes results from the model server. A process that uses a result keeps it, and the next call computes the result
anew. The server frees the memory when the last process has released it.
"""

EPILOG = serving.exit_codes(
    fine="removed",
    bad="the server does not have the result, or no server runs",
    trouble="the server does not answer, or its socket is not safe",
)


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
        help="a key, function or file as ps prints it, or the first characters of a key (six at least)",
    )


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Unload, and return the exit code."""
    return serving.run(parser, options, lambda: max(map(_unload, ["*"] if options.all else options.keys)))


def _unload(key: str) -> int:
    count = unload(key)
    if not count and key not in ("", "-"):
        found = status()
        count = sum(unload(entry["key"]) for entry in ps.matching(found["entries"], key)) if found else 0
    named = "all results" if key == "*" else escaped(key)
    if count:
        say([f"{named}: {count} removed"])
        return runner.FINE
    print_error(f"zerocopy unload: {named}: the server does not have this result; zerocopy ps lists them")
    return runner.BAD
