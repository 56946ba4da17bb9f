"""Watches ``os.environ``: which variables imports read in a fork server, and which ones a program changes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from zerocopy.launch import circumstances
from zerocopy.process import descendants


class _Name(str):
    """A name that an import got by iterating over ``os.environ``. It records the prefixes that the import tests."""

    is_asked: bool
    prefixes: set[str]

    def startswith(self, prefix: Any, *rest: Any) -> bool:
        found = super().startswith(prefix, *rest)
        self.is_asked = True
        self.prefixes.update([prefix] if isinstance(prefix, str) else prefix)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


class _WatchedReads(os._Environ):  # type: ignore[type-arg]
    """``os.environ`` that records which variables are read."""

    seen: set[str]
    names: list[_Name]
    prefixes: set[str]

    def __getitem__(self, name: Any) -> Any:
        if not isinstance(name, _Name):
            self.seen.add(name if isinstance(name, str) else circumstances.ALL)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            name = _Name(each)
            name.is_asked, name.prefixes = False, self.prefixes
            self.names.append(name)
            yield name


@contextlib.contextmanager
def reads_noted() -> Iterator[set[str]]:
    """Record the variables that Python code reads within a block: names, and prefixes with an asterisk.

    tqdm and fsspec iterate over all variables, and test whether each name starts with their own prefix.
    """
    before = os.environ.__class__
    seen = _WatchedReads.seen = set()
    names = _WatchedReads.names = []
    prefixes = _WatchedReads.prefixes = set()
    os.environ.__class__ = _WatchedReads
    try:
        yield seen
    finally:
        os.environ.__class__ = before
        seen.update(f"{prefix}{circumstances.ALL}" for prefix in prefixes)
        if not all(name.is_asked for name in names):
            seen.add(circumstances.ALL)


_OWN = frozenset({descendants.VARIABLE, descendants.PATH})  # zerocopy itself changes these


def watch_changes(folders: tuple[str, ...]) -> Callable[[], dict[tuple[str, str], set[str]]]:
    """Record from now on which variables change, and return a function that returns them.

    A key of the result is a variable, with the installed module whose import changed it ("" for the program). The value
    is the names of all modules that were loaded at the first change.

    Parameters
    ----------
    folders : tuple of str
        Folders of installed modules, each with a slash at its end.
    """
    changes: dict[tuple[str, str], set[str]] = {}
    kind: Any = os.environ.__class__
    at_start = dict(os.environ)

    def note(name: str, value: str | None) -> None:
        if name in _OWN or kind.get(os.environ, name) == value:
            return
        key = name, _importing(folders)
        if key not in changes:
            changes[key] = set(sys.modules)
        elif value == at_start.get(name) and changes[key].issuperset(sys.modules):
            del changes[key]  # the variable has its old value again, and no import saw the other one

    class Environ(kind):  # type: ignore[misc]
        def __setitem__(self, name: Any, value: Any) -> None:
            note(name, value)
            super().__setitem__(name, value)

        def __delitem__(self, name: Any) -> None:
            note(name, None)
            super().__delitem__(name)

    Environ.__name__, Environ.__qualname__, Environ.__module__ = kind.__name__, kind.__qualname__, "os"
    os.environ.__class__ = Environ
    return changes.copy


def _importing(folders: tuple[str, ...]) -> str:
    """Return the installed module whose import runs the caller; "" if the program's own code does."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or frame.f_globals.get("__name__") == "__main__":
        return ""
    if not os.path.realpath(frame.f_code.co_filename).startswith(folders):
        return ""
    return str(frame.f_globals.get("__name__", ""))
