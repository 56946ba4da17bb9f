"""Checkpoints as people read them: sizes, texts of strangers, an outline.

:func:`shown` makes every text of a file, a path or an argument fit to be seen, wherever the text goes: a row, an error,
a log, a page. The places where output leaves (``cli/output.py``, the parser of arguments, the logger, ``Error``) apply
it once more to whole lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

_MAX_LENGTH = 200  # characters of a name in a message
_LONGEST = 2000  # characters of a label in an outline
_WIDEST, _NARROWEST = 60, 12  # of the column of labels; one that is longer has a line of its own
_DEEPEST = 12  # levels of an outline; the rest of a name is one label
_BEFORE_BACKSLASH = r"\[\]-"  # a gap in the range of plain characters
_UNITS = {1000: ("B", "kB", "MB", "GB", "TB"), 1024: ("B", "KiB", "MiB", "GiB", "TiB")}


def shown(
    text: str | bytes, longest: int | None = _MAX_LENGTH, *, exact: bool = False, keep: str = ""
) -> str:
    r"""Return a text of a stranger's so that it can neither control what shows it nor look like another text.

    Control characters, line breaks, marks that change the direction of writing, and halves of characters become
    escapes (``\x1b``, ``\n``, ``\u202e``). The result is printable.

    Parameters
    ----------
    text : str or bytes
        Bytes are taken for UTF-8.
    longest : int, optional
        How many characters are shown before "..."; None for all.
    exact : bool
        Escape backslashes too, and all that is not ASCII: no other text is shown so.
    keep : str
        Characters that stay: the line breaks of a text whose parts are shown already.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    cut = text[:longest]
    if exact or not cut.isprintable():
        cut = _odd(exact, keep).sub(_plainer if exact else _visible, cut)
    is_cut = longest is not None and (len(text) > longest or (len(cut) > longest and not exact))
    return (cut if exact else cut[:longest]) + "..." if is_cut else cut


@lru_cache
def _odd(exact: bool, keep: str) -> re.Pattern[str]:
    return re.compile(f"[^ -{_BEFORE_BACKSLASH if exact else ''}~{keep}]")


def _plainer(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def _visible(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else _plainer(found)


def columns(text: str) -> int:
    """Return how many columns of a terminal a text takes: letters of CJK and emoji take two, combining marks none."""
    if text.isascii():
        return len(text)
    import unicodedata  # few need it

    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def described(value: object) -> str:
    """Return a short description of any object of a file's. Its ``repr`` may be endless."""
    if isinstance(value, str):
        # repr would escape again what is not printable.
        return repr(shown(value)) if value.isprintable() else f"'{shown(value)}'"
    if value is None or isinstance(value, (float, complex)):
        return repr(value)
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
    """Return at most `most` items joined by commas. An empty item is shown as two quotes."""
    items = [item or "''" for item in items]
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
    """Return the bytes of tensors; tied tensors count each time."""
    return sum(info.nbytes for info in infos)


class _Branch:
    """The entries with one label in an outline: tensors, branches below, or both ("a" beside "a.b")."""

    __slots__ = ("below", "nbytes", "number", "tensors")  # most are one tensor, and there may be very many

    def __init__(self) -> None:
        self.tensors: tuple[Any, ...] = ()
        self.below: dict[str, _Branch] | None = None
        self.number = 0
        self.nbytes = 0

    def child(self, label: str) -> _Branch:
        """Return the branch of a label below this one."""
        if self.below is None:
            self.below = {}
        found = self.below.get(label)
        if found is None:
            found = self.below[label] = _Branch()
        return found


def shortened(text: str, width: int) -> str:
    """Return a text of at most `width` characters, with ``...`` in place of its middle."""
    if len(text) <= width:
        return text
    tail = (width - 3) * 2 // 3  # The end of a dotted name says more than the beginning.
    return f"{text[: width - 3 - tail]}...{text[-tail:]}"


def outline(title: str, infos: Iterable[Any], depth: int | None = None, width: int | None = None) -> str:
    """Return tensors nested by the dots in their names, with sums for each branch.

    Parameters
    ----------
    title : str
        The first line.
    infos : iterable of TensorInfo
        The tensors to list. An info that stands for several has their ``number``.
    depth : int, optional
        How many levels; branches below are only summed up.
    width : int, optional
        How long lines may be, but for those of long labels, which have lines of their own.
    """
    root = _Branch()
    for info in infos:
        branch = root
        for label in info.name.split(".", _DEEPEST - 1):
            branch = branch.child(label)
            branch.number += getattr(info, "number", 1)
            branch.nbytes += info.nbytes
        branch.tensors += (info,)
    rows = list(_rows(root, 1, _DEEPEST if depth is None else depth))
    if not rows:
        return title
    labels, *others = zip(*rows, strict=True)
    rest = [max(map(len, column)) for column in others]
    most = max(map(columns, labels))
    room = _WIDEST if width is None else max(_NARROWEST, width - sum(rest) - 2 * len(rest))
    most = min(most, room)
    lines = [title]
    for label, *cells in rows:
        if columns(label) > most:
            lines.append(label)
            label = ""
        first = label + " " * (most - columns(label))
        lines.append("  ".join([first, *map(str.ljust, cells[:-1], rest), cells[-1].rjust(rest[-1])]))
    return "\n".join(lines)


def _rows(branch: _Branch, level: int, depth: int) -> Iterator[tuple[str, str, str, str]]:
    """Yield the lines of an outline: label, dtype or number of tensors, shape, bytes."""
    if level > depth or branch.below is None:
        return
    for label, inner in branch.below.items():
        text = "  " * level + (shown(label, _LONGEST) or "''")
        for info in inner.tensors:
            yield text, dtype(info), shape(info), size(info.nbytes)
        if inner.below:
            yield text, count(inner.number, "tensor"), "", size(inner.nbytes)
            yield from _rows(inner, level + 1, depth)


def dtype(info: Any) -> str:
    """Return the dtype of a tensor without torch's name."""
    return _dtype(info.dtype)


def shape(info: Any) -> str:
    """Return the shape of a tensor as "2 x 3"."""
    return _shape(info.shape)


@lru_cache(256)
def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


@lru_cache(1024)  # many tensors of a model have the same
def _shape(shape: tuple[int, ...]) -> str:
    return shown(" x ".join(map(str, shape)) or "scalar", _WIDEST)
