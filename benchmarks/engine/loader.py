"""A way to load a file, and what those of several kinds are made of."""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

stock_load = torch.load  # the peer stays what it is when torch.load is patched


@dataclass(frozen=True)
class Loader:
    """A way to load a file.

    Attributes
    ----------
    label : str
        Its name in the table.
    load : callable
        Path to object. Nothing in it is there for the benchmark's sake: it is what a user would write.
    missing : callable
        Returns why it cannot run here, or an empty string.
    prepare : callable, optional
        Path to what has to be there before, and is not measured; `load` is given it behind the path.
    modules : tuple of str
        Modules that the first call would import.
    real : callable
        Turns what `load` returned into what is compared: with tensors in place of what stands for them.
    place : callable
        Path of the file to the path it is loaded from: another one for what sees it through another file system.
    expected : callable, optional
        Takes that out of what ``torch.load`` returns. None: nothing is returned that could be compared.
    settle : callable
        Called before each call, and not timed: puts what the call needs in order.
    reference : str
        The loader that is right by definition.
    """

    label: str
    load: Callable[..., Any]
    missing: Callable[[], str] = lambda: ""
    prepare: Callable[[str], Any] | None = None
    modules: tuple[str, ...] = ()
    real: Callable[[Any], Any] = lambda result: result
    place: Callable[[str], str] = lambda path: path
    expected: Callable[[Any], Any] | None = lambda whole: whole
    settle: Callable[[], object] = lambda: None
    reference: str = "torch"

    def call(self, path: str) -> Callable[[], Any]:
        """Do what comes before, and return the call that is measured."""
        path = self.place(path)
        if self.prepare is None:
            return functools.partial(self.load, path)
        return functools.partial(self.load, path, self.prepare(path))


LOADERS: dict[str, Loader] = {}  # by the names that rows give them; `benchmarks.rows` fills it


def needs_module(name: str) -> Callable[[], str]:
    return lambda: "" if importlib.util.find_spec(name) else f"{name} is not installed"


def needs_torch_mmap() -> str:
    has = "mmap" in inspect.signature(torch.load).parameters
    return "" if has else f"torch {torch.__version__} has no mmap="


def needs_open() -> str:
    missing = needs_module("zerocopy")()
    return missing or (
        "" if importlib.util.find_spec("zerocopy.lazy.checkpoint") else "zerocopy has no open()"
    )


def mapped(path: str) -> Any:
    return stock_load(path, mmap=True, weights_only=True)


def by_zerocopy(path: str) -> Any:
    import zerocopy

    return zerocopy.load(path)


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.state_dict())


def by_name(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a plain dict in an order that all formats have."""
    return dict(sorted(state.items()))


def named(label: str, load: Callable[[str], Any], library: str, *modules: str) -> Loader:
    """Return a loader of a format that keeps names in an order of its own."""
    return Loader(label, load, needs_module(library), modules=modules, real=by_name, expected=by_name)
