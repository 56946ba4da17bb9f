"""``zerocopy ls`` of several files: one line for each."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from zerocopy import display
from zerocopy.catalogue.contents import Contents, by_dtype
from zerocopy.cli import output, reading, runner, tables
from zerocopy.cli.output import escaped
from zerocopy.errors import Error
from zerocopy.loading.formats import model_folder

_MAX_SHOWN = 2000  # characters of a path in a pipe
_COLUMNS = (
    tables.Column("FILE"),
    tables.Column("FORMAT", rank=1),
    tables.Column("TENSORS", is_number=True),
    tables.Column("BYTES", is_number=True, is_size=True),
    tables.Column("DTYPES", rank=2),
    tables.Column("NOTE", rank=3),
)


class _Summary(NamedTuple):
    """A file in one line."""

    path: str
    container: str
    tensors: int
    nbytes: int
    dtypes: list[str]
    note: str


def components(path: str) -> list[str]:
    """Return the folders of a diffusers pipeline that have a model; of anything else none."""
    if not os.path.isfile(os.path.join(path, "model_index.json")):
        return []
    return [str(folder) for folder in sorted(Path(path).iterdir()) if folder.is_dir() and _has_model(folder)]


def _has_model(folder: Path) -> bool:
    try:
        return bool(model_folder.located(str(folder)))
    except (Error, OSError):
        return False


def execute(paths: Sequence[str], options: argparse.Namespace) -> int:
    """List files, and return the exit code."""
    found, code = [], runner.FINE
    for path in paths:
        try:
            with reading.contents(path, strict=False) as (_, contents):
                found.append(_summary(path, contents))
                code = max(code, runner.BAD if contents.faults else runner.FINE)
        except (OSError, runner.Trouble) as error:
            output.print_error(f"zerocopy ls: {output.named(path)}: {output.printable(runner.why(error))}")
            code = runner.TROUBLE
    if options.json:
        output.say_compact_json(runner.head("ls") | {"files": [each._asdict() for each in found]})
    elif options.table or output.is_terminal():
        output.say(_table_of_files(found))
    else:
        output.say("\t".join(_cells_of_file(each, str)) for each in found)
    return code


def _summary(path: str, contents: Contents) -> _Summary:
    entries = contents.entries
    dtypes = sorted(by_dtype(entries).items(), key=lambda item: -item[1][1])
    tied = sum(bool(entry.same_as) for entry in entries)
    notes = [
        f"{len(contents.files)} shards" if len(contents.files) > 1 else "",
        f"{tied} tied" if tied else "",
        "tensors within objects" if any(entry.inside for entry in entries) else "",
        "" if entries else "no tensors",
        "its index is wrong" if contents.faults else "",
    ]
    nbytes = sum(entry.nbytes for entry in entries if not entry.same_as)
    return _Summary(
        path,
        contents.container,
        len(entries),
        nbytes,
        [dtype for dtype, _ in dtypes],
        ", ".join(filter(None, notes)),
    )


def _cells_of_file(each: _Summary, size: Callable[[int], str]) -> tuple[str, ...]:
    path = escaped(each.path, _MAX_SHOWN) if size is str else tables.cell(each.path)
    dtypes = ",".join(each.dtypes) or "-"
    return path, each.container, str(each.tensors), size(each.nbytes), dtypes, each.note or "-"


def _table_of_files(found: Sequence[_Summary]) -> Iterator[str]:
    if found:
        yield from tables.lines(_COLUMNS, [_cells_of_file(each, display.size) for each in found])
        tensors, nbytes = sum(each.tensors for each in found), sum(each.nbytes for each in found)
        yield f"{display.count(len(found), 'file')}, {display.count(tensors, 'tensor')}, {display.size(nbytes)}"
