"""The facts that a kept result depends on besides its key, and whether they hold in this process."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import sys
from collections.abc import Callable
from typing import Any

from zerocopy import _core
from zerocopy.share.conditions import environment, namespaces, program, state
from zerocopy.share.conditions.file_identity import boot, identity

#: One fact about a path: [path, kind, values].
#: file device, inode, size, mtime and ctime
#: missing the path does not exist
#: folder the path is a folder
#: names as file, of a folder, and a digest of its names
#: link the target of the symbolic link
#: access access(2) gives the recorded answer for the recorded flags
Row = list[Any]
_NO_IDENTITY = (0, 0, 0, 0, 0)


@dataclasses.dataclass
class Conditions:
    """The conditions of a result, apart from its key.

    Attributes
    ----------
    paths : list of Row
        Facts about absolute paths.
    boot : str
        The boot of the machine. Device numbers are compared only within the same boot.
    folder : str or None
        The current folder, if the call read it or found a relative path.
    absent : list of str
        Relative paths that did not exist during the call.
    environment : str
        The digest of the environment variables.
    variables : dict
        Variables of the session or the launcher that the call read. None means not set.
    argv : list of str or None
        ``sys.argv``, if the call read it.
    state : str
        The settings of torch and Python.
    modules : dict
        The program's own top-level modules that the call imported, and their origin.
    imported : list of str
        Top-level names of all modules that the call imported.
    namespaces : dict
        Descriptions of own modules, and of the classes of the result.
    unseen : list of str
        Reasons why the result may depend on something that was not recorded.
    """

    paths: list[Row]
    boot: str
    folder: str | None
    absent: list[str]
    environment: str
    variables: dict[str, str | None]
    argv: list[str] | None
    state: str
    modules: dict[str, program.Origin]
    imported: list[str]
    namespaces: namespaces.Namespaces
    unseen: list[str]

    def why_not(self, here: Here) -> str:
        """Return why this process does not meet the conditions, or an empty string."""
        return (
            self._why_not_process(here)
            or self._why_not_folder()
            or self._why_not_modules()
            or self._why_not_paths()
            or (name and f"{name} is changed" if (name := namespaces.changed(self.namespaces)) else "")
        )

    def _why_not_process(self, here: Here) -> str:
        if self.state != here.state:
            return "settings of torch or Python are different"
        if self.environment != here.environment:
            return "the environment is different"
        for name, value in self.variables.items():
            if here.variables.get(name) != value:
                return f"the environment variable {name} is different"
        is_same = self.argv is None or self.argv == getattr(sys, "argv", [])
        return "" if is_same else "sys.argv differs from sys.argv of the call"

    def _why_not_folder(self) -> str:
        if self.folder is not None and self.folder != _current():
            return f"the result was computed in the folder {self.folder}, the current folder is {_current()}"
        found = next((path for path in self.absent if os.path.lexists(path)), None)
        return "" if found is None else f"{found} exists now, but did not exist during the call"

    def _why_not_modules(self) -> str:
        for name, origin in self.modules.items():
            if program.here(name) != origin:
                return f"the module {name} comes from another file"
        for name in program.shadowed(self._not_own, sys.path):
            here = program.here(name)
            if isinstance(here, str) and program.is_own(here):
                return f"the program has its own module {name}, but the call used an installed one"
        return ""

    @functools.cached_property
    def _not_own(self) -> frozenset[str]:
        return frozenset(self.imported).difference(self.modules)

    def _why_not_paths(self) -> str:
        row = first_changed(self.paths, self.boot == boot())
        return "" if row is None else f"{row[0]} is changed"


class Here:
    """State of this process, determined once for all results of a key."""

    def __init__(self) -> None:
        self.state = state.description()
        self.variables, self.environment = environment.variables()


def first_changed(rows: list[Row], within_boot: bool = True) -> Row | None:
    """Return the first fact that does not hold now."""
    together = [row for row in rows if row[1] not in _ALONE]
    known = [(os.fsencode(path), kind, values[:5] or _NO_IDENTITY) for path, kind, *values in together]
    for number in _core.changed_paths(known, within_boot):
        row = together[number]
        if row[1] != "names" or not _has_names(row):
            return row
    return next((row for row in rows if row[1] in _ALONE and not _holds_alone(row)), None)


def names_of(path: str) -> list[Any]:
    """Return a folder's identity, and a digest of its names."""
    status = os.stat(path)
    names = sorted(name for name in os.listdir(os.fsencode(path)) if name != b"__pycache__")
    digest = hashlib.blake2b(b"\0".join(names), digest_size=16).hexdigest()
    return [*identity(status), digest]


def _has_names(row: Row) -> bool:
    try:
        return bool(names_of(row[0])[-1] == row[-1])
    except OSError:
        return False


#: Kinds of facts that the core does not check. Each is checked here, one by one.
_ALONE: dict[str, Callable[[str, list[Any]], bool]] = {
    "access": lambda path, fact: os.access(path, fact[0]) == fact[1],
    "link": lambda path, fact: os.readlink(path) == fact[0],
}


def _holds_alone(row: Row) -> bool:
    path, kind, *fact = row
    try:
        return _ALONE[kind](path, fact)
    except (OSError, ValueError):
        return False


def _current() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None
