"""Everything that loads a file, under a name: ours and the peers."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import torch

from .loader import Loader, by_zerocopy, mapped, needs_module, needs_torch_mmap, stock_load
from .loaders_cold import COLD
from .loaders_converting import CONVERTING
from .loaders_formats import FORMATS
from .loaders_gpu import GPU
from .loaders_lazy import LAZY
from .loaders_saving import SAVING
from .loaders_share import SHARE


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
    **FORMATS,
    **LAZY,
    **COLD,
    **SAVING,
    **CONVERTING,
    **GPU,
    **SHARE,
}
