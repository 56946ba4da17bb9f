"""The caller's progress functions, and a counter that calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Progress = Callable[[int, int], object]


def require_progress(progress: Any) -> None:
    """Raise TypeError unless progress can be called."""
    if progress is not None and not callable(progress):
        raise TypeError(
            "expected progress to be a function of the bytes done and the bytes in all, "
            f"got {type(progress).__name__}"
        )


class Counted:
    """Adds up what was written."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self, size: int) -> None:
        """Add to the number of bytes that were written."""
        self._done += size
        if self._progress is not None:
            self._progress(self._done, self._total)
