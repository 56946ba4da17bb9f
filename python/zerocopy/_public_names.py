"""Public names of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def missing_torch(user: str) -> ModuleNotFoundError:
    """Return the error that a name or a command needs PyTorch, which is not installed."""
    return ModuleNotFoundError(
        f"{user} needs PyTorch, which is not installed for {sys.executable}: install PyTorch there, for example by "
        "pip install torch, or on Debian apt install python3-torch",
        name="torch",
    )


def on_first_use(
    package: str, homes: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package.

    ``dir()`` then shows the public names only, and not the modules that were imported so far.

    Parameters
    ----------
    package : str
        The package.
    homes : mapping
        The names that each module of the package defines. The names under ``""`` are modules themselves.
    """
    modules = {name: module for module, names in homes.items() for name in names.split()}
    namespace = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = _imported(f"{package}.{modules[name] or name}")
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise missing_torch(f"{package}.{name}") from None
        found = namespace[name] = getattr(module, name) if modules[name] else module
        return found

    def names() -> list[str]:
        of_every_module = {name for name in namespace if name.startswith("__") and name.endswith("__")}
        return sorted(of_every_module | modules.keys())

    return sorted(modules), get, names


def _imported(name: str) -> Any:
    """Import a module. A signal handler that uses the package too waits until the module is whole.

    A program that has not imported torch yet is not made to wait: that takes seconds.
    """
    if "torch" not in sys.modules:
        return importlib.import_module(name)
    from zerocopy.process import interrupts

    with interrupts.deferred():
        return importlib.import_module(name)


def import_beside_torch(package: str, names: Iterable[str], *modules: str) -> None:
    """Import some names of a package, and further modules of it, if torch is imported already.

    Their first use is then as quick as the next. Without torch the program decides when torch is imported, and with
    which environment: ``zerocopy run`` depends on that. The garbage collector is paused, because a full collection
    walks through all objects of torch.
    """
    if "torch" not in sys.modules:
        return
    from zerocopy.process.collector import collector_paused

    @collector_paused
    def import_all() -> None:
        for module in modules:
            importlib.import_module(f"{package}.{module}")
        for name in names:
            getattr(sys.modules[package], name)

    import_all()
