"""Detects interpreters that zerocopy cannot run in: sub-interpreters, and those without the global lock."""

from __future__ import annotations

import importlib
import sys
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


def require_lock() -> None:
    """Raise ImportError if the interpreter runs without the global lock, which protects zerocopy's native objects.

    An extension that is not made for such an interpreter turns the lock on when it is imported, for the whole program.
    That is for the user to decide.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ImportError(
            "zerocopy needs the global interpreter lock, which is off in this free-threaded Python: use a Python that "
            "is not free-threaded, or set PYTHON_GIL=1"
        )
