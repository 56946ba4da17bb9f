"""Finds the one model file of a Hugging Face folder: ``from_pretrained`` loads it, and ``config.json`` lies beside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from zerocopy.display import listed, shown
from zerocopy.loading.formats import shard_index

#: In the order in which transformers, diffusers and peft look.
NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "diffusion_pytorch_model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
)

OF_DISTRIBUTED = (
    "is a folder of torch.distributed.checkpoint, whose files have a format of its own: "
    "ls, show, diff, report, scan and verify take it"
)

_DCP_METADATA = ".metadata"


def is_folder(f: Any) -> bool:
    """Return whether `f` is the path of a folder, and not a file object or a buffer."""
    return isinstance(f, (str, os.PathLike)) and os.path.isdir(f)  # noqa: PTH112  a Path takes longer to make


def not_a_checkpoint(folder: str | os.PathLike[str]) -> str:
    """Return the error about a folder that has no file of a known name: what it has, and what was expected."""
    names = sorted(os.listdir(folder))  # noqa: PTH208  names, not paths
    return (
        f"is a directory without a checkpoint: it has {listed(map(shown, names), 10) or 'no files'}; expected an index "
        "(*.index.json), model.safetensors, pytorch_model.bin, or the .metadata of torch.distributed.checkpoint"
    )


def is_distributed(folder: str | os.PathLike[str]) -> bool:
    """Return whether ``torch.distributed.checkpoint`` wrote a folder."""
    return Path(os.fsdecode(folder), _DCP_METADATA).is_file()


def located(f: Any, strict: bool = True) -> Any:
    """Return the index of shards that a path leads to, or the model file of a folder; anything else as it is.

    Raises
    ------
    OSError
        The folder or the index cannot be read.
    zerocopy.FormatError, zerocopy.UnsupportedError
        As :func:`zerocopy.loading.formats.shard_index.index_in`.
    """
    if not is_folder(f):
        return shard_index.index_named(f, strict) or f
    folder = Path(os.fsdecode(f))
    if not is_distributed(folder):
        for name in NAMES:
            if (folder / name).is_file():
                return shard_index.index_named(folder / name, strict) or str(folder / name)
    return (
        shard_index.index_in(folder, strict) or f
    )  # an index of another name, or the metadata of a distributed folder
