"""Reports once which parts of its sources a target leaves out."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from zerocopy import display
from zerocopy.display import shown
from zerocopy.errors import UnsupportedError

_logger = logging.getLogger("zerocopy")


def report(target: Path, left_out: Mapping[str, list[str]], strict: bool | None) -> None:
    """Log one WARNING that counts and names all, by kind; with `strict` raise ``UnsupportedError`` instead."""
    kinds = [f"{kind} ({len(names)}): {listed(names)}" for kind, names in left_out.items() if names]
    if kinds and strict:
        raise UnsupportedError(f"{target}: strict refuses to leave out {'; '.join(kinds)}")
    if kinds:
        _logger.warning("%s: left out %s", target, "; ".join(kinds))


def listed(names: Iterable[str]) -> str:
    """Return names of a file for a message, the first ten of them."""
    return display.listed(map(shown, names), 10)
