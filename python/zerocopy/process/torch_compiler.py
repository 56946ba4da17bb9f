"""Keeps ``torch.compile`` out of functions that replace torch's, as torch keeps it out of its own.

The compiler traces every file but those of packages that it is told to skip. It is imported, in seconds, when it is
first used; nothing here imports it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from zerocopy.process import import_hook

_COMPILER = "torch._dynamo"
_awaiting: set[str] = set()


def skip(package: str) -> None:
    """Tell the compiler to skip a package's files: a call into them ends a graph, and another begins after it."""
    if package not in _awaiting:
        _awaiting.add(package)
        import_hook.when_imported(_COMPILER, functools.partial(_skip, package))


def _skip(package: str, compiler: ModuleType) -> None:
    for name in ("trace_rules", "skipfiles"):  # from 2.2 on, and before
        add = getattr(getattr(compiler, name, None), "add", None)
        if add is not None:
            add(package)
            return


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs as it is, and all that it calls."""
    compiler = sys.modules.get(_COMPILER)
    return _disabled(function) if hasattr(compiler, "disable") else function


@functools.lru_cache(maxsize=64)
def _disabled(function: Callable[..., Any]) -> Callable[..., Any]:
    compiler: Any = sys.modules[_COMPILER]
    made: Callable[..., Any] = compiler.disable(function)
    return made
