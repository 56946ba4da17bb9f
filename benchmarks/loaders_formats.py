"""Loaders of other formats than torch.save's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from .loader import Loader, by_zerocopy, needs_module, state_of
from .notebook import zero_copy_load


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


def _by_name(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a plain dict in an order that all formats have."""
    return dict(sorted(state.items()))


def _h5py(path: str) -> dict[str, torch.Tensor]:
    """Read each data set into memory."""
    import h5py

    with h5py.File(path, "r") as file:
        return {name: torch.from_numpy(data[...]) for name, data in file.items()}


def _script(path: str) -> Any:
    import zerocopy

    return zerocopy.jit.load(path)


def _named(label: str, load: Callable[[str], Any], library: str, *modules: str) -> Loader:
    """Return a loader of a format that keeps names in an order of its own."""
    return Loader(label, load, needs_module(library), modules=modules, real=_by_name, expected=_by_name)


def _streamer(label: str, load: Callable[[str], Any], library: str) -> Loader:
    """Return a loader whose tensors lie in one buffer: they are compared each by itself."""
    apart = replace(_named(label, load, library, library), real=_apart)
    return replace(apart, missing=lambda: needs_module(library)() or needs_module("safetensors")())


def _apart(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in sorted(state.items())}


FORMATS: dict[str, Loader] = {
    "notebook": Loader("HDF5 notebook", zero_copy_load, needs_module("h5py"), modules=("h5py", "numpy")),
    "h5py": _named("h5py", _h5py, "h5py", "h5py", "numpy"),
    "zerocopy-plain": _named("zerocopy.load", by_zerocopy, "zerocopy", "zerocopy"),
    # The package makes the file too.
    "zerocopy-safetensors": _named("zerocopy.load", by_zerocopy, "safetensors", "zerocopy"),
    "load_file": _named("safetensors' load_file", _load_file, "safetensors", "safetensors.torch"),
    "zerocopy-pread": _named("zerocopy.load(pread)", _by_pread, "safetensors", "zerocopy"),
    "fastsafetensors": _streamer("fastsafetensors", _fastsafetensors, "fastsafetensors"),
    "runai": _streamer("runai-model-streamer", _runai, "runai_model_streamer"),
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
