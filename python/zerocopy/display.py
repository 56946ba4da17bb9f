"""Checkpoints as people read them: sizes, names of strangers', an outline, a table for a notebook.

Names come from the file. A shown name is bounded, cannot control the terminal, and is not markup.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_MAX_LENGTH = 200  # characters of a name in a message
_WIDEST = 60  # of the column of names in an outline
_DEEPEST = 12  # levels of an outline; the rest of a name is one label
_ROWS = 200  # of a table
_UNITS = {1000: ("B", "kB", "MB", "GB", "TB"), 1024: ("B", "KiB", "MiB", "GiB", "TiB")}


def shown(text: str, longest: int = _MAX_LENGTH) -> str:
    """Return a text of a file's, cut, and escaped unless all of it is printable."""
    cut = text[:longest]
    safe = cut if cut.isprintable() else cut.encode("unicode_escape").decode("ascii")
    return safe if len(text) <= longest and len(safe) <= longest else safe[:longest] + "..."


def described(value: object) -> str:
    """Return a short description of any object of a file's. Its ``repr`` may be endless."""
    if isinstance(value, str):
        return repr(shown(value))
    if isinstance(value, int) and value.bit_length() <= 64:
        return repr(value)
    return f"an object of type {type(value).__name__}"


def size(nbytes: int, base: int = 1000) -> str:
    """Return a number of bytes as "1.2 MB", or as "1.1 MiB" for the base 1024."""
    value, unit, units = float(nbytes), 0, _UNITS[base]
    while value >= base - 0.05 and unit < len(units) - 1:  # which "1000.0" would be rounded to
        value, unit = value / base, unit + 1
    return f"{value:.1f} {units[unit]}" if unit else f"{nbytes} B"


def listed(items: Iterable[str], most: int = 20) -> str:
    """Return items joined by commas, at most so many of them."""
    items = list(items)
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def count(number: int, noun: str) -> str:
    """Return "1 tensor", "2 tensors"."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def spread(numbers: list[int], shown: Callable[[int], str]) -> str:
    """Return the least and the greatest of some numbers, or the one that all are."""
    least, most = min(numbers), max(numbers)
    return shown(least) if least == most else f"{shown(least)} to {shown(most)}"


def total(infos: Iterable[Any]) -> int:
    """Return the bytes of tensors; what is tied counts each time."""
    return sum(info.nbytes for info in infos)


class _Branch:
    """The entries with one label in an outline: tensors, branches below, or both ("a" beside "a.b")."""

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.below: dict[str, _Branch] = defaultdict(_Branch)
        self.number = 0
        self.nbytes = 0


def outline(title: str, infos: Iterable[Any], depth: int | None = None) -> str:
    """Return tensors nested by the dots in their names, with sums for each branch.

    Parameters
    ----------
    title : str
        The first line.
    infos : iterable of TensorInfo
        The tensors to list.
    depth : int, optional
        How many levels; branches below are only summed up.
    """
    root = _Branch()
    for info in infos:
        branch = root
        for label in info.name.split(".", _DEEPEST - 1):
            branch = branch.below[label]
            branch.number += 1
            branch.nbytes += info.nbytes
        branch.tensors.append(info)
    rows = list(_rows(root, 1, _DEEPEST if depth is None else depth))
    widths = [max((len(cell) for cell in column), default=0) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row[:-1], widths)) + "  " + row[-1].rjust(widths[-1]) for row in rows)
    return "\n".join([title, *lines])


def _rows(branch: _Branch, level: int, depth: int) -> Iterator[tuple[str, str, str, str]]:
    """Yield the lines of an outline: label, dtype or number of tensors, shape, bytes."""
    if level > depth:
        return
    for label, inner in branch.below.items():
        text = shown("  " * level + (shown(label) or "''"), _WIDEST)
        for info in inner.tensors:
            yield text, _dtype(info), _shape(info), size(info.nbytes)
        if inner.below:
            yield text, count(inner.number, "tensor"), "", size(inner.nbytes)
            yield from _rows(inner, level + 1, depth)


def table(title: str, infos: Iterable[Any]) -> str:
    """Return an HTML table of tensors with bars of their bytes, the first :data:`_ROWS` of them."""
    import html  # of notebooks only: every load would pay for it

    infos = list(infos)
    largest = max((info.nbytes for info in infos), default=0) or 1
    heads = "".join(f"<th>{head}</th>" for head in ("name", "dtype", "shape", "bytes", ""))
    rows = "".join(_html_row(info, 100 * info.nbytes / largest) for info in infos[:_ROWS])
    more = ""
    if left_out := infos[_ROWS:]:
        text = f"and {count(len(left_out), 'tensor')} more, {size(total(left_out))}"
        more = f'<tr><td colspan="5">{text}</td></tr>'
    return f"<table><caption>{html.escape(title)}</caption><tr>{heads}</tr>{rows}{more}</table>"


def _html_row(info: Any, percent: float) -> str:
    import html

    cells = (shown(info.name) or "''", _dtype(info), _shape(info), size(info.nbytes))
    bar = f'<div style="background:#4c78a8;height:0.8em;width:{percent:.1f}%"></div>'
    return (
        "<tr>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        + f'<td style="width:12em">{bar}</td></tr>'
    )


def _dtype(info: Any) -> str:
    return str(info.dtype).removeprefix("torch.")


def _shape(info: Any) -> str:
    return shown(" x ".join(map(str, info.shape)) or "scalar", _WIDEST)
