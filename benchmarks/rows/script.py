"""Programs of TorchScript and torch.export."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from ..engine.cases import Case, Side, TimeCase
from ..engine.loader import Loader, needs_module, state_of

# The first load would import these.
_EXPORT = ("torch.export.pt2_archive._package",)


def _script(path: str) -> Any:
    import zerocopy

    return zerocopy.jit.load(path)


def _exported(path: str) -> Any:
    import zerocopy

    return zerocopy.export.load(path)


def _needs_archives() -> str:
    missing = needs_module("zerocopy")()
    if missing or importlib.util.find_spec("torch.export.pt2_archive"):
        return missing
    return f"torch {torch.__version__} has no such archives"


def _state_of(program: Any) -> dict[str, torch.Tensor]:
    return dict(program.state_dict)


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
    "zerocopy-export": Loader(
        "zerocopy.export.load",
        _exported,
        _needs_archives,
        modules=_EXPORT,
        real=_state_of,
        expected=_state_of,
        reference="torch-export",
    ),
    "torch-export": Loader(
        "torch.export.load",
        lambda path: torch.export.load(path),
        _needs_archives,
        modules=_EXPORT,
        reference="torch-export",
    ),
}

CASES: tuple[Case, ...] = (
    TimeCase(
        "script/torch.jit",
        Side("zerocopy-script", "script.pt"),
        Side("torch-script", "script.pt"),
        columns=("ready",),
    ),
    TimeCase(
        "export/torch.export",
        Side("zerocopy-export", "program.pt2"),
        Side("torch-export", "program.pt2"),
        columns=("ready",),
    ),
)
