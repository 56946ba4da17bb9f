"""Detects sub-interpreters, in which torch would end the process."""

from __future__ import annotations

import importlib
from typing import Any


def _cpython() -> Any:
    """Return CPython's own module about interpreters: its name until 3.12, and since."""
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def require_main() -> None:
    """Raise ImportError in a sub-interpreter, before anything is imported that would crash there.

    torch kills the process when it is imported in one, and a tensor belongs to the interpreter of the first import.
    """
    interpreters = _cpython()
    if interpreters is not None and interpreters.get_current() != interpreters.get_main():
        raise ImportError(
            "zerocopy works in the main interpreter only: torch cannot be used in a sub-interpreter"
        )
