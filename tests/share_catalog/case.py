"""A case of the catalog, and the decorators that make one of a function.

An *explicit* case is a function that is run plainly and by ``share.load``. A *patched* case is a small program that is
run plainly and under ``share.patch_all``.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split("a")[0].split(".")[:2])


def nothing(folder: Path) -> None:
    """Prepare nothing."""


@contextlib.contextmanager
def anywhere(folder: Path) -> Iterator[None]:
    """Run a call in the state that a process has."""
    yield


class Case(NamedTuple):
    """A call, and all that a run of it needs.

    Attributes
    ----------
    name : str
        ``theme/function``.
    call : callable
        An explicit case is called with `arguments`, a patched case with its folder.
    is_patched : bool
        Whether the call is a program that runs under ``patch_all``.
    prepare, change : callable
        Make the sources; change them between the first and the second run.
    within : callable
        Returns a context manager, the state in which the client makes the call.
    arguments : callable
        Returns the arguments of an explicit case.
    after : callable
        A use of the result in the client. Its return value is compared too.
    config : tuple of str
        Functions of the catalog that ``patch_all`` is told to patch, as ``module::function``.
    compares_state : bool
        Whether the generators of random numbers, and other state of the process, must be as after the call itself.
    is_shared : bool
        Whether the server must have the result at the second run, without computing it again.
    limit : str
        A difference that docs/share.md promises, in words. The case fails when it differs no more.
    may_refuse : bool
        Whether ``share.load`` may raise UnsupportedError instead.
    needs : tuple of str
        Packages that must be there.
    since : tuple of int
        The first torch release that has what the case uses.
    always : bool
        Whether every run of the tests has the case.
    """

    name: str
    call: Callable[..., Any]
    is_patched: bool
    prepare: Callable[[Path], None] = nothing
    change: Callable[[Path], None] | None = None
    within: Callable[[Path], AbstractContextManager[Any]] = anywhere
    arguments: Callable[[Path], tuple[Any, ...]] = lambda folder: ()
    after: Callable[[Any], Any] | None = None
    config: tuple[str, ...] = ()
    compares_state: bool = False
    is_shared: bool = False
    limit: str = ""
    may_refuse: bool = False
    needs: tuple[str, ...] = ()
    since: tuple[int, ...] = ()
    always: bool = False

    def why_skipped(self) -> str | None:
        """Return what is missing for the case, or None."""
        if self.since > TORCH:
            return f"torch {'.'.join(map(str, self.since))} or later is needed"
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"{', '.join(missing)} is not installed" if missing else None


CASES: dict[str, Case] = {}


def _add(call: Callable[..., Any], is_patched: bool, options: dict[str, Any]) -> Any:
    theme = call.__module__.rpartition(".")[2]
    name = f"{theme}/{call.__name__}"
    if name in CASES:
        raise ValueError(f"two cases have the name {name}")
    options["needs"] = tuple(options.get("needs", ()))
    options["config"] = tuple(f"{call.__module__}::{function}" for function in options.get("config", ()))
    CASES[name] = Case(name, call, is_patched, **options)
    return call


def explicit(**options: Any) -> Callable[..., Any]:
    """Make a case of a function that is given to ``share.load``. Without a change the result must be shared."""
    options.setdefault("is_shared", "change" not in options and not options.get("may_refuse"))
    return lambda call: _add(call, False, options)


def patched(**options: Any) -> Callable[..., Any]:
    """Make a case of a program that runs under ``share.patch_all``."""
    options.setdefault("compares_state", True)
    return lambda call: _add(call, True, options)
