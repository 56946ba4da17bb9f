"""Everything that loads a file, under a name: ours and the peers."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .notebook import zero_copy_load


@dataclass(frozen=True)
class Loader:
    """A way to load a file.

    Attributes
    ----------
    label : str
        What the table calls it.
    load : callable
        Path to object. Nothing in it is there for the benchmark's sake: it is what a user would write.
    missing : callable
        Returns why it cannot run here, or an empty string.
    """

    label: str
    load: Callable[[str], Any]
    missing: Callable[[], str] = lambda: ""


def _needs_module(name: str) -> Callable[[], str]:
    return lambda: "" if importlib.util.find_spec(name) else f"{name} is not installed"


def _needs_torch_mmap() -> str:
    has = "mmap" in inspect.signature(torch.load).parameters
    return "" if has else f"torch {torch.__version__} has no mmap="


def _zerocopy(path: str) -> Any:
    import zerocopy

    return zerocopy.load(path)


LOADERS: dict[str, Loader] = {
    "zerocopy": Loader("zerocopy.load", _zerocopy, _needs_module("zerocopy")),
    "torch": Loader("torch.load", lambda path: torch.load(path)),
    "torch-mmap": Loader(
        "torch.load(mmap, weights_only)",
        lambda path: torch.load(path, mmap=True, weights_only=True),
        _needs_torch_mmap,
    ),
    "torch-mmap-trusted": Loader(
        "torch.load(mmap, weights_only=False)",
        lambda path: torch.load(path, mmap=True, weights_only=False),
        _needs_torch_mmap,
    ),
    "notebook": Loader("HDF5 notebook", zero_copy_load, _needs_module("h5py")),
}
