"""Notes which environment variables a call reads in Python, and whether it reads ``sys.argv``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from zerocopy.process import descendants

if TYPE_CHECKING:  # the server has no torch, which it would import
    from zerocopy.share.conditions.imports import Imports

#: Variables of a session. They do not count where a program reads all variables at once.
SESSION = frozenset(
    [
        *("_", "COLORTERM", "COLUMNS", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "INVOCATION_ID"),
        *("JOURNAL_STREAM", "LINES", "LS_COLORS", "OLDPWD", "PWD", "SHLVL", "SSH_AGENT_PID"),
        *("SSH_AUTH_SOCK", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "STY", "TERM", "TERM_PROGRAM"),
        *("TERM_PROGRAM_VERSION", "TMUX", "TMUX_PANE", "WAYLAND_DISPLAY", "WINDOWID", "XAUTHORITY"),
        *("XDG_SESSION_CLASS", "XDG_SESSION_DESKTOP", "XDG_SESSION_ID", "XDG_SESSION_TYPE", "XDG_VTNR"),
    ]
)
#: Variables that decide how a program's progress looks, or where it leaves temporary files: they never count.
_IGNORED = frozenset(
    ["COLUMNS", "LINES", "TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "TMPDIR", "TEMP", "TMP"]
)
_BETWEEN = frozenset(
    ["os", "collections.abc", "_collections_abc", "pathlib", "pathlib._local", "posixpath", "getpass"]
)
#: This module looks through all variables for those of proxies, at every request to the network.
_PROXY_FINDER = "urllib.request"
#: Torch reads hundreds that say how it compiles. Those that change what it loads are in each key.
_NOT_ASKING = ("zerocopy.", "torch.")


def is_asked_by_others(frame: FrameType | None) -> bool:
    """Return whether neither zerocopy nor torch asks, be it by way of the standard library."""
    return not _asking(frame).startswith(_NOT_ASKING)


def _asking(frame: FrameType | None) -> str:
    """Return the name of the module that asks."""
    while frame is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__"))


def read() -> dict[str, str]:
    """Return all variables as they are, without those of ``zerocopy run``."""
    # Python's own dictionary of bytes: to go by os.environ takes a client ten times as long at each request.
    found = getattr(os.environ, "_data", None)
    variables = found if isinstance(found, dict) else dict(os.environb)
    return descendants.unreached(
        {os.fsdecode(name): os.fsdecode(value) for name, value in list(variables.items())}
    )


class Variables:
    """Notes reads of ``os.environ`` from now on.

    Parameters
    ----------
    imports : Imports
        While an installed module is imported reads of all variables do not count.
    """

    def __init__(self, imports: Imports) -> None:
        self._imports = imports
        self._before = read()
        self._names: set[str] = set()
        self.are_all_read = False
        self._is_on = True
        _replace(self)

    def stop(self) -> None:
        """Note no more."""
        self._is_on = False

    def note(self, name: Any) -> None:
        """Note that a variable is read."""
        if self._is_on and isinstance(name, (str, bytes)):
            text = os.fsdecode(name)
            if text not in _IGNORED and not text.startswith("ZEROCOPY_"):
                self._names.add(text)

    def note_all(self) -> None:
        """Note that all variables are read."""
        self.are_all_read |= self._is_on and not self._imports.are_installed

    def note_proxies(self, names: list[Any]) -> None:
        """Note that the variables of proxies are read."""
        for name in names:
            if os.fsdecode(name).lower().endswith("_proxy"):
                self.note(name)

    def values(self) -> dict[str, str | None]:
        """Return the variables that were read, as they were at first."""
        names = set(self._names)
        if self.are_all_read:
            names |= counting(self._before)
        return {name: self._before.get(name) for name in sorted(names)}


class Argv:
    """Notes reads of ``sys.argv`` from now on. A loader ends with it.

    Parameters
    ----------
    imports : Imports
        While an installed module is imported reads do not count.
    """

    def __init__(self, imports: Imports) -> None:
        self._imports = imports
        self._before = list(sys.argv)
        self._is_on = True
        self._is_read = False
        sys.argv = _NotingList(self._before, self._note)

    def _note(self, frame: FrameType | None) -> None:
        """Note a read; without a frame that it is a part of the result, which is pickled after the call."""
        is_asked = self._is_on and not self._imports.are_installed and is_asked_by_others(frame)
        self._is_read |= is_asked or frame is None

    def stop(self) -> None:
        """Note no more."""
        self._is_on = False

    def value(self) -> list[str] | None:
        """Return the list as it was at first; None if it was not read."""
        return self._before if self._is_read else None


class _NotingList(list[str]):
    """A list that notes who reads it."""

    def __init__(self, content: Iterable[str], note: Callable[[FrameType | None], None]) -> None:
        super().__init__(content)
        self._note = note

    def __reduce__(self) -> tuple[Any, ...]:
        self._note(None)
        return list, (list(self),)


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    def noted(self: _NotingList, *args: Any) -> Any:
        self._note(sys._getframe(1))
        return method(self, *args)

    return noted


_READING = (
    *("__getitem__", "__iter__", "__reversed__", "__len__", "__contains__", "__repr__"),
    *("__add__", "__mul__", "__rmul__", "copy", "count", "index", "pop"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
)
for _name in _READING:
    setattr(_NotingList, _name, _noting(getattr(list, _name)))
_NotingList.__radd__ = _noting(lambda arguments, other: other + list.copy(arguments))  # type: ignore[attr-defined]


def counting(variables: Mapping[str, str]) -> set[str]:
    """Return the names that count where all variables are read."""
    return {name for name in variables if name not in SESSION and not name.startswith("ZEROCOPY_")}


def _replace(variables: Variables) -> None:
    """Give ``os.environ`` and ``os.environb`` a class that notes. A loader ends with it."""
    kind: Any = type(os.environ)
    given: dict[int, Any] = {}

    class Noting(kind):  # type: ignore[misc]
        def __getitem__(self, name: Any) -> Any:
            # A copy of all variables also reads each name that __iter__ returned. It does not ask for that one.
            if given.get(id(name)) is not name and is_asked_by_others(sys._getframe(1)):
                variables.note(name)
            return super().__getitem__(name)

        def __iter__(self) -> Iterator[Any]:
            names = list(super().__iter__())
            asking = _asking(sys._getframe(1))
            if asking == _PROXY_FINDER:
                variables.note_proxies(names)
            elif not asking.startswith(_NOT_ASKING):
                variables.note_all()
            given.update((id(name), name) for name in names)
            return iter(names)

        def __repr__(self) -> str:
            variables.note_all()
            return super().__repr__()

        def __len__(self) -> int:
            if is_asked_by_others(sys._getframe(1)):
                variables.note_all()
            return super().__len__()

    os.environ.__class__ = Noting
    os.environb.__class__ = Noting
