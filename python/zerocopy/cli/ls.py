"""``zerocopy ls``: the tensors of a checkpoint, and where they lie."""

from __future__ import annotations

import argparse
import functools
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from zerocopy import display
from zerocopy.catalogue.contents import Contents, Entry, Value, by_dtype
from zerocopy.cli import folding, output, plain_values, reading, runner, summary, tables
from zerocopy.cli.folding import Row
from zerocopy.cli.output import escaped
from zerocopy.process.collector import collector_paused

DESCRIPTION = """
Lists the tensors of a checkpoint: name, dtype, shape, bytes and offset; then the values that are not tensors, and
totals. FILE is a file of any format, an index of shards, a folder, or "-" for standard input. Several files, and the
folder of a diffusers pipeline, are one line each. No tensor is read, and no code is run.
"""

EPILOG = """
exit codes:
  0  listed
  1  no name matches; or the index and its shards disagree: what is there is listed
  2  trouble: the file cannot be read, or is not a checkpoint
130 after an interrupt.

In a pipe, each tensor is one line of seven columns, separated by tabs:
  name, dtype, shape (2x3), bytes, file, offset in the file, tie
A column without a value is "-". A tie is "=NAME" (the same bytes) or "~NAME" (another view of the same storage).
Of several files, each is one line:
  file, format, number of tensors, bytes, dtypes, note

examples:
  $ zerocopy ls model.safetensors
  $ zerocopy ls model.pt 'encoder.*.weight' --sort size
  $ zerocopy ls model.pt | cut -f1,4
  $ zerocopy ls *.safetensors
"""

