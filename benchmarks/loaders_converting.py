"""Converting, as rows: ours, and what transformers does. Both end with the bytes on the disk."""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

from .loader import Loader, needs_module, stock_load

_SHARDS = "1GB"
_FOLDERS: weakref.WeakSet[tempfile.TemporaryDirectory[str]] = weakref.WeakSet()


def _folder(path: str) -> tempfile.TemporaryDirectory[str]:
    """Return where the shards go: beside the measured file, and gone with this object."""
    made = tempfile.TemporaryDirectory(dir=Path(path).parent, prefix="converted.")
    _FOLDERS.add(made)
    return made


def _settle() -> None:
    """Delete what was converted, and let the disk come to rest."""
    for made in _FOLDERS:
        for file in Path(made.name).iterdir():
            file.unlink()
    os.sync()


def _convert(path: str, folder: tempfile.TemporaryDirectory[str]) -> Any:
    """Convert a .pt file to sharded .safetensors."""
    import zerocopy

    zerocopy.convert(path, folder.name, max_shard_size=_SHARDS)
    return folder


def _convert_by_transformers(path: str, folder: tempfile.TemporaryDirectory[str]) -> Any:
    """Do what `save_pretrained` does with the tensors of a model, without the model."""
    from huggingface_hub import save_torch_state_dict

    save_torch_state_dict(stock_load(path), folder.name, max_shard_size=_SHARDS)
    for file in Path(folder.name).iterdir():
        with file.open("r+b") as written:
            os.fsync(written.fileno())
    return folder


def _read_back(folder: tempfile.TemporaryDirectory[str]) -> Any:
    """Return what the package safetensors reads of the shards, by name."""
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    for shard in Path(folder.name).glob("*.safetensors"):
        found |= load_file(shard)
    return dict(sorted(found.items()))


def _by_name(state: Any) -> Any:
    return dict(sorted(state.items()))


CONVERTING: dict[str, Loader] = {
    "zerocopy-convert": Loader(
        "zerocopy.convert",
        _convert,
        missing=needs_module("zerocopy"),
        prepare=_folder,
        real=_read_back,
        expected=_by_name,
        settle=_settle,
    ),
    "transformers-convert": Loader(
        "torch.load, save_torch_state_dict, fsync",
        _convert_by_transformers,
        missing=needs_module("huggingface_hub"),
        prepare=_folder,
        modules=("huggingface_hub", "safetensors.torch"),
        real=_read_back,
        expected=_by_name,
        settle=_settle,
    ),
}
