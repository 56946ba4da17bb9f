"""The page of ``zerocopy report``: what a checkpoint holds, as one HTML text without any other file."""

from __future__ import annotations

import html
import json
import os
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from zerocopy import display
from zerocopy._version import __version__
from zerocopy.cli import treemap

_CELLS = 1000  # steps of the picture of a file's layout
_STRIP = 26  # its height
_MAX_FILES = 24
_MAX_LINES = 500  # of values and differences
_COLORS = 8


class Row(NamedTuple):
    """One tensor."""

    name: str
    dtype: str
    shape: str
    nbytes: int
    offset: int | None
    own_bytes: int  # 0 if another tensor over the same bytes is counted
    more: tuple[Any, ...] = ()  # statistics, and the difference


class File(NamedTuple):
    """A file, and which of its bytes are tensors: offset, size and dtype of each."""

    path: str
    size: int
    extents: list[tuple[int, int, str]]


class Column(NamedTuple):
    """A column of the table, beyond those that every report has."""

    name: str
    numeric: bool


#: The first tensor with the same bytes, shape and strides.
TIE = Column("same as", False)
_COLUMNS = (
    Column("name", False),
    Column("dtype", False),
    Column("shape", False),
    Column("bytes", True),
    Column("offset", True),
)


def page(
    title: str,
    container: str,
    rows: Sequence[Row],
    files: Sequence[File],
    values: Mapping[str, str],
    columns: Sequence[Column] = (),
    differences: Sequence[str] | None = None,
    other: str = "",
) -> str:
    """Return the page. The strings given to its script are already escaped for display."""
    rows = [row._replace(name=_shown(row.name), more=tuple(map(_shown, row.more))) for row in rows]
    nbytes = sum(row.own_bytes for row in rows)
    sizes: Counter[str] = Counter()
    for row in rows:
        sizes[row.dtype] += row.own_bytes
    colors = {dtype: number % _COLORS for number, (dtype, _) in enumerate(sizes.most_common())}
    size = sum(file.size for file in files)
    facts = [container, display.count(len(rows), "tensor"), f"{display.size(nbytes)} of tensors"]
    if files:
        facts.append(f"{display.size(size)} in {display.count(len(files), 'file')}")
    if TIE in columns and not any(row.more[0] for row in rows):
        columns, rows = columns[1:], [row._replace(more=row.more[1:]) for row in rows]
    template = string.Template(
        resources.files("zerocopy.cli").joinpath("report.html").read_text(encoding="utf-8")
    )
    return template.substitute(
        title=html.escape(display.shown(title)),
        summary=html.escape(", ".join(facts)),
        note=html.escape(f"Compared with {display.shown(other)}." if other else ""),
        treemap=treemap.svg(treemap.tree((row.name, row.own_bytes, f"c{colors[row.dtype]}") for row in rows)),
        dtypes="".join(_keys(sizes, colors)) or "no tensors",
        layout="".join(_strips(files, colors)) or "<p>No byte of a file is an element of a tensor.</p>",
        differences="" if differences is None else _list_of("Differences", differences),
        values=_list_of("Values that are not tensors", [f"{k}: {v}" for k, v in values.items()]) if values else "",
        version=html.escape(__version__),
        data=_data(rows, columns),
    )  # fmt: skip


def _shown(cell: Any) -> Any:
    return display.shown(cell, None) if isinstance(cell, str) else cell


def _keys(sizes: Counter[str], colors: Mapping[str, int]) -> Iterator[str]:
    for dtype, nbytes in sizes.most_common():
        patch = f'<svg viewBox="0 0 1 1" aria-hidden="true"><rect class="c{colors[dtype]}" width="1" height="1"/></svg>'
        yield f'<span class="key">{patch} {html.escape(dtype)} {display.size(nbytes)}</span>'


def _strips(files: Sequence[File], colors: Mapping[str, int]) -> Iterator[str]:
    for file in files[:_MAX_FILES]:
        if not file.size:
            continue
        shapes = "".join(
            f'<rect class="c{colors[dtype]}" x="{begin}" width="{end - begin}" height="{_STRIP}">'
            f"<title>{html.escape(dtype)}</title></rect>"
            for begin, end, dtype in _runs(file)
        )
        name = html.escape(display.shown(os.path.basename(file.path)))
        covered = sum(size for _, size in _merged(file.extents))
        yield (
            f'<p class="dim">{name}: {display.size(file.size)}, of which {display.size(covered)} are tensors</p>'
            f'<svg class="layout" viewBox="0 0 {_CELLS} {_STRIP}" preserveAspectRatio="none" role="img" '
            f'aria-label="Layout of {name}"><rect class="gap" width="{_CELLS}" height="{_STRIP}"/>{shapes}</svg>'
        )
    if len(files) > _MAX_FILES:
        yield f'<p class="dim">and {display.count(len(files) - _MAX_FILES, "file")} more</p>'


def _runs(file: File) -> Iterator[tuple[int, int, str]]:
    """Yield parts of the picture that have one color: begin, end, dtype."""
    cells = [""] * _CELLS
    for offset, size, dtype in file.extents:
        begin = offset * _CELLS // file.size
        end = max(begin + 1, (offset + size) * _CELLS // file.size)
        cells[begin:end] = [dtype] * (min(end, _CELLS) - begin)
    begin = 0
    for place in range(1, _CELLS + 1):
        if place == _CELLS or cells[place] != cells[begin]:
            if cells[begin]:
                yield begin, place, cells[begin]
            begin = place


def _merged(extents: Iterable[tuple[int, int, str]]) -> Iterator[tuple[int, int]]:
    """Yield the extents without their overlaps, as offset and size."""
    reached = 0
    for offset, size, _ in sorted(extents):
        begin = max(offset, reached)
        if offset + size > begin:
            yield begin, offset + size - begin
            reached = offset + size


def _list_of(title: str, lines: Sequence[str]) -> str:
    shown = "\n".join(html.escape(line) for line in lines[:_MAX_LINES])
    more = f"\nand {len(lines) - _MAX_LINES} more" if len(lines) > _MAX_LINES else ""
    text = f"<pre>{shown}{more}</pre>" if lines else "<p>None.</p>"
    return f'<h2>{title}</h2><div class="scroll">{text}</div>'


def _common(a: str, b: str) -> int:
    """Return the length of the common prefix of two names.

    Return 0 if the prefix is not ASCII, because JavaScript may count its characters differently.
    """
    most = min(len(a), len(b))
    common = next((i for i in range(most) if a[i] != b[i]), most)
    return common if a[:common].isascii() else 0


def _data(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Return the table as JSON that cannot end the script element it stands in.

    A name is written as the number of characters that it shares with the one before, and the rest.
    """
    dtypes: dict[str, int] = {}
    shapes: dict[str, int] = {}
    packed = []
    last = ""
    for row in rows:
        common = _common(last, row.name)
        last = row.name
        dtype = dtypes.setdefault(row.dtype, len(dtypes))
        shape = shapes.setdefault(row.shape, len(shapes))
        packed.append([common, last[common:], dtype, shape, row.nbytes, row.offset, *row.more])
    content = {
        "columns": [column._asdict() for column in (*_COLUMNS, *columns)],
        "dtypes": list(dtypes),
        "shapes": list(shapes),
        "rows": packed,
    }
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
