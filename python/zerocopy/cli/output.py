"""What commands print, and the only place of the package that prints."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from typing import Any

from zerocopy import display, environment

_MAX_LENGTH = 200
_MIN_BYTES = 1 << 20  # of a progress whose rate is shown


def escaped(text: str | bytes, longest: int = _MAX_LENGTH) -> str:
    """Return a text of a file's so that it cannot drive a terminal or break a line: ASCII, and not long."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    cut = text[:longest].encode("unicode_escape").decode("ascii")
    return cut if len(text) <= longest else cut + "..."


def listed(items: Iterable[str], most: int = 20) -> str:
    """Return items joined by commas, of which only so many are shown."""
    items = list(items)
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def say(lines: Iterable[str]) -> None:
    """Print lines to standard output."""
    for line in lines:
        print(line)


def say_json(value: Any) -> None:
    """Print a value as JSON, ASCII only."""
    json.dump(value, sys.stdout, indent=2)
    print()


def complain(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr)


def flush() -> None:
    """Have standard output written now, where a broken pipe can still be met."""
    sys.stdout.flush()


def hush() -> None:
    """Have nobody to print to, so that the interpreter's last flush does not fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Progress:
    """Percentage, bytes, rate and time left on the last line of a terminal; nothing where standard error is none."""

    def __init__(self, what: str, whole: int) -> None:
        self._what, self._whole, self._done, self._shown = what, whole, 0, -1
        self._wanted = sys.stderr.isatty() and not environment.is_true("TQDM_DISABLE")
        self._start, self._width = time.monotonic(), 0

    def add(self, amount: int) -> None:
        """Note that so much more of the whole is done."""
        self._done += amount
        percent = 100 * self._done // max(self._whole, 1)
        if self._wanted and percent != self._shown:
            self._shown = percent
            self._draw(f"{self._what} {percent} %{self._speed()}")

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

    def _draw(self, line: str) -> None:
        print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(line)

    def end(self) -> None:
        """Clear the line."""
        if self._shown >= 0:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)
