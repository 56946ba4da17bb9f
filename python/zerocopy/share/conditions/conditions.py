"""The conditions of a result besides its key: files and names, the folder, variables, the program's own modules.

A worker notes them (file_tracker.py). At each request the server asks whether the files hold, and the client whether
the rest holds in its process.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import stat
import sys
from collections.abc import Callable, Mapping
from typing import Any

from zerocopy.share.conditions import environment, program
from zerocopy.share.wire.file_identity import Files, Identity, are_same, identity_at

#: A path, the kind of fact, and the fact:
#:
#: file      device, inode, size and both times: as ``file_identity.Identity``
#: missing   there is nothing
#: there     there is something, that may be opened or not as access(2) said
#: folder    there is a folder
#: names     device and inode of a folder, both times, and a digest of the names in it
#: link      what the link says
#: resolved  the path without links
#: never     it has changed under the call: that does not hold again
Row = list[Any]


@dataclasses.dataclass(frozen=True)
class Conditions:
    """The conditions of a result, apart from its key.

    Attributes
    ----------
    paths : list of Row
        Facts about absolute paths.
    folder : str or None
        The current folder, if the call asked for it or found something relative to it.
    absent : list of str
        Relative paths that the call found nothing at.
    environment : dict
        The variables that were read; None: not set.
    all_variables : bool
        Whether the call read all variables, so that none may be added.
    argv : list of str or None
        ``sys.argv``, if the call read it.
    modules : dict
        Modules of the program's own, outermost names only, and where they came from.
    imported : list of str
        All outermost names of modules that the call imported.
    unseen : list of str
        Why there may be more that the result depends on.
    """

    paths: list[Row] = dataclasses.field(default_factory=list)
    folder: str | None = None
    absent: list[str] = dataclasses.field(default_factory=list)
    environment: dict[str, str | None] = dataclasses.field(default_factory=dict)
    all_variables: bool = False
    argv: list[str] | None = None
    modules: dict[str, program.Origin] = dataclasses.field(default_factory=dict)
    imported: list[str] = dataclasses.field(default_factory=list)
    unseen: list[str] = dataclasses.field(default_factory=list)

    def without_paths(self) -> Conditions:
        """Return the conditions that a client has to ask about."""
        return dataclasses.replace(self, paths=[])

    def as_body(self) -> dict[str, Any]:
        """Return it as JSON can have it."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def files(self) -> Files:
        """The files that count, and None for those that are missing."""
        found: Files = {}
        for path, kind, *fact in self.paths:
            if kind == "file":
                found[path] = tuple(fact)
            elif kind == "missing":
                found[path] = None
        return found

    @functools.cached_property
    def _others(self) -> list[Row]:
        return [row for row in self.paths if row[1] not in ("file", "missing")]

    def files_hold(self, known: Mapping[str, Identity | None] = {}) -> bool:
        """Return whether all paths are what they were. Identities in `known` are not read again."""
        return are_same(self.files, known) and all(holds(row) for row in self._others)

    def why_not_paths(self) -> str:
        """Return which path is not what it was, as this process sees it, or an empty string."""
        for path, before in self.files.items():
            if identity_at(path) != before:
                return f"{path} is another file here"
        return next((f"{row[0]} is different here" for row in self._others if not holds(row)), "")

    def why_not_here(self) -> str:
        """Return why the call would be another in this process, or an empty string. Paths are not looked at."""
        return (
            self._why_not_folder()
            or self._why_not_environment()
            or self._why_not_argv()
            or self._why_not_modules()
        )

    def _why_not_folder(self) -> str:
        if self.folder is not None and self.folder != _current():
            return f"the result is of the folder {self.folder}"
        found = next((path for path in self.absent if os.path.lexists(path)), None)
        return "" if found is None else f"{found} was not there in the current folder of the call"

    def _why_not_environment(self) -> str:
        if not self.environment and not self.all_variables:
            return ""
        here = environment.read()
        for name, value in self.environment.items():
            if here.get(name) != value:
                return f"the environment variable {name} is different"
        if self.all_variables and environment.counting(here) - set(self.environment):
            return "there are more environment variables"
        return ""

    def _why_not_argv(self) -> str:
        is_same = self.argv is None or self.argv == getattr(sys, "argv", [])
        return "" if is_same else "the program has other arguments (sys.argv)"

    def _why_not_modules(self) -> str:
        for name, origin in self.modules.items():
            if program.here(name) != origin:
                return f"the module {name} is another"
        for name in program.shadowed(self._not_own, sys.path):
            here = program.here(name)
            if isinstance(here, str) and program.is_own(here):
                return f"the module {name} is the program's own"
        return ""

    @functools.cached_property
    def _not_own(self) -> frozenset[str]:
        return frozenset(self.imported).difference(self.modules)


def _current() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - a client asks at each request
    except FileNotFoundError:
        return None


# -------------------------------------------------------------------------------------- facts


def holds(row: Row) -> bool:
    """Return whether a fact about a path holds now."""
    path, kind, *fact = row
    try:
        return _HOLDS[kind](path, fact)
    except (OSError, ValueError):
        return False


def names_of(path: str) -> list[Any]:
    """Return a folder and the names in it."""
    status = os.stat(path)  # noqa: PTH116
    names = sorted(name for name in os.listdir(os.fsencode(path)) if name != b"__pycache__")  # noqa: PTH208
    digest = hashlib.blake2b(b"\0".join(names), digest_size=16).hexdigest()
    return [status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, digest]


def _names_hold(path: str, fact: list[Any]) -> bool:
    status = os.stat(path)  # noqa: PTH116
    if [status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns] == fact[:4]:
        return True
    return bool(names_of(path)[4] == fact[4])


_HOLDS: dict[str, Callable[[str, list[Any]], bool]] = {
    "file": lambda path, fact: identity_at(path) == tuple(fact),
    "missing": lambda path, _: identity_at(path) is None,
    "there": lambda path, fact: os.access(path, fact[0]) == fact[1] and os.path.exists(path),  # noqa: PTH110
    "folder": lambda path, _: stat.S_ISDIR(os.stat(path).st_mode),  # noqa: PTH116
    "names": _names_hold,
    "link": lambda path, fact: os.readlink(path) == fact[0],  # noqa: PTH115
    "resolved": lambda path, fact: os.path.realpath(path) == fact[0],
    "never": lambda *_: False,
}
