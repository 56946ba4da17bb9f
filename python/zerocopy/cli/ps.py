"""``zerocopy ps``: the results that the model server keeps."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Iterator
from typing import Any

from zerocopy.cli import output, runner, serving
from zerocopy.cli.output import escaped, listed, say
from zerocopy.launch import control
from zerocopy.share import ServerError, status

DESCRIPTION = """
Lists the results that the model server keeps: their keys, functions and files, how many bytes lie in files and how many
in memory, whether a process uses them, and when they were last asked for. "zerocopy unload" takes each KEY, FUNCTION
and FILE as it is printed here. Lines below the table name the results that may depend on something unseen, and those
that used random numbers. The last lines name the fork servers of "run --warm". No server is started.
"""

EPILOG = serving.exit_codes(
    fine="a server is running",
    bad="no server is running",
    trouble="the server does not answer, or its socket is not safe",
)

_HEADING = ("KEY", "FUNCTION", "FILE", "MAPPED", "MEMORY", "IN USE", "HITS", "LAST USE")
_FUNCTION, _FILE = 1, 2  # the columns that are shortened
_NUMBERS = range(3, 8)
_GAP = "  "
_KEY = 8  # characters that are shown; unload takes them
_MAX_WIDTH = 100
_MIN_FLEXIBLE = 8
_ELLIPSIS = "..."
_CHECKPOINTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".hdf5")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    serving.add_arguments(parser, json=True)


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """List, and return the exit code."""
    return serving.run(parser, options, lambda: _list(options.json))


def _list(as_json: bool) -> int:
    fork_servers = list(control.status())
    try:
        found = status()
    except ServerError:
        if not as_json:
            say(_fork_servers(fork_servers))
        raise
    if as_json:
        entries = None if found is None else found.pop("entries")
        serving.say_json("ps", server=found, entries=entries or [], warm=fork_servers)
    else:
        say(["no model server is running"] if found is None else _lines(found))
        say(_fork_servers(fork_servers))
    return runner.BAD if found is None else runner.FINE


def _fork_servers(found: list[dict[str, Any]]) -> Iterator[str]:
    for each in found:
        yield from _wrapped(_warm(each))


def matching(entries: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return the results that a text names: by a cell of the table as ``ps`` prints it, or by one of their files."""
    tail = text.removeprefix(_ELLIPSIS)

    def is_named(cell: str) -> bool:
        return cell == text or (text != tail != "" and cell.endswith(tail))

    return [
        entry
        for entry in entries
        if any(map(is_named, (escaped(entry["name"]), _file_of(entry), *map(escaped, entry["files"]))))
    ]


def _width() -> int:
    return min(output.width(), _MAX_WIDTH) if output.is_terminal() else _MAX_WIDTH


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, _width(), subsequent_indent="    ")


def _lines(found: dict[str, Any]) -> Iterator[str]:
    entries = sorted(found["entries"], key=lambda entry: -entry["used"])
    if entries:
        yield from _table([_HEADING, *map(_row, entries)])
    most = "" if found["max_bytes"] is None else f" of at most {serving.size(found['max_bytes'])}"
    yield from _wrapped(
        f"server {found['pid']}, up {serving.span(time.time() - found['started'])}: {len(found['entries'])} results, "
        f"{serving.size(found['memory'])} of memory{most}, {found['connections']} connections"
    )
    for line in _remarks(found):
        yield from _wrapped(line)


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield the rows as lines that fit: functions and files share the room that the other columns leave."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    spare = _width() - sum(widths) + widths[_FUNCTION] + widths[_FILE] - len(_GAP) * (len(widths) - 1)
    if widths[_FUNCTION] + widths[_FILE] > spare:
        widths[_FUNCTION] = min(widths[_FUNCTION], max(_MIN_FLEXIBLE, spare // 2, spare - widths[_FILE]))
        widths[_FILE] = min(widths[_FILE], max(_MIN_FLEXIBLE, spare - widths[_FUNCTION]))
    for row in rows:
        cells = (
            cell.rjust(width) if number in _NUMBERS else _tail(cell, width).ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield _GAP.join(cells).rstrip()


def _tail(text: str, width: int) -> str:
    """Return the end of a text, which says more than the beginning of a path or of a dotted name."""
    return text if len(text) <= width else _ELLIPSIS + text[len(_ELLIPSIS) - width :]


def _remarks(found: dict[str, Any]) -> Iterator[str]:
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


def _file_of(entry: dict[str, Any]) -> str:
    """Return the checkpoint that a result was made of, or another file, and how many more files count."""
    files = sorted(entry["files"], key=lambda file: not file.endswith(_CHECKPOINTS))
    if not files:
        return "-"
    return escaped(files[0]) + (f" +{len(files) - 1}" if files[1:] else "")


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    return (
        entry["key"][:_KEY],
        escaped(entry["name"]),
        _file_of(entry),
        serving.size(entry["mapped"]),
        serving.size(entry["memory"]),
        "yes" if entry["attached"] else "no",
        str(entry["hits"]),
        serving.span(time.time() - entry["used"]),
    )
