"""The facts that a cached result depends on besides its key: files, folder, variables, own modules.

A worker records the conditions (file_tracker.py). For each request the server checks the files. The client
checks the other conditions in its own process.
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

#: One fact about a path: [path, kind, values].
#: file device, inode, size, mtime and ctime, as ``file_identity.Identity``
#: missing the path does not exist
#: there the path exists, and access(2) gives the recorded answer for the recorded flags
#: folder the path is a folder
#: names device, inode, mtime and ctime of a folder, and a digest of its names
#: link the target of the symbolic link
#: resolved the path with all symbolic links resolved
#: never the path changed during the call, so the condition never holds
Row = list[Any]


@dataclasses.dataclass(frozen=True)
class Conditions:
    """The conditions of a result, apart from its key.

    Attributes
    ----------
    paths : list of Row
        Facts about absolute paths.
    folder : str or None
        The current folder, if the call read it or found a relative path.
    absent : list of str
        Relative paths that did not exist during the call.
    environment : dict
        Variables that the call read. None means not set.
    all_variables : bool
        Whether the call read all variables. A new variable then makes the result invalid.
    argv : list of str or None
        ``sys.argv``, if the call read it.
    modules : dict
        The program's own top-level modules, and their origin.
    imported : list of str
        Top-level names of all modules that the call imported.
    unseen : list of str
        Reasons why the result may depend on something that was not recorded.
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
        """Return the conditions that the client checks in its own process."""
        return dataclasses.replace(self, paths=[])

    def as_body(self) -> dict[str, Any]:
        """Return the conditions as a JSON-compatible dict."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def files(self) -> Files:
        """The recorded files by path; None for a file that did not exist."""
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
        """Return whether all paths are unchanged. Identities in `known` are not read again."""
        return are_same(self.files, known) and all(holds(row) for row in self._others)

    def why_not_paths(self) -> str:
        """Return a message about the first changed path, as this process sees it, or an empty string."""
        for path, before in self.files.items():
            if identity_at(path) != before:
                return f"{path} is a different file in this process"
        return next((f"{row[0]} is different in this process" for row in self._others if not holds(row)), "")

    def why_not_here(self) -> str:
        """Return why this process does not meet the conditions, or an empty string. Paths are not checked."""
        return (
            self._why_not_folder()
            or self._why_not_environment()
            or self._why_not_argv()
            or self._why_not_modules()
        )

    def _why_not_folder(self) -> str:
        if self.folder is not None and self.folder != _current():
            return f"the result was computed in the folder {self.folder}, the current folder is {_current()}"
        found = next((path for path in self.absent if os.path.lexists(path)), None)
        return "" if found is None else f"{found} exists now, but did not exist during the call"

    def _why_not_environment(self) -> str:
        if not self.environment and not self.all_variables:
            return ""
        here = environment.read()
        for name, value in self.environment.items():
            if here.get(name) != value:
                return f"the environment variable {name} is different"
        if self.all_variables and environment.counting(here) - set(self.environment):
            return "the environment has variables that did not exist during the call"
        return ""

    def _why_not_argv(self) -> str:
        is_same = self.argv is None or self.argv == getattr(sys, "argv", [])
        return "" if is_same else "sys.argv differs from sys.argv of the call"

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


def _current() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - faster than Path.cwd, and a client calls this for each request
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
    """Return a folder's device, inode, mtime and ctime, and a digest of its names."""
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
