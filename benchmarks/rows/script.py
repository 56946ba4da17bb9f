"""Programs of TorchScript."""

from __future__ import annotations

from typing import Any

import torch

from ..engine.cases import Case, Side, TimeCase
from ..engine.loader import Loader, needs_module, state_of


def _script(path: str) -> Any:
    import zerocopy

    return zerocopy.jit.load(path)


LOADERS: dict[str, Loader] = {
    "zerocopy-script": Loader(
        "zerocopy.jit.load",
        _script,
        needs_module("zerocopy"),
        real=state_of,
        expected=state_of,
        reference="torch-script",
    ),
    "torch-script": Loader("torch.jit.load", lambda path: torch.jit.load(path), reference="torch-script"),
}

CASES: tuple[Case, ...] = (
    TimeCase(
        "script/torch.jit",
        Side("zerocopy-script", "script.pt"),
        Side("torch-script", "script.pt"),
        columns=("ready",),
    ),
)
