"""Records what a call reads, in any thread of this process. If any of that changes, the result is not reused.

=====================================================  ==========================================================
files that are opened, folders that are listed,        audit events of Python; zerocopy's loaders raise them too
programs, sockets
queries: does it exist, what is its size, ...          functions of ``os``, replaced while a call is recorded
files that native code opens                           inotify, in folders that the call named or opened a file in
variables, arguments, the current folder               environment.py, and ``os.getcwd``
modules                                                the last finder, and the loader of source files
=====================================================  ==========================================================
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
import time
from collections.abc import Iterable
from types import ModuleType
from typing import Self

from zerocopy.share.conditions import conditions, environment, hearing, namespaces, program, state
from zerocopy.share.conditions.conditions import Conditions, Row
from zerocopy.share.conditions.file_identity import boot, identity
from zerocopy.share.conditions.messages import Messages
from zerocopy.share.conditions.native_reads import Watcher

_CLOCK_OF_FILES = 5  # CLOCK_REALTIME_COARSE
#: Further paths are not recorded, because each path is checked at each lookup.
MAX_PATHS = 65536
_SYSTEM = (
    *("/proc/", "/sys/", "/dev/", "/etc/", "/usr/share/", "/usr/lib/", "/usr/bin/", "/bin/", "/lib/"),
    f"{sys.prefix}/bin/",
)
# Files of packages' metadata, and of torch. The key and other files of packages already identify the releases.
_OF_RELEASES = ("-info/", "-packages/torch/")
_CODE = (".py", ".pyc", ".pyi", ".so", ".pth")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Recording:
    """Dependencies of a call: a context manager around the call.

    Parameters
    ----------
    named : iterable of str
        Paths that the arguments name.
    modules : iterable of str
        Modules of the function and of its arguments.
    ignored : str
        The cache's own folder.
    """

    def __init__(self, named: Iterable[str], modules: Iterable[str], ignored: str) -> None:
        self._named, self._used, self._ignored = list(named), list(modules), f"{ignored}/"
        self._folder = "/nonexistent/"
        self._rows: dict[tuple[str, str], Row] = {}
        self._relative: set[str] = set()
        self._made: set[str] = set()  # what the call itself has written, created or removed
        self._created: set[str] = set()
        self._unseen: dict[str, None] = {}
        self._asks_for_folder = False
        self._doubt = ""
        self._missing: set[str] = set()  # outermost names of modules
        self._imported: namespaces.Namespaces = {}
        self._inner: list[Conditions] = []
        self.messages = Messages()
        self._exit = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.suppress(FileNotFoundError):  # it has been removed
            self._folder = f"{os.getcwd().rstrip('/')}/"
        self._baseline, self._path = set(sys.modules), list(sys.path)
        self._state = state.description()
        self._own = namespaces.of_own_modules(self._used)
        self._begun = time.clock_gettime_ns(_CLOCK_OF_FILES)
        self._reads = environment.Reads()
        enter = self._exit.enter_context
        enter(self._reads.heard())
        enter(self.messages.heard())
        self._watcher = enter(Watcher.watching(self._named))
        for name in self._own:
            self._add_source(name.removesuffix(":"), is_imported=True)
        enter(hearing.hub.heard(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    # ------------------------------------------------------------------------------ while it runs

    def opened(self, path: str, flags: int, is_relative: bool) -> None:
        """Record that a file is about to be opened."""
        is_read = flags & os.O_ACCMODE != os.O_WRONLY and not flags & os.O_TRUNC
        if flags & _WRITING:
            self._made.add(path)
            if flags & os.O_CREAT and not os.path.lexists(path):
                self._created.add(path)
        if is_read and not (flags & os.O_CREAT and not os.path.lexists(path)):
            self.looked(path, is_relative)
        self._watcher.watch_beside(path)

    def looked(self, path: str, is_relative: bool, is_listed: bool = False, follows: bool = True) -> None:
        """Record that the call queries a path."""
        if path.startswith(self._ignored):
            return
        try:
            status = os.stat(path, follow_symlinks=follows)
        except (OSError, ValueError):
            self._add([path, "missing"], 0, is_relative)
            return
        mode, found = status.st_mode, identity(status)
        if stat.S_ISLNK(mode):
            with contextlib.suppress(OSError):
                self._add([path, "link", os.readlink(path)], mode, is_relative)
        elif stat.S_ISDIR(mode):
            row = [path, "names", *found, ""] if is_listed else [path, "folder"]
            self._add(row, mode, is_relative)
        elif stat.S_ISREG(mode):
            self._add([path, "file", *found], mode, is_relative)

    def asked_access(self, path: str, flags: int, is_relative: bool) -> None:
        """Record a query of access rights."""
        self.looked(path, is_relative)
        if os.path.lexists(path) and not os.path.isdir(path):
            self._add([path, "access", flags, os.access(path, flags)], stat.S_IFREG, is_relative)

    def changed(self, *paths: str) -> None:
        """Record that the call itself changes, creates, renames or removes what is at a path."""
        self._made.update(paths)
        if paths[0] in self._created:
            self._created.update(paths)

    def cannot_see(self, why: str) -> None:
        """Record that the call may depend on something that cannot be seen."""
        self._unseen[why] = None

    def asked_for_folder(self) -> None:
        """Record that the call read the current folder."""
        self._asks_for_folder = True

    def missed(self, name: str, folders: Iterable[str] | None) -> None:
        """Record that a module was not found."""
        if folders is None:
            self._missing.add(name)
            return
        last = name.rpartition(".")[2]
        for folder in filter(program.is_own, folders):
            for path in (f"{folder}/{last}.py", f"{folder}/{last}/__init__.py"):
                self._rows.setdefault((path, "missing"), [path, "missing"])

    def imported(self, module: ModuleType) -> None:
        """Record that a module of the program's own was imported."""
        self._imported[f"{module.__name__}:"] = namespaces.of_module(module)

    def took(self, inner: Conditions) -> None:
        """Record that the call has used a kept result itself."""
        self._inner.append(inner)

    def _add(self, row: Row, mode: int, is_relative: bool) -> None:
        path, kind, *fact = row
        if not _counts(path, mode):
            return
        if hearing.imports.are_installed and kind != "file" and f"{path}/".startswith(self._folder):
            return  # libraries look around in the current folder while they are imported
        if is_relative and f"{path}/".startswith(self._folder):
            self._relative.add(path)
        known = self._rows.setdefault((path, kind), row)
        is_read = kind == "file" and path not in self._made
        if is_read and (known != row or fact[4] >= time.clock_gettime_ns(_CLOCK_OF_FILES)):
            self._doubt = self._doubt or f"{path} was written just now"

    # ------------------------------------------------------------------------------ after the call

    def conditions(self, pickles: Iterable[bytes]) -> tuple[Conditions, str]:
        """Return what the result depends on, and why it must not be kept, or an empty string.

        Parameters
        ----------
        pickles : iterable of bytes
            The pickles of the result, which name its classes.
        """
        for path in self._watcher.opened():
            if (path, "file") not in self._rows and path not in self._made:
                self.looked(path, False)
        self._unseen.update(dict.fromkeys(self._watcher.unseen))
        modules, imported = self._modules()
        for name in sys.modules.keys() - self._baseline:
            self._add_source(name)
        names = [name.partition(":")[0] for name in self._own] + self._used
        classes = namespaces.of_classes(pickles, names)
        self._add_packages({name.rstrip("!").partition(":")[0] for name in classes})
        rows, absent, has_relative, doubt = self._settled_rows()
        if len(rows) > MAX_PATHS:
            self.cannot_see(f"more than {MAX_PATHS} paths")
        found = Conditions(
            paths=rows[:MAX_PATHS],
            boot=boot(),
            folder=self._folder[:-1] or "/" if has_relative or self._asks_for_folder else None,
            absent=absent,
            environment=self._reads.digest,
            variables=self._reads.variables(),
            argv=self._reads.argv,
            state=self._state,
            modules=modules,
            imported=imported,
            namespaces={**classes, **self._own, **self._imported},
            unseen=list(self._unseen),
        )
        return functools.reduce(_both, self._inner, found), self._doubt or doubt

    def _modules(self) -> tuple[dict[str, program.Origin], list[str]]:
        """Return where the program's own modules came from, and the names of all."""
        used = (sys.modules.keys() - self._baseline) | {name.removesuffix(":") for name in self._own}
        names = {name.partition(".")[0] for name in used} | self._missing
        names -= {"__main__", "__mp_main__", "zerocopy"}
        own: dict[str, program.Origin] = {}
        for name in names:
            origin = program.origin_of(sys.modules.get(name))
            places = [origin] if isinstance(origin, str) else origin or []
            # A module that is not found along sys.path was loaded by its file, which counts among the paths.
            is_own = any(map(program.is_own, places)) and program.found(name, self._path) == origin
            if origin is not None and is_own:
                own[name] = origin
        return own, sorted(names)

    def _add_source(self, name: str, is_imported: bool = False) -> None:
        """Add a module's source file: what it has by a name may be of a kind that is not compared."""
        path = program.origin_of(sys.modules.get(name))
        if isinstance(path, str) and program.is_own(path) and (path, "file") not in self._rows:
            self.looked(path, False)
            row = self._rows.get((path, "file"))
            if is_imported and row is not None and row[5] > program.started(os.getpid()):
                self._doubt = f"{path} was changed after the program began"

    def _add_packages(self, modules: set[str]) -> None:
        """Add a file of each installed package, because another release has a different file."""
        for name in {module.partition(".")[0] for module in modules} - {"torch", "zerocopy"}:
            path = program.origin_of(sys.modules.get(name))
            if isinstance(path, str) and program.is_of_package(path):
                with contextlib.suppress(OSError):
                    self._rows[path, "file"] = [path, "file", *identity(os.stat(path))]

    def _settled_rows(self) -> tuple[list[Row], list[str], bool, str]:
        """Return the facts, the relative paths that were missing, whether a relative path existed, and a doubt."""
        rows: list[Row] = []
        absent: list[str] = []
        has_relative, doubt = False, ""
        for before in list(self._rows.values()):
            row = self._settled(before)
            if row is None:
                continue
            path, kind = row[:2]
            if path in self._relative and kind == "missing":
                absent.append(path.removeprefix(self._folder))
                continue
            has_relative |= path in self._relative
            rows.append(row)
        changed = conditions.first_changed(rows)
        if changed is not None:
            doubt = f"{changed[0]} has changed meanwhile"
        return _without_parents(rows), absent, has_relative, doubt

    def _settled(self, row: Row) -> Row | None:
        """Return a fact as it is after the call, if the call itself has changed it; else as it was."""
        path, kind, *fact = row
        if kind == "names":
            with contextlib.suppress(OSError):
                now = conditions.names_of(path)
                if any(os.path.dirname(made) == path for made in self._made) or now[:2] == fact[:2]:
                    return [path, kind, *(now if self._is_made_in(path) else [*fact[:5], now[5]])]
            return None if self._is_made(path) else row
        if not self._is_made(path) or conditions.first_changed([row]) is None:
            return row
        if kind == "file" and not os.path.lexists(path):
            # The call has read an older file by a name that it made and removed. The file may be anywhere.
            return row if min(fact[3], fact[4]) < self._begun and path not in self._created else None
        if kind != "file":
            return None
        with contextlib.suppress(OSError):
            return [path, kind, *identity(os.stat(path))]
        return None

    def _is_made_in(self, folder: str) -> bool:
        return any(os.path.dirname(made) == folder for made in self._made)

    def _is_made(self, path: str) -> bool:
        """Return whether the call has made or removed a path, or a folder that it is in."""
        while len(path) > 1:
            if path in self._made:
                return True
            path = os.path.dirname(path)
        return False


