"""HTML tables for notebooks, with names that come from files: bounded, printable, escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from zerocopy.display import count, dtype, shape, shown, size, total

MAX_ROWS = 200
_MAX_TITLE = 500  # characters


class Bar(NamedTuple):
    """A cell that shows a share of the largest number as a bar."""

    percent: float


def table(
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Bar]],
    *,
    more: str = "",
    notes: Iterable[str] = (),
) -> str:
    """Return an HTML table.

    Parameters
    ----------
    title : str
        The caption; without one if empty.
    heads : sequence of str
        The heads of the columns.
    rows : iterable of sequences of str or Bar
        The cells. Rows after the first :data:`MAX_ROWS` are left out.
    more : str
        Text of the last row, which says what was left out.
    notes : iterable of str
        Paragraphs below the table.
    """
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in islice(rows, MAX_ROWS))
    caption = f"<caption>{_escaped(title, _MAX_TITLE)}</caption>" if title else ""
    head = "".join(f"<th>{_escaped(head)}</th>" for head in heads)
    last = f'<tr><td colspan="{len(heads)}">{_escaped(more)}</td></tr>' if more else ""
    below = "".join(f"<p>{_escaped(note, _MAX_TITLE)}</p>" for note in notes)
    return f"<table>{caption}<tr>{head}</tr>{body}{last}</table>{below}"


def left_out(number: int, noun: str) -> str:
    """Return "and 3 tensors more" for a table that does not show all; an empty string if it does."""
    return f"and {count(number - MAX_ROWS, noun)} more" if number > MAX_ROWS else ""


def table_of_tensors(title: str, infos: Sequence[Any]) -> str:
    """Return an HTML table of tensors, with bars of their bytes.

    Parameters
    ----------
    title : str
        The caption.
    infos : sequence of TensorInfo
        The tensors to list.
    """
    largest = max((info.nbytes for info in infos), default=0) or 1
    rows = (
        (info.name or "''", dtype(info), shape(info), size(info.nbytes), Bar(100 * info.nbytes / largest))
        for info in infos
    )
    more = left_out(len(infos), "tensor")
    more = more and f"{more}, {size(total(infos[MAX_ROWS:]))}"
    return table(title, ("name", "dtype", "shape", "bytes", ""), rows, more=more)


def _cell(cell: str | Bar) -> str:
    if isinstance(cell, Bar):
        bar = f'<div style="background:#4c78a8;height:0.8em;width:{cell.percent:.1f}%"></div>'
        return f'<td style="width:12em">{bar}</td>'
    return f"<td>{_escaped(cell)}</td>"


def _escaped(text: str, *longest: int) -> str:
    import html  # only notebooks need it, and every load would pay for it

    return html.escape(shown(text, *longest))
