"""Read the model server's settings from environment variables."""

from __future__ import annotations

import math
import os
from typing import NamedTuple, Self

_IDLE = 3600.0
_TIMEOUT = 1800.0
_MAX_LENGTH = 1e9  # no clock takes much more
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Settings(NamedTuple):
    """Of a server, as it was started."""

    max_bytes: int | None
    idle: float

    @classmethod
    def of_environment(cls) -> Self:
        """Read ``ZEROCOPY_MAX_BYTES`` and ``ZEROCOPY_SHARE_IDLE``."""
        return cls(max_bytes(), seconds("ZEROCOPY_SHARE_IDLE", _IDLE))


def max_bytes() -> int | None:
    """Return how much memory results may take: a number, or one with K, M, G or T behind it; None for any."""
    text = os.environ.get("ZEROCOPY_MAX_BYTES", "").strip().upper().removesuffix("B").removesuffix("I")
    if not text:
        return None
    number, unit = (text[:-1], text[-1]) if text[-1] in _UNITS else (text, "")
    if not (number.isascii() and number.isdigit()):
        raise ValueError(f"ZEROCOPY_MAX_BYTES must be a number of bytes, not {text!r}")
    return int(number) * _UNITS[unit]


def timeout() -> float:
    """Return how long a result may take to be computed: ``ZEROCOPY_SHARE_TIMEOUT``, in seconds."""
    return min(seconds("ZEROCOPY_SHARE_TIMEOUT", _TIMEOUT), _MAX_LENGTH)


def seconds(variable: str, default: float) -> float:
    """Return what a variable says of seconds."""
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not found > 0:
        raise ValueError(f"{variable} must be a number of seconds above 0, not {text!r}")
    return found
