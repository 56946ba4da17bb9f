"""Parts of a file: some rows of a tensor, and one layer after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import torch

from ..data.objects import spans_of
from ..engine.cases import Case, Side, TimeCase, UseCase
from ..engine.kernels import Kernels, load_kernels
from ..engine.loader import Loader, mapped, needs_open, needs_torch_mmap
from .opening import CHECKPOINT

FEW, MANY = (
    slice(5001, 5005),
    slice(1001, 3049),
)  # 64 KiB and 32 MiB; in the small file of the suite `quick` too


def _open(path: str) -> Any:
    import zerocopy

    return zerocopy.open(path)


def _row_loaders(name: str, rows: slice) -> dict[str, Loader]:
    """Return loaders of some rows of a file that is open."""

    def expected(state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return state["weight"][rows].clone()

    return {
        f"zerocopy-{name}": Loader(
            f"get_slice, {name}",
            lambda _, checkpoint: checkpoint.get_slice("weight")[rows].clone(),
            needs_open,
            prepare=_open,
            expected=expected,
        ),
        f"torch-mmap-{name}": Loader(
            f"torch.load(mmap, weights_only), {name}",
            lambda _, state: expected(state),
            needs_torch_mmap,
            prepare=mapped,
            expected=expected,
        ),
    }


def _compiled(_: str) -> Kernels:
    return load_kernels()


def _sum(kernels: Kernels, tensors: Iterable[torch.Tensor]) -> int:
    """Read every byte of some tensors, as fast as memory is."""
    alive = list(tensors)
    return kernels.consume(*kernels.prepare(spans_of(alive)))


def _layer_of(name: str) -> str:
    return ".".join(name.split(".")[:3])  # model.layers.7


def _stream(path: str, kernels: Kernels) -> list[int]:
    import zerocopy

    with zerocopy.open(path) as checkpoint:
        layers = groupby(checkpoint, _layer_of)
        return [_sum(kernels, (checkpoint.get_tensor(name) for name in names)) for _, names in layers]


def _streamed(state: Mapping[str, torch.Tensor]) -> list[int]:
    kernels = load_kernels()
    layers = groupby(state, _layer_of)
    return [_sum(kernels, (state[name] for name in names)) for _, names in layers]


LOADERS: dict[str, Loader] = {
    **_row_loaders("few-rows", FEW),
    **_row_loaders("many-rows", MANY),
    "zerocopy-layers": Loader(
        "zerocopy.open, layer by layer",
        _stream,
        needs_open,
        prepare=_compiled,
        modules=CHECKPOINT,
        expected=_streamed,
    ),
}

CASES: tuple[Case, ...] = (
    *(
        UseCase(
            f"slice/{rows}",
            Side(f"zerocopy-{rows}", "matrix.pt"),
            Side(f"torch-mmap-{rows}", "matrix.pt"),
            columns=("read",),
        )
        for rows in ("few-rows", "many-rows")
    ),
    TimeCase(
        "stream/layers",
        Side("zerocopy-layers", "stream.pt"),
        Side("disk", "stream.pt"),
        columns=("cold",),
        most_rounds=5,
    ),
)
