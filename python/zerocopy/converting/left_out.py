"""Says once what a target does not hold of its sources."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from zerocopy import display
from zerocopy.display import shown
from zerocopy.errors import UnsupportedError

_logger = logging.getLogger("zerocopy")


class LeftOut:
    """Counts the parts of its sources that a target does not hold, for one summary."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[str]] = {}

    def add(self, kind: str, names: Iterable[str]) -> None:
        """Note names of one kind."""
        self._kinds.setdefault(kind, []).extend(names)

    def report(self, target: Path, strict: bool | None) -> None:
        """Log one WARNING that counts and names all; with `strict` raise ``UnsupportedError`` instead."""
        kinds = [f"{kind} ({len(names)}): {listed(names)}" for kind, names in self._kinds.items() if names]
        if kinds and strict:
            raise UnsupportedError(f"{target}: strict refuses to leave out {'; '.join(kinds)}")
        if kinds:
            _logger.warning("%s: left out %s", target, "; ".join(kinds))


def listed(names: Iterable[str]) -> str:
    """Return names of a file for a message, the first ten of them."""
    return display.listed(map(shown, names), 10)
