"""Shared by the commands of kept results and fork servers: exit codes, units."""

from __future__ import annotations

from zerocopy import display
from zerocopy.cli import runner


def exit_codes(fine: str, bad: str, trouble: str) -> str:
    """Return what the help says of exit codes."""
    return f"""
exit codes:
  {runner.FINE}  {fine}
  {runner.BAD}  {bad}
  {runner.TROUBLE}  trouble: {trouble}
"""


def size(count: int) -> str:
    """Return a number of bytes in the units of ``ZEROCOPY_MAX_BYTES``."""
    return display.size(count, 1024)


def span(seconds: float) -> str:
    """Write a span of time as people read it."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
