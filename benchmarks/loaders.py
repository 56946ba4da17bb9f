"""Everything that loads a file, under a name: ours and the peers."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .notebook import zero_copy_load

stock_load = torch.load  # the peer stays what it is when torch.load is patched


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


@functools.cache
def _patch() -> None:
    import zerocopy

    zerocopy.patch()


@functools.lru_cache(maxsize=1)
def _content(path: str) -> bytes:
    return Path(path).read_bytes()


def _patched_from_memory(path: str) -> Any:
    _patch()
    return torch.load(io.BytesIO(_content(path)), weights_only=False)


LOADERS: dict[str, Loader] = {
    "zerocopy": Loader("zerocopy.load", _zerocopy, _needs_module("zerocopy")),
    "torch": Loader("torch.load", lambda path: stock_load(path)),
    "torch-mmap": Loader(
        "torch.load(mmap, weights_only)",
        lambda path: stock_load(path, mmap=True, weights_only=True),
        _needs_torch_mmap,
    ),
    "torch-mmap-trusted": Loader(
        "torch.load(mmap, weights_only=False)",
        lambda path: stock_load(path, mmap=True, weights_only=False),
        _needs_torch_mmap,
    ),
    "torch-memory": Loader(
        "torch.load(BytesIO)", lambda path: stock_load(io.BytesIO(_content(path)), weights_only=False)
    ),
    "patched-memory": Loader("patched torch.load(BytesIO)", _patched_from_memory, _needs_module("zerocopy")),
    "notebook": Loader("HDF5 notebook", zero_copy_load, _needs_module("h5py")),
}
