"""``zerocopy report``: a page about a checkpoint, for a browser."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerocopy import display
from zerocopy.cli import diff, output, runner
from zerocopy.cli.output import escaped, say
from zerocopy.process.os_errors import naming

if TYPE_CHECKING:
    from zerocopy.cli.report_page import File, Row
    from zerocopy.cli.tensor_diff import Side
    from zerocopy.lazy.checkpoint import Checkpoint
    from zerocopy.lazy.tensor_info import TensorInfo

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
    parser.add_argument("file", metavar="FILE", help="a checkpoint: a file, an index, a folder")
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
    return _report(options)


def _is_foreign(target: str) -> bool:
    """Return whether a file is there that is not a page: the checkpoint, one of its shards, or any other."""
    try:
        if not Path(target).is_file():
            return False
        with Path(target).open("rb") as file:
            return file.read(len(_BEGINNING)) not in (_BEGINNING, b"")
    except (OSError, ValueError):  # Writing raises the same, and is reported.
        return False


def _report(options: argparse.Namespace) -> int:
    text = _page_with_values(options) if options.statistics or options.compare else _page(options.file)
    _write(text, options.output)
    return runner.FINE


def _page(path: str) -> str:
    """Return the page of what a file states of its tensors, which takes no torch."""
    from zerocopy.cli import plain_values, report_page
    from zerocopy.cli.contents import contents_of
    from zerocopy.cli.report_page import TIE, File, Row

    try:
        contents = contents_of(path)
    except runner.Trouble as trouble:
        raise runner.Trouble(f"{path}: {trouble}") from None
    rows = []
    extents: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for entry in contents.entries:
        own = 0 if entry.same_as else entry.nbytes
        if entry.offset is not None and own:
            extents[entry.file].append((entry.offset, own, entry.dtype))
        shape = "?" if entry.shape is None else " x ".join(map(str, entry.shape)) or "scalar"
        tie = entry.same_as or None
        rows.append(Row(entry.name, entry.dtype or "?", shape, entry.nbytes, entry.offset, own, (tie,)))
    files = [File(name, Path(name).stat().st_size, extents[name]) for name in contents.files]
    values = {
        display.shown(value.name): display.shown(plain_values.described(value)) for value in contents.values
    }
    values |= {display.shown(k): display.shown(display.described(v)) for k, v in contents.metadata.items()}
    return report_page.page(path, contents.container, rows, files, values, [TIE], None, "")


def _page_with_values(options: argparse.Namespace) -> str:
    """Return the page with what takes the elements of tensors: statistics, and a comparison."""
    import zerocopy
    from zerocopy.cli import report_page
    from zerocopy.cli.report_page import TIE, Column

    with contextlib.ExitStack() as stack:
        checkpoint = stack.enter_context(zerocopy.open(options.file, device="cpu"))
        columns = [TIE]
        differences = None
        changes: dict[str, list[str]] = defaultdict(list)
        if options.statistics:
            columns += [Column(name, True) for name in _STATISTICS]
        if options.compare:
            columns.append(Column("difference", False))
            other = stack.enter_context(zerocopy.open(options.compare, device="cpu"))
            differences = _compared(checkpoint, other, options, changes)
        rows, files = _facts(checkpoint, options, changes)
        return report_page.page(
            options.file,
            ", ".join(dict.fromkeys(layer.container for layer in checkpoint.layers)),
            rows,
            files,
            {display.shown(k): display.shown(display.described(v)) for k, v in checkpoint.metadata().items()},
            columns,
            differences,
            options.compare or "",
        )


def _compared(
    checkpoint: Checkpoint, other: Checkpoint, options: argparse.Namespace, changes: dict[str, list[str]]
) -> list[str]:
    from zerocopy.cli.tensor_diff import Side, compare

    settings = argparse.Namespace(
        a=options.file, b=options.compare, rtol=None, atol=None, ignore_dtype=False, tensors_only=False, brief=False
    )  # fmt: skip
    lines = []
    for found in diff.differences(Side(checkpoint), Side(other), settings, compare):
        lines.append(diff.line(found))
        only = found["kind"] == "only"
        changes[found["name"]].append("only here" if only else f"{found['kind']}: {found['text']}")
    return lines


def _facts(
    checkpoint: Checkpoint, options: argparse.Namespace, changes: dict[str, list[str]]
) -> tuple[list[Row], list[File]]:
    from zerocopy.cli.report_page import File, Row
    from zerocopy.cli.tensor_diff import Side

    side = Side(checkpoint)
    rows, files = [], []
    infos = checkpoint.tensors()
    progress = output.Progress("zerocopy report:", sum(info.nbytes for info in infos))
    seen = set()
    ties = side.ties(info.name for info in infos)
    extents: dict[Any, list[tuple[int, int, str]]] = defaultdict(list)
    for info in infos:
        layer = side.layer(info.name)
        dtype = str(info.dtype).removeprefix("torch.")
        key = (layer.path, info.storage, info.offset, info.nbytes) if info.storage else (info.name,)
        own = 0 if key in seen else info.nbytes
        seen.add(key)
        if info.offset is not None and own:
            extents[layer.path].append((info.offset, own, dtype))
        more: list[Any] = [ties.get(info.name), *(_statistics(side, info) if options.statistics else ())]
        if options.compare:
            more.append("; ".join(changes[info.name]) or None)
        progress.add(info.nbytes)
        shape = " x ".join(map(str, info.shape)) or "scalar"
        rows.append(Row(info.name, dtype, shape, info.nbytes, info.offset, own, tuple(more)))
    progress.end()
    for layer in checkpoint.layers:
        path = Path(layer.path)
        if path.is_file():
            files.append(File(layer.path, path.stat().st_size, extents[layer.path]))
    return rows, files


def _statistics(side: Side, info: TensorInfo) -> list[float | int | str | None]:
    """Return min, max, mean and std of the finite elements, and how many are NaN and Inf, as `show` has them."""
    from zerocopy import _torch
    from zerocopy.cli.elements import require_few_repeats
    from zerocopy.cli.statistics import statistics_of, summary_of
    from zerocopy.cli.tensor_diff import blocks

    try:
        if side.is_dense(info):
            require_few_repeats(info.name, info.shape, info.stride, _torch.element_size(info.dtype))
            found = summary_of(side.block(info.name, index) for _, index in blocks(tuple(info.shape)))
        else:
            found = statistics_of(side.checkpoint.get_tensor(info.name))
    except (RuntimeError, TypeError, runner.Trouble):  # packed dtypes have no conversion
        return [None] * len(_STATISTICS)
    numbers = found.minimum, found.maximum, found.mean, found.std
    return [*map(_exact, numbers), found.nan, found.positive_infinity + found.negative_infinity]


def _exact(number: float | int | None) -> float | int | str | None:
    """Return a number as the page's script can show it: an integer that JavaScript would round as a string."""
    return str(number) if isinstance(number, int) and abs(number) > _MAX_SAFE_INTEGER else number


def _write(text: str, target: str) -> None:
    if target == "-":
        say([text])
        return
    content = text.encode("utf-8", "backslashreplace")
    if Path(target).exists() and not Path(target).is_file():
        # A device or a pipe takes the page. A file in its place would take its name away from all programs.
        with Path(target).open("wb") as stream:
            stream.write(content)
        return
    path = Path(os.path.realpath(target))
    # A page that is written halfway is not left in the place of an older one.
    with (
        naming(path),
        tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file,
    ):
        try:
            file.write(content)
            file.flush()
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(file.name, 0o666 & ~umask)  # noqa: PTH101
            os.replace(file.name, path)  # noqa: PTH105
        except BaseException:
            os.unlink(file.name)  # noqa: PTH108
            raise
    if sys.stderr.isatty():
        output.print_error(f"{escaped(target)}: {display.size(len(content))}")
