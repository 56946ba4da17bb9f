"""Lays out text in columns that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from zerocopy import display
from zerocopy.cli import output

_GAP = "  "
_MIN_FLEXIBLE = 12


def cell(text: str) -> str:
    """Return text from a file as one cell: without a space, so that it cannot look like several cells, or a tie."""
    return output.escaped(text).replace(" ", "\\x20")


def lines(
    heading: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Collection[int],
    shorten: Callable[[str, int], str] = display.shortened,
) -> Iterator[str]:
    """Yield a table whose first column is shortened until the lines fit the terminal.

    Parameters
    ----------
    heading : sequence of str
        Titles of the columns.
    rows : sequence of sequences of str
        ASCII, without line breaks.
    numbers : collection of int
        The columns that are aligned to the right.
    shorten : callable
        Returns the text of a first cell in at most so many characters.
    """
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    most = output.width()
    spare = most - sum(widths[1:]) - len(_GAP) * (len(widths) - 1)
    widths[0] = min(widths[0], max(spare, _MIN_FLEXIBLE))

    def line(cells: Sequence[str]) -> str:
        first = shorten(cells[0], widths[0])
        laid = (
            cell.rjust(width) if number in numbers else cell.ljust(width)
            for number, (cell, width) in enumerate(zip((first, *cells[1:]), widths, strict=True))
        )
        return _GAP.join(laid).rstrip()[:most]

    yield output.bold(line(heading))
    yield from map(line, rows)
