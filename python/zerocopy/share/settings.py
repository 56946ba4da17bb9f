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
    """Return how much memory results may take; None for any."""
    return parsed_bytes(os.environ.get("ZEROCOPY_MAX_BYTES", ""), "ZEROCOPY_MAX_BYTES")


def parsed_bytes(given: str, name: str) -> int | None:
    """Return a number of bytes, which may have K, M, G or T behind it; None for no text. `name` is who gave it."""
    text = given.strip().upper().removesuffix("B").removesuffix("I")
    if not text:
        return None
    number, unit = (text[:-1], text[-1]) if text[-1] in _UNITS else (text, "")
    if not (number.isascii() and number.isdigit()):
        raise ValueError(f"{name} must be a number of bytes, not {given!r}")
    return int(number) * _UNITS[unit]


def timeout() -> float:
    """Return how long a result may take to be computed: ``ZEROCOPY_SHARE_TIMEOUT``, in seconds."""
    return min(seconds("ZEROCOPY_SHARE_TIMEOUT", _TIMEOUT), _MAX_LENGTH)


def seconds(variable: str, default: float) -> float:
    """Return what a variable says of seconds."""
    return parsed_seconds(os.environ.get(variable, ""), variable, default)


def parsed_seconds(given: str, name: str, default: float) -> float:
    """Return a number of seconds, and the default for no text. `name` is who gave it."""
    if not given:
        return default
    try:
        found = float(given)
    except ValueError:
        found = math.nan
    if not found > 0:
        raise ValueError(f"{name} must be a number of seconds above 0, not {given!r}")
    return found
