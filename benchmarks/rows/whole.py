"""Whole files of torch.save, from disk and from memory, and as HDF5; what copies of them take."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import torch

from ..data.notebook import zero_copy_load
from ..engine.cases import Case, MemoryCase, Side, TimeCase
from ..engine.loader import Loader, by_zerocopy, mapped, named, needs_module, needs_torch_mmap, stock_load


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


def _h5py(path: str) -> dict[str, torch.Tensor]:
    """Read each data set into memory."""
    import h5py

    with h5py.File(path, "r") as file:
        return {name: torch.from_numpy(data[...]) for name, data in file.items()}


LOADERS: dict[str, Loader] = {
    "zerocopy": Loader("zerocopy.load", by_zerocopy, needs_module("zerocopy"), modules=("zerocopy",)),
    "torch": Loader("torch.load", lambda path: stock_load(path)),
    "torch-mmap": Loader(
        "torch.load(mmap, weights_only)",
        mapped,
        needs_torch_mmap,
    ),
    "torch-mmap-trusted": Loader(
        "torch.load(mmap, weights_only=False)",
        lambda path: stock_load(path, mmap=True, weights_only=False),
        needs_torch_mmap,
    ),
    "torch-memory": Loader(
        "torch.load(BytesIO)", lambda path: stock_load(io.BytesIO(_content(path)), weights_only=False)
    ),
    "patched-memory": Loader("patched torch.load(BytesIO)", _patched_from_memory, needs_module("zerocopy")),
    "notebook": Loader("HDF5 notebook", zero_copy_load, needs_module("h5py"), modules=("h5py", "numpy")),
    "h5py": named("h5py", _h5py, "h5py", "h5py", "numpy"),
    "zerocopy-plain": named("zerocopy.load", by_zerocopy, "zerocopy", "zerocopy"),
}


def _against(peer: str, file: str) -> TimeCase:
    return TimeCase(f"{file.partition('.')[0]}/{peer}", Side("zerocopy", file), Side(peer, file))


CASES: tuple[Case, ...] = (
    _against("torch", "bert.pt"),
    _against("torch-mmap", "bert.pt"),
    _against("torch-mmap-trusted", "bert.pt"),
    TimeCase(
        "bert/notebook",
        Side("zerocopy", "bert.pt"),
        Side("notebook", "bert.h5"),
    ),
    TimeCase(
        "bert-h5/notebook",
        Side("zerocopy", "bert.converted.h5"),
        Side("notebook", "bert.h5"),
    ),
    TimeCase(
        "bert-h5/h5py",
        Side("zerocopy-plain", "bert.arrays.h5"),
        Side("h5py", "bert.arrays.h5"),
    ),
    _against("torch", "llm.pt"),
    _against("torch-mmap", "llm.pt"),
    _against("torch", "moe.pt"),
    _against("torch-mmap", "moe.pt"),
    _against("torch", "lora.pt"),
    _against("torch-mmap", "lora.pt"),
    *(
        TimeCase(
            f"memory/{file.partition('.')[0]}",
            Side("patched-memory", file),
            Side("torch-memory", file),
            columns=("ready",),
        )
        for file in ("storage.pt", "small.pt")
    ),
    TimeCase(
        "size/16GiB-over-1GiB",
        Side("zerocopy", "sparse-1GiB.pt"),
        Side("zerocopy", "sparse-16GiB.pt"),
        columns=("ready",),
        check_ends=True,
    ),
    MemoryCase(
        "copies/torch",
        Side("zerocopy", "bert.pt"),
        Side("torch", "bert.pt"),
        copies=(1000, 4),
    ),
    # 500 of the peer's: each of its copies keeps a file descriptor, and 1024 are what a process usually gets.
    MemoryCase(
        "copies/notebook", Side("zerocopy", "bert.pt"), Side("notebook", "bert.h5"), copies=(1000, 500)
    ),
)
