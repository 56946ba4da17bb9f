"""Tells while an installed module is imported.

Libraries look around then: at the current folder, at all environment variables. Nothing that they return depends on it.
"""

from __future__ import annotations

import importlib.machinery
import threading
from types import ModuleType
from typing import Any

from zerocopy.share import program
from zerocopy.share.watching import Watch


class Imports(threading.local):
    """What this thread imports.

    Attributes
    ----------
    are_installed : bool
        Whether the innermost import is of a module that is installed.
    """

    are_installed = False


def follow(watch: Watch) -> Imports:
    """Follow what is imported from now on. A loader ends with it."""
    imports = Imports()
    loader: Any = importlib.machinery.SourceFileLoader
    execute = loader.exec_module

    def exec_module(self: Any, module: ModuleType) -> None:
        before = imports.are_installed
        _set(not program.is_own(self.path))
        try:
            execute(self, module)
        finally:
            _set(before)

    def _set(are_installed: bool) -> None:
        imports.are_installed = are_installed
        watch.importing(are_installed)

    loader.exec_module = exec_module
    return imports
