"""Calls functions with a module as soon as the program has imported it, without importing it for them.

If a module were imported before the program does so, settings that the program makes in ``os.environ`` before its own
import would come too late, such as the number of torch's threads.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from zerocopy.process.fork_safe import ForkSafeLock

Act = Callable[[ModuleType], object]

_lock = ForkSafeLock()
_awaited: dict[str, list[Act]] = {}
_OWN = __name__.partition(".")[0] + "."


class _Thread(threading.local):
    """How many modules of this package the thread is importing, and the calls that are due when they have ended."""

    def __init__(self) -> None:
        self.depth = 0
        self.due: list[Callable[[], object]] = []


_thread = _Thread()


def when_imported(name: str, act: Act) -> None:
    """Call `act` with a module: now, if it is there, else when its import has ended well.

    If a module of this package imports it, `act` is called when that module has been imported too: `act` may need that
    module.
    """
    with _lock.held():
        module = sys.modules.get(name)
        if module is None:
            _awaited.setdefault(name, []).append(act)
            if _FINDER not in sys.meta_path:
                sys.meta_path.insert(0, _FINDER)
            return
    act(module)


def forget(act: Act) -> None:
    """Cancel an `act` that was passed to :func:`when_imported`."""
    with _lock.held():
        for name, acts in list(_awaited.items()):
            left = [other for other in acts if other != act]
            _set_awaited(name, left)


def _set_awaited(name: str, acts: list[Act]) -> None:
    if acts:
        _awaited[name] = acts
    else:
        _awaited.pop(name, None)
    if not _awaited and _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)


class _Finder:
    """Finds nothing itself: it lets another finder find the loader, and makes it call the waiting functions."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _awaited and not fullname.startswith(_OWN):
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self)
        specs = (
            finder.find_spec(fullname, path, target) for finder in others if hasattr(finder, "find_spec")
        )
        spec = next(filter(None, specs), None)
        # The loaders of built-in and frozen modules are classes, one for all.
        if spec is not None and spec.loader is not None and not isinstance(spec.loader, type):
            _act_after(spec.loader, fullname)
        return spec


_FINDER = _Finder()


def _call_due() -> None:
    """Make the calls that are due, in order. A call that becomes due meanwhile is made after the others."""
    _thread.depth += 1
    try:
        while _thread.due:
            _thread.due.pop(0)()
    finally:
        _thread.depth -= 1


def _act_after(loader: Any, name: str) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        own = name.startswith(_OWN)
        _thread.depth += own
        try:
            execute(module)
        finally:
            _thread.depth -= own
        with _lock.held():
            acts = _awaited.get(name, [])
            _set_awaited(name, [])
        there = sys.modules.get(name, module)  # some modules put another object there
        _thread.due += [functools.partial(act, there) for act in acts]
        if not _thread.depth:
            _call_due()

    loader.exec_module = exec_module
