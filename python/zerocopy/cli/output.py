"""Prints for all commands: no other module of the package prints."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Self

from zerocopy import display, environment
from zerocopy.display import listed as listed

_MAX_LENGTH = 200
_MAX_VISIBLE = 2000
_NARROWEST = 40  # columns
_USUAL = 80
_LAYOUT = "\n\t"  # of outlines, and of rows for a pipe
_BATCH = 1000  # lines
_MIN_BYTES = 1 << 20  # of a progress whose rate is shown


def escaped(text: str | bytes, longest: int = _MAX_LENGTH) -> str:
    """Return text from a file as short ASCII, which can be typed. Different texts of that length look different."""
    return display.shown(text, longest, exact=True)


def visible(text: str) -> str:
    """Return text from a file for people: letters of any language as they are, where standard output takes them."""
    takes_all = is_terminal() and (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return display.shown(text, _MAX_VISIBLE) if takes_all else escaped(text, _MAX_VISIBLE)


def named(text: str) -> str:
    """Return a name or a path as `escaped` does, and an empty one as two quotes, so that it can be seen."""
    return escaped(text) or "''"


def printable(text: str, longest: int = _MAX_LENGTH) -> str:
    """Return a message that may quote a file: as it is if it is printable ASCII, else escaped."""
    return text[:longest] if text.isascii() and text.isprintable() else escaped(text, longest)


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


class Bold(str):
    """A line that is printed in bold where standard output is a terminal that takes colors."""


def bold(text: str) -> str:
    """Return a line in bold where standard output is a terminal that takes colors (``NO_COLOR`` is honored)."""
    wanted = is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in (None, "dumb")
    return Bold(text) if wanted else text


def width() -> int:
    """Return the width of the terminal, or of ``COLUMNS``; 80 where neither says it."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return max(_NARROWEST, int(columns))
    return max(_NARROWEST, _columns_of(sys.stdout))


def _columns_of(stream: Any) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL
    except (OSError, ValueError):  # it is not a terminal, or is closed
        return _USUAL


class OutputError(OSError):
    """Standard output cannot be written to: a full disk, for example."""


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Raise OutputError in place of the errors of a block that only writes to standard output."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error.errno, error.strerror) from None


def say(lines: Iterable[str]) -> None:
    """Print lines to standard output, many at once."""
    remaining = iter(lines)
    while batch := list(itertools.islice(remaining, _BATCH)):
        with writing():
            sys.stdout.write("".join(map(_printed, batch)))


def _printed(line: str) -> str:
    text = display.shown(line, None, keep=_LAYOUT)
    return f"\x1b[1m{text}\x1b[0m\n" if isinstance(line, Bold) else f"{text}\n"


def say_text(text: str) -> None:
    """Print a text of many lines at once."""
    with writing():
        sys.stdout.write(display.shown(text, None, keep=_LAYOUT))


def say_compact_json(value: Any) -> None:
    """Print a value as JSON on one line, ASCII only. This is many times faster than with indentation."""
    say_text(json.dumps(value, separators=(",", ":")) + "\n")


def plain(value: Any) -> Any:
    """Return numbers, or lists of them, as JSON has them: NaN, infinities and complex ones as strings."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value


def say_json(value: Any) -> None:
    """Print a value as JSON, ASCII only."""
    with writing():
        json.dump(value, sys.stdout, indent=2)
        print()


def print_error(line: str) -> None:
    """Print a line to standard error."""
    print(display.shown(line, None), file=sys.stderr)


def flush() -> None:
    """Flush standard output now, where an error can still be handled."""
    with writing():
        if sys.stdout is not None:
            sys.stdout.flush()


def silence_stdout() -> None:
    """Send stdout to /dev/null so that the final flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Progress:
    """A context manager that shows percentage, bytes, rate and time left on the last line of a terminal, if any."""

    def __init__(self, what: str, whole: int) -> None:
        self._what, self._whole, self._done, self._shown = display.shown(what, None), whole, 0, -1
        self._wanted = sys.stderr.isatty() and environment.shows_progress()
        self._start, self._width = time.monotonic(), 0

    def add(self, amount: int) -> None:
        """Add an amount to what is done."""
        self._done += amount
        percent = 100 * self._done // max(self._whole, 1)
        if self._wanted and percent != self._shown:
            self._shown = percent
            self._draw(f" {percent} %{self._speed()}")

    def reach(self, done: int, whole: int) -> None:
        """Show the bytes that are done, and the total."""
        self._whole = whole
        self.add(done - self._done)

    def _speed(self) -> str:
        """Return bytes, rate and time left, after a second and for amounts that are bytes."""
        seconds = time.monotonic() - self._start
        if seconds < 1 or self._whole < _MIN_BYTES:
            return ""
        rate = self._done / seconds
        left = (self._whole - self._done) / rate if rate else 0
        return (
            f", {display.size(self._done)} of {display.size(self._whole)}, {display.size(int(rate))}/s, "
            f"{left:.0f} s left"
        )

    def _draw(self, numbers: str) -> None:
        most = _columns_of(sys.stderr) - 1  # a longer line would scroll
        line = (display.shortened(self._what, max(12, most - len(numbers))) + numbers)[:most]
        print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown >= 0:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)
