"""Notes what a call depends on besides its key, so that its result is not taken for true when that has changed.

The preloaded library (watching.py) sees what is asked of the file system, whoever asks. Where it is not loaded,
Python's audit events tell a part. Environment variables and the current folder are noted as Python reads them.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Self

from zerocopy.share.conditions import environment, facts, imports, namespaces, program
from zerocopy.share.conditions.conditions import Conditions
from zerocopy.share.conditions.hearing import Hearing
from zerocopy.share.conditions.watching import Watch
from zerocopy.share.wire import file_identity

_CLOCK_OF_FILES = 5  # CLOCK_REALTIME_COARSE
#: More paths than that are not kept: the server asks about each at each request.
MAX_PATHS = 65536


class Reading:
    """Notes within its block what is read.

    Parameters
    ----------
    known : dict
        Files that arguments name, as the caller saw them.
    """

    def __init__(self, known: file_identity.Files) -> None:
        self._known = known
        self._seen: file_identity.Files = {}
        self._watch = Watch()
        self._asks_for_folder = False

    def __enter__(self) -> Self:
        self._seen = {path: file_identity.identity_at(path) for path in self._known}
        self._baseline = set(sys.modules)
        self._path = list(sys.path)
        self._folder = os.getcwd()  # noqa: PTH109
        self._begun = time.clock_gettime_ns(_CLOCK_OF_FILES)
        self._imports = imports.follow(self._watch)
        self._variables = environment.Variables(self._imports)
        self._argv = environment.Argv(self._imports)
        self._note_folder()
        self._watch.start()
        self._hearing = Hearing(self._watch)
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.stop()
        self._hearing.stop()
        self._variables.stop()
        self._argv.stop()
        os.getcwd, os.getcwdb = self._asking

    def _note_folder(self) -> None:
        """Have ``os.getcwd`` note that it was asked. The import system asks another function."""
        self._asking = getcwd, getcwdb = os.getcwd, os.getcwdb

        def noted() -> str:
            self._ask_for_folder()
            return getcwd()

        def noted_bytes() -> bytes:
            self._ask_for_folder()
            return getcwdb()

        os.getcwd, os.getcwdb = noted, noted_bytes

    def _ask_for_folder(self) -> None:
        if not self._imports.are_installed:
            self._asks_for_folder |= environment.is_asked_by_others(sys._getframe(2))

    def conditions(self) -> Conditions:
        """Return what the result depends on."""
        found = facts.Facts(self._folder, self._begun)
        for record in (*self._watch.records(), *self._hearing.records):
            found.add(record)
        for path, identity in self._seen.items():
            if not self._watch.is_there or self._is_named(path, identity):
                found.add_seen(path, identity)
        modules, imported = self._modules()
        for name in sys.modules.keys() - self._baseline:
            self._add_source(found, name)
        for path in self._imports.missing.files:
            if not found.has(path):
                found.add_seen(path, None)
        rows, absent, has_relative = found.rows()
        unseen = found.unseen()
        if not self._watch.is_there:
            unseen.append("native reads (the watch library is not loaded)")
        if len(rows) > MAX_PATHS or self._watch.is_full:
            unseen.append(f"more than {MAX_PATHS} paths")
        return Conditions(
            paths=rows[:MAX_PATHS],
            folder=self._folder if has_relative or self._asks_for_folder else None,
            absent=absent,
            environment=self._variables.values(),
            all_variables=self._variables.are_all_read,
            argv=self._argv.value(),
            modules=modules,
            imported=imported,
            unseen=unseen,
        )

    def own_modules(self) -> namespaces.Namespaces:
        """Return what the program's own modules had when the call imported them."""
        return self._imports.own

    def _is_named(self, path: str, identity: file_identity.Identity | None) -> bool:
        """Return whether an argument names a file itself. A folder's files count if they are read."""
        folder = os.path.dirname(path)  # noqa: PTH120
        return identity is not None and folder not in self._known and file_identity.is_regular(path)

    def _modules(self) -> tuple[dict[str, program.Origin], list[str]]:
        """Return where the program's own modules came from, and the names of all."""
        names = {name.partition(".")[0] for name in sys.modules.keys() - self._baseline}
        names |= self._imports.missing.names
        names -= {"__main__", "__mp_main__", "zerocopy"}
        own = {}
        for name in names:
            origin = program.origin_of(sys.modules.get(name))
            places = [origin] if isinstance(origin, str) else origin or []
            # A module that is not found along sys.path was loaded by its file, which counts among the paths.
            if any(map(program.is_own, places)) and program.found(name, self._path) == origin:
                own[name] = origin
        return own, sorted(names)  # type: ignore[return-value]

    def _add_source(self, found: facts.Facts, name: str) -> None:
        """Add a module's file, which a cache may have stood for."""
        path = program.origin_of(sys.modules.get(name))
        if isinstance(path, str) and program.is_own(path) and not found.has(path):
            found.add_seen(path, file_identity.identity_at(path))
