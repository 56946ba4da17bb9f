"""``zerocopy map``: what every byte of a checkpoint's file is."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

from zerocopy import display
from zerocopy.catalogue.files import OpenFile
from zerocopy.cli import output, reading, runner, tables
from zerocopy.cli.extents import FileMap, MapExtent, map_of
from zerocopy.cli.output import escaped
from zerocopy.cli.runner import Trouble
from zerocopy.process.collector import collector_paused

DESCRIPTION = """
Lists the parts of a checkpoint's file from the first byte to the last: headers, padding, records, tensors, pickles, the
directory. Marks misaligned tensors, and bytes that no tensor uses. No tensor is read, and no code is run.
"""

EPILOG = """
exit codes:
  0  listed
  2  trouble: the file cannot be read, is not a checkpoint, or has a format that map does not support
130 after an interrupt.

Formats: zip, TorchScript, legacy, safetensors; of HDF5 the datasets, and all else as "structure". For an index, or a
folder with several files, name one of the files. In a pipe, each part is one line of five columns, separated by tabs:
  offset, bytes, kind, name, note

examples:
  $ zerocopy map model.pt
  $ zerocopy map model.pt | grep -e misaligned -e unreferenced
"""

_COLUMNS = (
    tables.Column("NAME"),
    tables.Column("KIND", rank=1),
    tables.Column("OFFSET", is_number=True, rank=2),
    tables.Column("BYTES", is_number=True),
    tables.Column("NOTE"),
)
_MAX_SHOWN = 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", metavar="FILE", help="a checkpoint of one file, or - for standard input")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--table", action="store_true", help="print the table in a pipe too")
    runner.add_json(form)


@collector_paused
def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """List, and return the exit code."""
    with reading.standard_input(options.file) as path:
        files = reading.files_of(path)
        if len(files) != 1:
            what = f"consists of {len(files)} files: give one of them" if files else "names no file"
            raise Trouble(what)
        with contextlib.closing(OpenFile(files[0])) as file:
            found = map_of(file)
    if options.json:
        output.say_compact_json(_json_of(options.file, found))
    elif options.table or output.is_terminal():
        output.say(_table(options.file, found))
    else:
        output.say_text("".join(map(_line, found.extents)))
    return runner.FINE


def _line(extent: MapExtent) -> str:
    name = escaped(extent.name, _MAX_SHOWN) or "-"
    return f"{extent.offset}\t{extent.size}\t{extent.kind}\t{name}\t{extent.note or '-'}\n"


def _table(path: str, found: FileMap) -> Iterator[str]:
    yield f"{escaped(path)}: {found.container}, {found.size} bytes"
    names = {name: tables.cell(name) if name else "-" for name in {extent.name for extent in found.extents}}
    rows = [
        (names[name], kind, str(offset), str(size), note) for offset, size, kind, name, note in found.extents
    ]
    yield from tables.lines(_COLUMNS, rows)
    for kind, (count, size) in sorted(_by_kind(found).items(), key=lambda item: -item[1][1]):
        percent = 100 * size / found.size
        yield f"  {kind:<10}  {display.count(count, 'part'):>12}  {display.size(size):>9}  {percent:5.1f} %"
    odd = [extent for extent in found.extents if extent.note.startswith(("misaligned", "unreferenced"))]
    for word in ("misaligned", "unreferenced"):
        those = [extent for extent in odd if word in extent.note]
        if those:
            yield f"{word}: {display.count(len(those), 'part')}, {display.size(sum(each.size for each in those))}"


def _by_kind(found: FileMap) -> dict[str, tuple[int, int]]:
    kinds: dict[str, tuple[int, int]] = {}
    for extent in found.extents:
        count, size = kinds.get(extent.kind, (0, 0))
        kinds[extent.kind] = (count + 1, size + extent.size)
    return kinds


def _json_of(path: str, found: FileMap) -> dict[str, Any]:
    return runner.head("map") | {
        "path": path,
        "container": found.container,
        "size": found.size,
        "parts": [
            extent._asdict() | {"name": extent.name or None, "note": extent.note or None}
            for extent in found.extents
        ],
        "kinds": {kind: {"parts": count, "bytes": size} for kind, (count, size) in _by_kind(found).items()},
    }
