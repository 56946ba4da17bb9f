"""Loaders of a part of a file, or of placeholders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

import torch

from .kernels import Kernels, load_kernels
from .loader import Loader, mapped, needs_module, needs_open, needs_torch_mmap, state_of, stock_load
from .objects import spans_of

# --------------------------------------------------------------------------------- listing


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


# --------------------------------------------------------------------------------- one tensor


ONE = "model.layers.5.mlp.experts.127.up_proj.weight"


def _one(path: str) -> torch.Tensor:
    import zerocopy

    with zerocopy.open(path) as checkpoint:
        return checkpoint.get_tensor(ONE)


def _one_of(state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return state[ONE]


def _one_zipslicer(path: str) -> torch.Tensor:
    import zipslicer

    return zipslicer.load(path)[ONE]


def _one_safe_open(path: str) -> torch.Tensor:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        tensor: torch.Tensor = file.get_tensor(ONE)
        return tensor


# --------------------------------------------------------------------------------- placeholders


def _lazy(path: str) -> Any:
    import zerocopy

    return zerocopy.lazy_load(path)


def _lazy_fabric(path: str) -> Any:
    from lightning_fabric.utilities.load import _lazy_load

    return _lazy_load(path)


def _filled_by(method: str) -> Callable[[Any], Any]:
    """Return what puts, in place, the tensors into a state dict of placeholders."""

    def fill(state: Any) -> Any:
        for name in state:
            state[name] = getattr(state[name], method)()
        return state

    return fill


# --------------------------------------------------------------------------------- into a module


def _module_for(path: str) -> torch.nn.Module:
    """Return a module that has the file's parameters, in memory that is there: filled with zeros."""
    import zerocopy

    root = torch.nn.Module()
    for name, tensor in zerocopy.lazy_load(path).items():
        *branches, leaf = name.split(".")
        module = root
        for branch in branches:
            if branch not in module._modules:
                module.add_module(branch, torch.nn.Module())
            module = module.get_submodule(branch)
        zeros = torch.empty(tensor.shape, dtype=tensor.dtype).fill_(0)
        module.register_parameter(leaf, torch.nn.Parameter(zeros))
    return root


def _fill_lazily(path: str, module: torch.nn.Module) -> torch.nn.Module:
    import zerocopy

    module.load_state_dict(zerocopy.lazy_load(path))
    return module


def _fill(path: str, module: torch.nn.Module) -> torch.nn.Module:
    module.load_state_dict(stock_load(path))
    return module


# --------------------------------------------------------------------------------- rows


FEW, MANY = slice(5001, 5005), slice(1001, 3049)  # 64 KiB and 32 MiB; in the small file of --quick too


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


# --------------------------------------------------------------------------------- layer by layer


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


CHECKPOINT = ("zerocopy.lazy.checkpoint",)


LAZY: dict[str, Loader] = {
    "zerocopy-list": Loader(
        "zerocopy.open, tensors()",
        _list,
        needs_open,
        modules=CHECKPOINT,
        real=_listed,
        expected=_listing_of,
    ),
    "zerocopy-one": Loader("zerocopy.open, one tensor", _one, needs_open, expected=_one_of),
    "torch-mmap-one": Loader(
        "torch.load(mmap, weights_only), one tensor",
        lambda path: mapped(path)[ONE],
        needs_torch_mmap,
        expected=_one_of,
    ),
    "zipslicer-one": Loader(
        "zipslicer, one tensor", _one_zipslicer, needs_module("zipslicer"), expected=_one_of
    ),
    "safe_open-one": Loader(
        "safe_open, one tensor",
        _one_safe_open,
        needs_module("safetensors"),
        modules=("safetensors.torch",),
        expected=_one_of,
    ),
    "zerocopy-lazy": Loader("zerocopy.lazy_load", _lazy, needs_open, real=_filled_by("materialize")),
    "fabric-lazy": Loader(
        "Fabric's _lazy_load",
        _lazy_fabric,
        needs_module("lightning_fabric"),
        real=_filled_by("_load_tensor"),
    ),
    "zerocopy-module": Loader(
        "load_state_dict(zerocopy.lazy_load)",
        _fill_lazily,
        needs_open,
        prepare=_module_for,
        real=state_of,
        expected=dict,
    ),
    "torch-module": Loader(
        "load_state_dict(torch.load)",
        _fill,
        needs_open,
        prepare=_module_for,
        real=state_of,
        expected=dict,
    ),
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
