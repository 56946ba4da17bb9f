"""``zerocopy explain``: how the bytes of a checkpoint get into memory."""

from __future__ import annotations

import argparse

from zerocopy.cli import output, reading, runner

DESCRIPTION = """
Prints which storages of a checkpoint a load maps, and which it copies or inflates, why, and what to do. FILE is a file
of any format, an index of shards, or a folder. Imports torch. No tensor is read, and no code of the file is run.
"""

EPILOG = """
exit codes:
  0  every byte is mapped
  1  some are not
  2  trouble: the file cannot be read, or is not a checkpoint
130 after an interrupt.

example:
  $ zerocopy explain model.pt
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    reading.add_file(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--all", action="store_true", help="also print a line for each storage")
    form.add_argument("--json", action="store_true", help="print one JSON object")


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Explain, and return the exit code."""
    from zerocopy.loading.explain import explain

    with reading.standard_input(options.file) as path:
        found = explain(path)
    if path != options.file:
        found = found._replace(name=options.file)
    if options.json:
        storages = [storage._asdict() for storage in found.storages]
        output.say_json(
            runner.head("explain") | found._asdict() | {"path": options.file, "storages": storages}
        )
    else:
        output.say((found.details() if options.all else str(found)).splitlines())
    return runner.FINE if all(storage.how == "mapped" for storage in found.storages) else runner.BAD
