"""The command ``zerocopy``, also as ``python -m zerocopy``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import zerocopy
from zerocopy import running


class Command(NamedTuple):
    """A subcommand: what the help says of it, how to declare its options, and what it does."""

    summary: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    execute: Callable[[argparse.ArgumentParser, argparse.Namespace], int]


COMMANDS = {
    "run": Command(running.SUMMARY, running.DESCRIPTION, running.add_arguments, running.execute),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments (by default ``sys.argv[1:]``) name, and return its exit code.

    A command line that makes no sense exits with 2.
    """
    # No abbreviations: with them, options of a program under "run" might be taken for ours.
    parser = argparse.ArgumentParser(
        "zerocopy", description="PyTorch checkpoints without copying.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"zerocopy {zerocopy.__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(
            name, help=command.summary, description=command.description, allow_abbrev=False
        )
        command.add_arguments(subparser)
        subparser.set_defaults(execute=command.execute, parser=subparser)
    options = parser.parse_args(arguments)
    return options.execute(options.parser, options)


if __name__ == "__main__":
    sys.exit(main())
