"""Follows the imports of a call: while an installed module is imported, which own modules, and which are missing.

Libraries look around while they are imported: at the current folder, at all environment variables. Nothing that they
return depends on it.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from zerocopy.share.conditions import namespaces, program
from zerocopy.share.conditions.watching import Watch


class Imports(threading.local):
    """The imports under way in this thread.

    Attributes
    ----------
    are_installed : bool
        Whether the innermost import is of a module that is installed.
    own : dict
        The program's own modules that were imported, as they were at first: as in ``namespaces``.
    missing : _Missing
        Modules that were looked for in vain.
    """

    are_installed = False

    def __init__(self, own: namespaces.Namespaces, missing: _Missing) -> None:
        self.own, self.missing = own, missing


class _Missing(MetaPathFinder):
    """Finds nothing, and is asked last: notes which modules are not there.

    Attributes
    ----------
    names : set of str
        Outermost names.
    files : set of str
        Files of submodules that packages of the program's own do not have.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.files: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None:
            self.names.add(fullname)
            return None
        name = fullname.rpartition(".")[2]
        for folder in filter(program.is_own, path):
            self.files |= {f"{folder}/{name}.py", f"{folder}/{name}/__init__.py"}
        return None


def follow(watch: Watch) -> Imports:
    """Follow what is imported from now on. A loader ends with it."""
    imports = Imports({}, _Missing())
    importlib.invalidate_caches()  # the import system has listed folders when this process began
    sys.meta_path.append(imports.missing)
    loader: Any = importlib.machinery.SourceFileLoader
    execute = loader.exec_module

    def exec_module(self: Any, module: ModuleType) -> None:
        before = imports.are_installed
        is_own = program.is_own(self.path)
        _set(not is_own)
        try:
            execute(self, module)
        finally:
            _set(before)
        if is_own:
            imports.own[f"{module.__name__}:"] = namespaces.of_module(module)

    def _set(are_installed: bool) -> None:
        imports.are_installed = are_installed
        watch.importing(are_installed)

    loader.exec_module = exec_module
    return imports
