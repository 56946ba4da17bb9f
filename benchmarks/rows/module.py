"""Filling the parameters of a module."""

from __future__ import annotations

import torch

from ..engine.cases import Case, Side, UseCase
from ..engine.loader import Loader, needs_open, state_of, stock_load


def _module_for(path: str) -> torch.nn.Module:
    """Return a module with the file's parameters, filled with zeros so that their pages are resident."""
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


LOADERS: dict[str, Loader] = {
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
}

CASES: tuple[Case, ...] = (
    UseCase(
        "llm/load_state_dict",
        Side("zerocopy-module", "llm.pt"),
        Side("torch-module", "llm.pt"),
        columns=("peak", "resident"),
    ),
)
