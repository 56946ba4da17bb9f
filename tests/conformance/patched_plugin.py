"""A pytest plugin that puts zerocopy in torch's place, and counts who loaded what.

Nothing of torch is wrapped: that would stand between its tests and what ``zerocopy.patch`` does to it. zerocopy's own
loader is, and what goes to the original is known by the line that zerocopy logs for each.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import re
from collections import Counter
from typing import Any

import outcomes_plugin

import zerocopy
from zerocopy.loading import loader as loading

HANDED_OVER = re.compile(r"goes to (?:torch\.load|safetensors): (.*)", re.DOTALL)


class Count(logging.Handler):
    """Counts how the loads of a test ended."""

    def __init__(self) -> None:
        super().__init__()
        self.served = 0
        self.refused: Counter[str] = Counter()
        self.handed_over: Counter[str] = Counter()
        self._failed: str | None = None  # the error of the last load, until it is known what became of it

    def __call__(self, loader: Any) -> Any:
        """Return a loader whose calls are counted."""

        @functools.wraps(loader)
        def load(*args: Any, **kwargs: Any) -> Any:
            try:
                result = loader(*args, **kwargs)
            except Exception as error:
                self._settle()
                self._failed = type(error).__name__
                raise
            self.served += 1
            return result

        return load

    def emit(self, line: logging.LogRecord) -> None:
        match = HANDED_OVER.search(line.getMessage())
        if match:
            self._failed = None
            # One reason for all files, whatever their names and sizes.
            self.handed_over[re.sub(r"0x[0-9a-f]+|\d+|/[^\s:]+", "…", match[1])[:200]] += 1

    def taken(self) -> dict[str, Any]:
        """Return the count, and begin another."""
        self._settle()
        loads = {
            "served": self.served,
            "refused": dict(self.refused),
            "handed_over": dict(self.handed_over),
        }
        self.served = 0
        self.refused.clear()
        self.handed_over.clear()
        return loads

    def _settle(self) -> None:
        if self._failed:
            self.refused[self._failed] += 1
            self._failed = None


count = Count()
# zerocopy.load and the patched functions all call this function.
loading.load_diagnosed = count(loading.load_diagnosed)
logging.getLogger("zerocopy").addHandler(count)
logging.getLogger("zerocopy").setLevel(logging.DEBUG)
zerocopy.patch(safetensors=importlib.util.find_spec("safetensors") is not None)


def pytest_collection_finish() -> None:
    # Loads while the file is imported do not belong to a test.
    count.taken()


def pytest_runtest_logfinish(nodeid: str) -> None:
    outcomes_plugin.record(loads=nodeid, **count.taken())


def pytest_sessionfinish() -> None:
    # A test that took the patch out would leave the rest to stock torch.
    outcomes_plugin.record(patched=zerocopy.is_patched())
