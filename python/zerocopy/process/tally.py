"""Counts what the patched ``torch.load`` and ``share`` did, for one line at the end of the program."""

from __future__ import annotations

import atexit
import logging
import os
from collections import Counter

from zerocopy.display import listed, shown, size
from zerocopy.process import log_level
from zerocopy.process.fork_safe import ForkSafeLock

_MAX_REASONS = 3
_log = logging.getLogger("zerocopy")


class Tally:
    """Counts calls of ``torch.load``, their bytes, the reasons why some were left to torch, and kept results."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._calls = self._failed = 0
        self._nbytes: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._shared = self._shared_bytes = 0

    def add_served(self, placement: Counter[str]) -> None:
        """Count a call that zerocopy served. `placement` has its bytes by how they were loaded."""
        with self._lock.held():
            self._calls += 1
            self._nbytes.update(placement)

    def add_left(self, reason: str) -> None:
        """Count a call that went to torch."""
        with self._lock.held():
            self._calls += 1
            self._reasons[reason.removeprefix("this is a ")] += 1

    def add_failed(self) -> None:
        """Count a call that raised an error."""
        with self._lock.held():
            self._calls += 1
            self._failed += 1

    def add_shared(self, nbytes: int) -> None:
        """Count a kept result that was taken, with the bytes that were mapped for it."""
        with self._lock.held():
            self._shared += 1
            self._shared_bytes += nbytes

    def __str__(self) -> str:
        with self._lock.held():
            loads = [self._loads()] if self._calls or not self._shared else []
            shared = f"{self._shared} kept results: {size(self._shared_bytes)} mapped"
            return "; ".join(loads + [shared] * bool(self._shared))

    def _loads(self) -> str:
        parts = [f"{size(nbytes)} {how}" for how, nbytes in self._nbytes.items() if nbytes]
        if left := sum(self._reasons.values()):
            reasons = listed((shown(reason) for reason, _ in self._reasons.most_common()), _MAX_REASONS)
            parts.append(f"{left} left to torch ({reasons})")
        if self._failed:
            parts.append(f"{self._failed} failed")
        return f"{self._calls} torch.load" + (f": {', '.join(parts)}" if parts else "")


_tally = Tally()
_reporting_process = 0  # children of fork that end normally must not report what the parent did


def report_at_exit() -> None:
    """Log one line at the end of this process, where ``ZEROCOPY_LOG_LEVEL`` asks for level INFO."""
    global _reporting_process
    if log_level.is_requested() and _reporting_process != os.getpid():
        if not _reporting_process:
            atexit.register(_report)
        _reporting_process = os.getpid()


def will_be_reported() -> bool:
    """Return whether this process will log the line of :func:`report_at_exit` when it ends."""
    return bool(_reporting_process)


def _report() -> None:
    if _reporting_process == os.getpid():
        _log.info("%s", _tally)


add_served, add_left, add_failed = _tally.add_served, _tally.add_left, _tally.add_failed
add_shared = _tally.add_shared
