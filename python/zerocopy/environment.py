"""What the environment says."""

from __future__ import annotations

import os

_TRUE = frozenset({"1", "y", "yes", "true"})

MOST_THREADS = 1024


def is_true(variable: str) -> bool:
    """Return whether an environment variable says yes, as torch reads its own."""
    return os.environ.get(variable, "0").lower() in _TRUE


def is_disabled() -> bool:
    """Return whether zerocopy's patches are turned off."""
    return is_true("ZEROCOPY_DISABLE") or os.environ.get("ZEROCOPY_DISABLE", "").lower() == "on"


def threads(default: int) -> int:
    """Return how many threads may read at once: ``ZEROCOPY_NUM_THREADS``, or a default."""
    text = os.environ.get("ZEROCOPY_NUM_THREADS")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_THREADS):
        raise ValueError(f"ZEROCOPY_NUM_THREADS must be a number from 1 to {MOST_THREADS}, not {text!r}")
    return int(text)


def bridge() -> str:
    """Return ``ZEROCOPY_BRIDGE``: ``auto``, or ``portable`` for tensors without a compiled bridge to torch."""
    text = os.environ.get("ZEROCOPY_BRIDGE") or "auto"
    if text not in ("auto", "portable"):
        raise ValueError(f"ZEROCOPY_BRIDGE must be auto or portable, not {text!r}")
    return text