def _both(one: Conditions, other: Conditions) -> Conditions:
    """Return the conditions of a call that has reused the result of another: the conditions of both."""
    found = {row[0]: row for row in (*other.paths, *one.paths)}
    return Conditions(
        **{
            **vars(one),
            "paths": list(found.values()) if len(found) == len(one.paths) else [*one.paths, *other.paths],
            "folder": one.folder or other.folder,
            "absent": [*one.absent, *other.absent],
            "variables": {**other.variables, **one.variables},
            "argv": one.argv or other.argv,
            "modules": {**other.modules, **one.modules},
            "imported": sorted({*one.imported, *other.imported}),
            "namespaces": {**other.namespaces, **one.namespaces},
            "unseen": list({**dict.fromkeys(one.unseen), **dict.fromkeys(other.unseen)}),
        }
    )


def _without_parents(rows: list[Row]) -> list[Row]:
    """Leave out rows of folders that other rows imply: a file exists only in an existing folder."""
    parents = {sys.prefix, "/"}
    for path in (sys.prefix, *(row[0] for row in rows if row[1] in ("file", "names", "link"))):
        parent = os.path.dirname(path)
        while parent not in parents:
            parents.add(parent)
            parent = os.path.dirname(parent)
    return [row for row in rows if row[1] != "folder" or row[0] not in parents]


def _counts(path: str, mode: int) -> bool:
    """Return whether the content of a path may change without an installation."""
    if path.startswith(_SYSTEM):
        return path.startswith("/dev/shm/")
    if program.is_generated(path):
        return False
    if program.is_installed(path):
        # Data in a package count, for example a model. Code, folders and missing files change by installations only.
        return (
            stat.S_ISREG(mode) and not path.endswith(_CODE) and not any(mark in path for mark in _OF_RELEASES)
        )
    return True
