"""Opening a file without loading it: the list of its tensors, and one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..engine.cases import Case, Side, TimeCase, UseCase
from ..engine.loader import Loader, mapped, needs_module, needs_open, needs_torch_mmap

CHECKPOINT = ("zerocopy.lazy.opening",)  # what the first call would import
Listed = list[tuple[Any, ...]]


def _list(path: str) -> Listed:
    import zerocopy

    with zerocopy.open(path) as checkpoint:
        return checkpoint.tensors()


def _listed(infos: Listed) -> Listed:
    return [tuple(info[:5]) for info in infos]


def _listing_of(state: Mapping[str, torch.Tensor]) -> Listed:
    facts = ((t.shape, t.dtype, t.stride(), t.numel() * t.element_size()) for t in state.values())
    return [(name, *fact) for name, fact in zip(state, facts, strict=True)]


ONE = "model.layers.5.mlp.experts.127.up_proj.weight"


def _one(path: str) -> torch.Tensor:
    import zerocopy

    with zerocopy.open(path) as checkpoint:
        return checkpoint.get_tensor(ONE)


def one_of(state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return state[ONE]


def _one_zipslicer(path: str) -> torch.Tensor:
    import zipslicer

    return zipslicer.load(path)[ONE]


LOADERS: dict[str, Loader] = {
    "zerocopy-list": Loader(
        "zerocopy.open, tensors()",
        _list,
        needs_open,
        modules=CHECKPOINT,
        real=_listed,
        expected=_listing_of,
    ),
    "zerocopy-one": Loader("zerocopy.open, one tensor", _one, needs_open, expected=one_of),
    "torch-mmap-one": Loader(
        "torch.load(mmap, weights_only), one tensor",
        lambda path: mapped(path)[ONE],
        needs_torch_mmap,
        expected=one_of,
    ),
    "zipslicer-one": Loader(
        "zipslicer, one tensor", _one_zipslicer, needs_module("zipslicer"), expected=one_of
    ),
}

CASES: tuple[Case, ...] = (
    TimeCase(
        "sparse64/list",
        Side("zerocopy-list", "sparse-64GiB.pt"),
        None,
        columns=("ready",),
    ),
    UseCase(
        "sparse64/list",
        Side("zerocopy-list", "sparse-64GiB.pt"),
        None,
        columns=("resident",),
    ),
    *(
        TimeCase(
            f"moe/one/{peer}",
            Side("zerocopy-one", "moe.pt"),
            Side(f"{peer}-one", "moe.pt"),
            columns=("ready",),
        )
        for peer in ("torch-mmap", "zipslicer")
    ),
    TimeCase(
        "moe/one/load",
        Side("zerocopy-one", "moe.pt"),
        Side("zerocopy", "moe.pt"),
        columns=("ready", "cold"),
    ),
)
