"""Files of the package safetensors: ours, and the packages that read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ..engine.cases import Case, Side, TimeCase
from ..engine.loader import Loader, by_zerocopy, named, needs_module
from .opening import ONE, one_of


def _load_file(path: str) -> Any:
    from safetensors.torch import load_file

    return load_file(path)


def _by_pread(path: str) -> Any:
    import zerocopy

    return zerocopy.load(path, backend="pread")


def _fastsafetensors(path: str) -> dict[str, torch.Tensor]:
    from fastsafetensors import fastsafe_open

    with fastsafe_open(path, nogds=True, device="cpu") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping


def _runai(path: str) -> dict[str, torch.Tensor]:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path)
        return dict(streamer.get_tensors())


def _one_safe_open(path: str) -> torch.Tensor:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        tensor: torch.Tensor = file.get_tensor(ONE)
        return tensor


def _streamer(label: str, load: Callable[[str], Any], library: str) -> Loader:
    """Return a loader whose tensors lie in one buffer: they are compared each by itself."""
    apart = replace(named(label, load, library, library), real=_apart)
    return replace(apart, missing=lambda: needs_module(library)() or needs_module("safetensors")())


def _apart(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in sorted(state.items())}


LOADERS: dict[str, Loader] = {
    # The package makes the file too.
    "zerocopy-safetensors": named("zerocopy.load", by_zerocopy, "safetensors", "zerocopy"),
    "load_file": named("safetensors' load_file", _load_file, "safetensors", "safetensors.torch"),
    "zerocopy-pread": named("zerocopy.load(pread)", _by_pread, "safetensors", "zerocopy"),
    "fastsafetensors": _streamer("fastsafetensors", _fastsafetensors, "fastsafetensors"),
    "runai": _streamer("runai-model-streamer", _runai, "runai_model_streamer"),
    "safe_open-one": Loader(
        "safe_open, one tensor",
        _one_safe_open,
        needs_module("safetensors"),
        modules=("safetensors.torch",),
        expected=one_of,
    ),
}

CASES: tuple[Case, ...] = (
    *(
        TimeCase(
            f"{stem}/safetensors",
            Side("zerocopy-safetensors", f"{stem}.safetensors"),
            Side("load_file", f"{stem}.safetensors"),
        )
        for stem in ("bert", "moe", "lora")
    ),
    *(
        TimeCase(
            f"pread/{peer}",
            Side("zerocopy-pread", "half.safetensors"),
            Side(peer, "half.safetensors"),
            columns=("consume", "cold-consume"),
        )
        for peer in ("fastsafetensors", "runai")
    ),
    TimeCase(
        "moe/one/safe_open",
        Side("zerocopy-one", "moe.safetensors"),
        Side("safe_open-one", "moe.safetensors"),
        columns=("ready",),
    ),
)