_COLUMNS = (
    tables.Column("NAME"),
    tables.Column("DTYPE", rank=1),
    tables.Column("SHAPE", rank=2),
    tables.Column("BYTES", is_number=True, is_size=True),
    tables.Column("OFFSET", is_number=True, rank=4),
)
_FILE_COLUMN = tables.Column("FILE", rank=3)
_MAX_SHOWN = 2000  # characters of a name in a pipe
_MAX_SHAPE = 40
_DIGITS = re.compile(r"(\d+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    reading.add_file(parser)
    parser.add_argument(
        "more",
        metavar="FILE|GLOB",
        nargs="*",
        default=[],  # Without a default, argparse says that they are required.
        help="more files; or only names that match: 'encoder.*', or a branch with all that is below it",
    )
    parser.add_argument(
        "--all", action="store_true", help="print one row for each tensor and value: no folding"
    )
    parser.add_argument(
        "--sort", choices=tuple(_ORDERS), help="sort the rows (default: the order of the file)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--tree", action="store_true", help="print an outline of the names, with sums")
    form.add_argument("--table", action="store_true", help="print the table in a pipe too")
    runner.add_json(form)


@collector_paused
def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """List, and return the exit code."""
    files = [text for text in options.more if os.path.lexists(text)]
    options.globs = [text for text in options.more if text not in files]
    if files and (options.globs or options.tree):
        odd = f"no file {escaped(options.globs[0])}" if options.globs else "--tree is for one file"
        parser.error(f"of several files each is one line: {odd}")
    paths = [options.file, *files] if files else summary.components(options.file)
    if paths:
        return summary.execute(paths, options)
    with reading.contents(options.file, strict=False) as (_, contents):
        entries = [entry for entry in contents.entries if _matches(entry.name, options.globs)]
    if options.sort:
        entries.sort(key=_ORDERS[options.sort])
    values = [value for value in contents.values if _matches(value.name, options.globs)]
    contents = contents._replace(entries=entries, values=values)
    if options.json:
        output.say_compact_json(_json_of(contents))
    elif options.tree:
        output.say(_tree(contents, options))
    elif options.table or output.is_terminal():
        output.say(_table(contents, options))
    else:
        output.say_text("".join(map(_line, contents.entries)))
    faults = [output.printable(fault, _MAX_SHOWN) for fault in contents.faults]
    if options.globs and not entries and not values:
        faults.append("no name matches")
    for fault in faults:
        output.print_error(f"zerocopy ls: {escaped(options.file)}: {fault}")
    return runner.BAD if faults else runner.FINE


def _matches(name: str, globs: Sequence[str]) -> bool:
    return not globs or any(
        name == glob or name.startswith(f"{glob}.") or fnmatchcase(name, glob) for glob in globs
    )


def _natural(name: str) -> list[Any]:
    """Return a key that puts layers.2 before layers.10."""
    parts: list[Any] = _DIGITS.split(name)
    parts[1::2] = [(len(digits.lstrip("0")), digits) for digits in parts[1::2]]
    return parts


_ORDERS: dict[str, Callable[[Entry], Any]] = {
    "size": lambda entry: -entry.nbytes,
    "name": lambda entry: _natural(entry.name),
    "offset": lambda entry: (entry.file, entry.offset is None, entry.offset or 0),
}


def _line(entry: Entry) -> str:
    # Attributes of a named tuple take longer than its parts, and there may be tens of thousands of lines.
    name, dtype, _, nbytes, file, offset, _, _, same_as, shares_with, *_ = entry
    tie = f"={same_as}" if same_as else f"~{shares_with}" if shares_with else "-"
    return (
        f"{escaped(name, _MAX_SHOWN)}\t{dtype or '?'}\t{entry.spelled_shape('x')}\t{nbytes}\t"
        f"{_file(file)}\t{'-' if offset is None else offset}\t{'-' if tie == '-' else escaped(tie, _MAX_SHOWN)}\n"
    )


@functools.lru_cache(1)  # of neighbours it is the same
def _file(path: str) -> str:
    return escaped(path, _MAX_SHOWN) or "-"


# --------------------------------------------------------------------------------------- for people


def _rows(contents: Contents, options: argparse.Namespace) -> list[Row]:
    if options.all:
        return [folding.single(entry) for entry in contents.entries]
    rows = folding.folded(contents.entries)
    return sorted(rows, key=lambda row: -row.nbytes) if options.sort == "size" else rows


def _table(contents: Contents, options: argparse.Namespace) -> Iterator[str]:
    yield _title(contents)
    rows = _rows(contents, options)
    if rows:
        cells, columns = list(map(_cells, rows)), list(_COLUMNS)
        if len(contents.files) > 1:
            cells = [(*row, file) for row, file in zip(cells, _files_of(rows), strict=True)]
            columns.append(_FILE_COLUMN)
        yield from tables.lines(columns, cells)
    yield from _values(contents, options)
    yield from _totals(contents)


def _title(contents: Contents) -> str:
    where = f" in {display.count(len(contents.files), 'file')}" if len(contents.files) > 1 else ""
    return f"{output.visible(contents.path)}: {contents.container}{where}"


def _cells(row: Row) -> tuple[str, ...]:
    first = row.entries[0]
    name = tables.cell(row.name)
    if row.tie:
        name += f" {'~' if row.is_view else '='} {tables.cell(row.tie)}"
    offset = "-" if first.offset is None else str(first.offset)
    times = f"{len(row.entries)} of " if len(row.entries) > 1 else ""
    shapes = row.shapes
    shape = _short_shape(first) if len(shapes) == 1 else f"{len(shapes)} shapes"
    return name, first.dtype or "?", times + shape, display.size(row.nbytes), offset


def _short_shape(entry: Entry) -> str:
    """Return a shape, and of very many dimensions the first ones."""
    text = entry.spelled_shape()
    if len(text) <= _MAX_SHAPE or entry.shape is None:
        return text
    return f"{' x '.join(map(str, entry.shape[:3]))} x ... ({len(entry.shape)} dimensions)"


def _files_of(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the file of each row, once for neighbours in the same one."""
    last = ""
    for row in rows:
        files = list(dict.fromkeys(entry.file for entry in row.entries))
        text = output.visible(Path(files[0]).name) if len(files) == 1 else f"{len(files)} files"
        yield "" if text == last else text
        last = text


def _values(contents: Contents, options: argparse.Namespace) -> Iterator[str]:
    said = contents.values + [Value(name, "str", text) for name, text in contents.metadata.items()]
    yield from plain_values.lines(said, every=options.all)


def _totals(contents: Contents) -> Iterator[str]:
    entries = contents.entries
    nbytes = sum(entry.nbytes for entry in entries)
    own = [entry for entry in entries if not entry.same_as]
    tied = len(entries) - len(own)
    without = f"; {tied} tied, without these {_amount(own)}" if tied else ""
    yield f"{display.count(len(entries), 'tensor')}, {_amount(entries)}{without}"
    dtypes = by_dtype(entries)
    if len(dtypes) > 1:
        for dtype, (count, size) in sorted(dtypes.items(), key=lambda item: -item[1][1]):
            percent = 100 * size / max(nbytes, 1)
            yield f"  {dtype:<14}  {display.count(count, 'tensor'):>14}  {display.size(size):>9}  {percent:5.1f} %"


def _amount(entries: list[Entry]) -> str:
    elements = sum(math.prod(entry.shape) for entry in entries if entry.shape is not None)
    return f"{display.count(elements, 'element')}, {display.size(sum(entry.nbytes for entry in entries))}"


class _Leaf(NamedTuple):
    """A row as an outline takes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    number: int


def _tree(contents: Contents, options: argparse.Namespace) -> Iterator[str]:
    rows = [
        _Leaf(
            # An outline nests at dots, so a range has a dash.
            name=output.visible(
                re.sub(r"(?<=\d)\.\.(?=\d)", "-", row.name) if len(row.entries) > 1 else row.name
            ),
            dtype=row.entries[0].dtype,
            shape=row.entries[0].shape or (),
            nbytes=row.nbytes,
            number=len(row.entries),
        )
        for row in _rows(contents, options)
    ]
    yield display.outline(_title(contents), rows, width=output.width() if output.is_terminal() else None)
    yield from _values(contents, options)
    yield from _totals(contents)


# -------------------------------------------------------------------------------------- for programs


def _json_of(contents: Contents) -> dict[str, Any]:
    return runner.head("ls") | {
        "path": contents.path,
        "container": contents.container,
        "files": contents.files,
        "tensors": [_json_of_entry(entry) for entry in contents.entries],
        "values": [
            {"name": name, "kind": kind, "value": output.plain(value)}
            for name, kind, value in contents.values
        ],
        "metadata": contents.metadata,
        "dtypes": {
            dtype: {"tensors": count, "bytes": nbytes}
            for dtype, (count, nbytes) in by_dtype(contents.entries).items()
        },
        "bytes": sum(entry.nbytes for entry in contents.entries),
        "stored_bytes": contents.stored_nbytes,
        "faults": contents.faults,
    }


def _json_of_entry(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "dtype": entry.dtype or None,
        "shape": entry.shape,
        "stride": entry.stride,
        "bytes": entry.nbytes,
        "file": entry.file,
        "offset": entry.offset,
        "storage": entry.storage,
        "requires_grad": entry.requires_grad,
        "same_as": entry.same_as or None,
        "shares_with": entry.shares_with or None,
        "made_by": entry.made_by or None,
        "inside": entry.inside or None,
    }
