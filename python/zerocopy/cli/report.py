"""``zerocopy report``: a page about a checkpoint, for a browser."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerocopy import display
from zerocopy.catalogue import files
from zerocopy.cli import diff, output, reading, runner
from zerocopy.cli.output import escaped, say
from zerocopy.process.os_errors import naming
from zerocopy.saving.atomic_file import is_special, local_path, replacing

if TYPE_CHECKING:
    from zerocopy.catalogue.contents import Contents, Entry
    from zerocopy.cli.tensor_diff import TorchSide

DESCRIPTION = """
Writes one self-contained HTML page about a checkpoint: a treemap of bytes by module path, dtypes, the layout of the
file, a table of tensors to search and sort, and the values that are not tensors. The page loads nothing from a network.
No tensor is read unless --statistics or --compare is given.
"""

EPILOG = """
exit codes:
  0  the page is written
  2  trouble: one line on standard error says why
130 after an interrupt.

example:
  $ zerocopy report model.safetensors -o report.html
  $ zerocopy report new.pt --compare old.pt --statistics -o report.html
"""

_BEGINNING = b"<!DOCTYPE html>"
_STATISTICS = ("min", "max", "mean", "std", "NaN", "Inf")
_MAX_SAFE_INTEGER = 2**53 - 1  # of JavaScript


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    reading.add_file(parser)
    parser.add_argument(
        "-o", "--output", metavar="PAGE", required=True, help="the page to write; - for standard output"
    )
    parser.add_argument(
        "--compare", metavar="OTHER", help="also show how FILE differs from OTHER, as zerocopy diff does"
    )
    parser.add_argument(
        "--statistics",
        action="store_true",
        help=f"also read every tensor, and show {', '.join(_STATISTICS)} of its elements",
    )


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Write the page, and return the exit code."""
    if _is_foreign(options.output):
        parser.error(f"-o {escaped(options.output)} would replace a file that is not an HTML page")
    with reading.contents(options.file) as (path, contents):
        _write(_page(options, path, contents), options.output)
    return runner.FINE


def _is_foreign(target: str) -> bool:
    """Return whether the path leads to a file that is not an HTML page, such as the checkpoint or a shard."""
    try:
        if not Path(target).is_file():
            return False
        with Path(target).open("rb") as file:
            return file.read(len(_BEGINNING)) not in (_BEGINNING, b"")
    except (OSError, ValueError):  # Writing raises the same error, which is reported.
        return False


def _page(options: argparse.Namespace, path: str, contents: Contents) -> str:
    """Return the page about the checkpoint at `path`. torch is imported only to read elements of tensors."""
    from zerocopy.cli import plain_values, report_page
    from zerocopy.cli.report_page import TIE, Column, File, Row

    columns = [TIE, *(Column(name, True) for name in _STATISTICS if options.statistics)]
    columns += [Column("difference", False)] if options.compare else []
    more: dict[str, list[Any]] = {entry.name: [] for entry in contents.entries}
    differences = _read(more, options, path) if options.statistics or options.compare else None
    rows = []
    extents: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for entry in contents.entries:
        own = 0 if entry.same_as else entry.nbytes
        if entry.offset is not None and own:
            extents[entry.file].append((entry.offset, own, entry.dtype))
        cells = (entry.same_as or None, *more[entry.name])
        rows.append(
            Row(entry.name, entry.dtype or "?", entry.spelled_shape(), entry.nbytes, entry.offset, own, cells)
        )
    opened = {options.file: path}  # for standard input, this is the path of a copy
    sizes = {name: files.size_of(opened.get(name, name)) for name in contents.files}
    shown = [File(name, size, extents[name]) for name, size in sizes.items()]
    values = {
        display.shown(value.name): display.shown(plain_values.described(value)) for value in contents.values
    }
    values |= {display.shown(k): display.shown(display.described(v)) for k, v in contents.metadata.items()}
    other = options.compare or ""
    return report_page.page(
        options.file, contents.container, rows, shown, values, columns, differences, other
    )


def _read(more: dict[str, list[Any]], options: argparse.Namespace, path: str) -> list[str] | None:
    """Add cells with statistics and differences to each tensor, and return the differences as lines."""
    import zerocopy
    from zerocopy.cli.tensor_diff import TorchSide

    with contextlib.ExitStack() as stack:
        side = TorchSide(stack.enter_context(zerocopy.open(path, device="cpu")))
        changes: dict[str, list[str]] = defaultdict(list)
        differences: list[str] | None = None
        if options.compare:
            other = TorchSide(stack.enter_context(zerocopy.open(options.compare, device="cpu")))
            settings = {"ignore_dtype": False, "tensors_only": False, "brief": False}
            exact = argparse.Namespace(a=path, b=options.compare, rtol=None, atol=None, **settings)
            differences = []
            for found in diff.differences(side, other, exact):
                differences.append(diff.line(found))
                only = found["kind"] == "only"
                changes[found["name"]].append("only here" if only else f"{found['kind']}: {found['text']}")
        entries = [side.entries[name] for name in more]
        with output.Progress("zerocopy report:", sum(entry.nbytes for entry in entries)) as progress:
            for entry in entries:
                more[entry.name] += _statistics(side, entry) if options.statistics else ()
                more[entry.name] += ["; ".join(changes[entry.name]) or None] if options.compare else ()
                progress.add(entry.nbytes)
    return differences


def _statistics(side: TorchSide, entry: Entry) -> list[float | int | str | None]:
    """Return min, max, mean and std of the finite elements, and how many are NaN and Inf, as `show` has them."""
    from zerocopy.cli.elements import blocks
    from zerocopy.cli.statistics import statistics_of, summary_of
    from zerocopy.cli.tensor_diff import require_few_repeats

    try:
        if entry.stride is None:
            found = statistics_of(side.checkpoint.get_tensor(entry.name))
        else:
            require_few_repeats(entry)
            found = summary_of(side.block(entry, index) for _, index in blocks(entry.shape or ()))
    except (RuntimeError, TypeError, runner.Trouble):  # packed dtypes have no conversion
        return [None] * len(_STATISTICS)
    numbers = found.minimum, found.maximum, found.mean, found.std
    # An integer that JavaScript would round is a string.
    exact = (str(n) if isinstance(n, int) and abs(n) > _MAX_SAFE_INTEGER else n for n in numbers)
    return [*exact, found.nan, found.positive_infinity + found.negative_infinity]


def _write(text: str, target: str) -> None:
    if target == "-":
        say([text])
        return
    content, path = text.encode("utf-8", "backslashreplace"), local_path(target)
    with naming(path), contextlib.ExitStack() as block:
        if is_special(path) or path.is_dir():
            stream: Any = block.enter_context(path.open("wb"))
        else:  # A page that is written halfway must not replace an older one.
            stream = block.enter_context(replacing(path, syncs=False))
        stream.write(content)
    if sys.stderr.isatty():
        output.print_error(f"{escaped(target)}: {display.size(len(content))}")
