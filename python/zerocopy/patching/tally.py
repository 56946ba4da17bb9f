"""Counts what the patched ``torch.load`` did, for one line at the end of the program."""

from __future__ import annotations

import atexit
import logging
import os
import pickle
from collections import Counter

from zerocopy._native import _C
from zerocopy.display import listed, shown, size
from zerocopy.errors import Error
from zerocopy.loading.device import staging
from zerocopy.loading.options import LoadOptions
from zerocopy.process import log_level
from zerocopy.process.fork_safe import ForkSafeLock

_MAX_REASONS = 3
_log = logging.getLogger("zerocopy")


class Tally:
    """Calls of ``torch.load``, the bytes that came of them, and the reasons of those left to torch."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._calls = self._failed = 0
        self._nbytes: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def add_served(self, placement: Counter[str]) -> None:
        """Count a call that zerocopy served, with the bytes of each way to memory."""
        with self._lock:
            self._calls += 1
            self._nbytes.update(placement)

    def add_left(self, reason: str) -> None:
        """Count a call that went to torch."""
        with self._lock:
            self._calls += 1
            self._reasons[reason.removeprefix("this is a ")] += 1

    def add_failed(self) -> None:
        """Count a call that raised an error."""
        with self._lock:
            self._calls += 1
            self._failed += 1

    def __str__(self) -> str:
        with self._lock:
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


def _report() -> None:
    if _reporting_process == os.getpid():
        _log.info("%s", _tally)


def placement_of(archive: _C.Archive, options: LoadOptions) -> Counter[str]:
    """Return the bytes of an archive by the way they come to memory; nothing where nobody asked for the line."""
    if not _reporting_process or archive.is_torchscript:
        return Counter()
    found: Counter[str] = Counter()
    try:
        for storage in archive.explain():
            staged = staging.stages_all(options.map_location)
            found["copied to the device" if staged else storage.how] += storage.nbytes
    except (Error, pickle.UnpicklingError):  # loading the file raises it again
        return Counter()
    return found


add_served, add_left, add_failed = _tally.add_served, _tally.add_left, _tally.add_failed
