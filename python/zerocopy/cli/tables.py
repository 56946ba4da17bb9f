"""Lays out rows in columns that fit the terminal. Names are never cut: other columns go first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from zerocopy import display
from zerocopy.cli import output

_GAP = "  "
_INDENT = 4  # of the cells below a name that has a line of its own
_EXTRA = 3  # the rank from which a column makes room for a longer name


class Column(NamedTuple):
    """A column of a table.

    Attributes
    ----------
    title : str
        Its heading.
    is_number : bool
        Whether its cells are aligned to the right.
    rank : int
        The column of the greatest rank is the first to be left out. From 3 on it makes room for a name that would need
        a line of its own; below, only where the cells alone are wider than the terminal. 0 stays.
    is_size : bool
        Whether cells such as "1.2 MB" may become "1.2M".
    """

    title: str
    is_number: bool = False
    rank: int = 0
    is_size: bool = False


def cell(text: str) -> str:
    """Return text from a file as one cell: without a space, so that it cannot look like several cells, or a tie."""
    return output.visible(text).replace(" ", "\\x20") or "''"


def lines(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table that fits the terminal, as far as names allow it.

    Parameters
    ----------
    columns : sequence of Column
        The first has the names.
    rows : sequence of sequences of str
        Cells without line breaks.
    """
    most = output.width()
    cells = [list(found) for found in zip([column.title for column in columns], *rows, strict=True)]
    widths = [max(_widths(found)) for found in cells]
    kept = list(range(1, len(columns)))
    short = False

    def taken() -> int:
        return sum(len(_GAP) + _width(widths[i], columns[i], short=short) for i in kept)

    def is_left_out(least: int) -> bool:
        number = max(kept, key=lambda i: columns[i].rank, default=0)
        if columns[number].rank < least:
            return False
        kept.remove(number)
        return True

    while widths[0] + taken() > most and is_left_out(_EXTRA):
        pass
    short = widths[0] + taken() > most
    while _INDENT + taken() > most and is_left_out(1):
        pass
    first = min(widths[0], max(most - taken(), _INDENT))
    # Column by column: a call for each cell would take most of the time of long tables.
    is_above = [bool(kept) and width > first for width in _widths(cells[0])]
    names = ["" if above else name for above, name in zip(is_above, cells[0], strict=True)]
    laid = [_padded(names, first, is_number=False)]
    for i in kept:
        texts = list(map(_short, cells[i])) if short and columns[i].is_size else cells[i]
        laid.append(_padded(texts, _width(widths[i], columns[i], short=short), columns[i].is_number))
    lined = (_GAP.join(parts).rstrip() for parts in zip(*laid, strict=True))
    yield output.bold(next(lined))
    for above, name, line in zip(is_above[1:], cells[0][1:], lined, strict=True):
        if above:
            yield name
        yield line


def _widths(texts: Sequence[str]) -> list[int]:
    return list(map(len if all(map(str.isascii, texts)) else display.columns, texts))


def _width(width: int, column: Column, *, short: bool) -> int:
    """Return the width of a column: "1234.5 MB" loses a space and a letter, the heading does not."""
    return max(len(column.title), width - 2) if short and column.is_size else width


def _short(size: str) -> str:
    return size.replace(" ", "").removesuffix("B")


def _padded(texts: Sequence[str], width: int, is_number: bool) -> list[str]:
    pad = str.rjust if is_number else str.ljust
    if all(map(str.isascii, texts)):
        return [pad(text, width) for text in texts]
    return [pad(text, width + len(text) - display.columns(text)) for text in texts]
