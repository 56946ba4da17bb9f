"""``zerocopy ps``: the kept results of calls."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

from zerocopy import display
from zerocopy.cli import output, runner, tables
from zerocopy.cli.output import escaped, listed, say
from zerocopy.launch import control
from zerocopy.share import status
from zerocopy.share.api import Result

DESCRIPTION = """
Lists the results that zerocopy.share keeps in its cache folder, the last used first: their functions and keys, how many
bytes were written for them and how many lie in other files, when they were last taken, and a file that they depend on.
"zerocopy unload" takes each KEY, FUNCTION and FILE as it is printed here. Lines below the table name results that may
depend on something unseen, and calls that programs make themselves. The last lines name the fork servers of
"run --warm".
"""

EPILOG = runner.exit_codes(
    fine="listed",
    bad="nothing is kept",
    trouble="the cache folder is another user's, or open to others",
)

_COLUMNS = (
    tables.Column("FUNCTION"),
    tables.Column("KEY"),
    tables.Column("WRITTEN", is_number=True, rank=1),
    tables.Column("IN FILES", is_number=True, rank=1),
    tables.Column("LAST USE", is_number=True, rank=2),
    tables.Column("FILE", rank=3),
)
_KEY = 8  # characters that are shown; unload takes them
_CHECKPOINTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".hdf5")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    runner.add_json(parser)


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """List, and return the exit code."""
    fork_servers = list(control.status())
    found = status()
    if options.json:
        entries = [result._asdict() for result in found]
        output.say_json({**runner.head("ps"), "entries": entries, "warm": fork_servers})
    else:
        if not found:
            _say_sentences(["nothing is kept"])
        elif output.is_terminal():
            say(tables.lines(_COLUMNS, [_row(result) for result in found]))
        else:
            say("\t".join(_whole_row(result)) for result in found)
        _say_sentences([*_remarks(found), *map(_warm, fork_servers)])
    return runner.FINE if found else runner.BAD


def _say_sentences(lines: list[str]) -> None:
    """Print lines that are not rows: to standard error where standard output has rows for programs."""
    if output.is_terminal():
        say(lines)
    else:
        for line in lines:
            output.print_error(line)


def matching(found: list[Result], text: str) -> list[Result]:
    """Return the results that a text names: by a file that they depend on, or its last part."""
    return [
        result
        for result in found
        if any(text in (path, path.rpartition("/")[2]) for path in result.depends_on)
    ]


def _row(result: Result) -> tuple[str, ...]:
    return (
        tables.cell(result.what),
        result.key[:_KEY],
        _size(result.written),
        _size(result.mapped),
        _span(time.time() - result.used),
        _file_of(result),
    )


def _whole_row(result: Result) -> tuple[str, ...]:
    """Return a row for programs: key, function, bytes written, bytes in other files, seconds since 1970, files."""
    numbers = result.written, result.mapped, round(result.used)
    return (result.key, escaped(result.what), *map(str, numbers), *map(escaped, result.depends_on))


def _file_of(result: Result) -> str:
    """Return the checkpoint that a result was computed from, or another file, and the number of further files."""
    files = sorted(result.depends_on, key=lambda file: not file.endswith(_CHECKPOINTS))
    if not files:
        return "-"
    return escaped(files[0]) + (f" +{len(files) - 1}" if files[1:] else "")


def _remarks(found: list[Result]) -> Iterator[str]:
    for result in found:
        name = f"{result.key[:_KEY]} {escaped(result.what)}"
        if result.unseen:
            yield f"unseen: {name} may depend on more: {escaped('; '.join(result.unseen))}"
        if result.note:
            yield f"called in programs: {name}: {escaped(result.note)}"


def _warm(found: dict[str, Any]) -> str:
    left_out = f", without {listed(map(escaped, found['excluded']))}" if found["excluded"] else ""
    return (
        f"warm starts {found['pid']}, up {_span(time.time() - found['started'])}: {escaped(found['program'])}, "
        f"{found['modules']} modules{left_out}, {found['starts']} starts, {len(found['running'])} running"
    )


def _size(count: int) -> str:
    """Return a number of bytes in the units of ``ZEROCOPY_MAX_BYTES``."""
    return display.size(count, 1024)


def _span(seconds: float) -> str:
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
