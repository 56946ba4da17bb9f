"""What the environment says."""

from __future__ import annotations

import os

_TRUE = frozenset({"1", "y", "yes", "true"})


def is_true(variable: str) -> bool:
    """Return whether an environment variable says yes, as torch reads its own."""
    return os.environ.get(variable, "0").lower() in _TRUE


def is_disabled() -> bool:
    """Return whether zerocopy's patches are turned off."""
    return is_true("ZEROCOPY_DISABLE")
