"""``zerocopy ps``: what the model server keeps."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

from zerocopy.cli import reading, serving
from zerocopy.cli.output import escaped, listed, say
from zerocopy.launch import control
from zerocopy.share import status

DESCRIPTION = """
Lists the results that the model server keeps: by which key and from which function, how many bytes lie in files and how
many in memory, whether a process has them, how old they are, and when they were asked for last. Lines below the table
name the results that may depend on something unseen, and those that used random numbers. The last lines name the fork
servers of "run --warm". No server is started.
"""

EPILOG = serving.exit_codes(
    fine="there is a server",
    bad="there is none",
    trouble="it does not answer, or its socket is not safe",
)
FORMATTER = argparse.RawDescriptionHelpFormatter

_HEADING = ("KEY", "FUNCTION", "IN FILES", "IN MEMORY", "ATTACHED", "HITS", "AGE", "LAST USE")
_KEY = 12  # characters that are shown; unload takes them
_NUMBERS = range(2, 8)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    serving.add_arguments(parser, json=True)


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """List, and return the exit code."""
    return serving.run(parser, options, lambda: _list(options.json))


def _list(as_json: bool) -> int:
    found = status()
    fork_servers = list(control.status())
    if as_json:
        entries = None if found is None else found.pop("entries")
        serving.say_json("ps", server=found, entries=entries or [], warm=fork_servers)
    else:
        say(["no model server is running"] if found is None else _lines(found))
        say(map(_warm, fork_servers))
    return reading.BAD if found is None else reading.FINE


def _lines(found: dict[str, Any]) -> Iterator[str]:
    if found["entries"]:
        rows = [_HEADING, *map(_row, sorted(found["entries"], key=lambda entry: -entry["used"]))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = (
                cell.rjust(width) if number in _NUMBERS else cell.ljust(width)
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            yield "  ".join(cells).rstrip()
    most = "" if found["max_bytes"] is None else f" of at most {serving.size(found['max_bytes'])}"
    yield (
        f"server {found['pid']}, up {serving.span(time.time() - found['started'])}: {len(found['entries'])} results, "
        f"{serving.size(found['memory'])} of memory{most}, {found['connections']} connections"
    )
    for entry in found["entries"]:
        name = f"{entry['key'][:_KEY]} {escaped(entry['name'])}"
        if entry["unseen"]:
            yield f"unseen: {name} may depend on more: {escaped('; '.join(entry['unseen']))}"
        if entry["random"]:
            yield f"random: {name} used the generators of {', '.join(map(escaped, entry['random']))}"
    for entry in found["entries"]:
        for device, there in entry["resident"].items():
            yield (
                f"on {escaped(device)}: {escaped(entry['name'])}, {serving.size(there['memory'])}, "
                f"held by process {there['pid']}"
            )
    if found["loading"]:
        yield f"loading: {listed(map(escaped, found['loading']))}"


def _warm(found: dict[str, Any]) -> str:
    left_out = f", without {listed(map(escaped, found['excluded']))}" if found["excluded"] else ""
    return (
        f"warm starts {found['pid']}, up {serving.span(time.time() - found['started'])}: {escaped(found['program'])}, "
        f"{found['modules']} modules{left_out}, {found['starts']} starts, {len(found['running'])} running"
    )


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    now = time.time()
    return (
        entry["key"][:_KEY],
        escaped(entry["name"]),
        serving.size(entry["mapped"]),
        serving.size(entry["memory"]),
        "yes" if entry["attached"] else "no",
        str(entry["hits"]),
        serving.span(now - entry["created"]),
        serving.span(now - entry["used"]),
    )
