"""Finds the one model file of a Hugging Face folder: ``from_pretrained`` loads it, and ``config.json`` lies beside."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from zerocopy import remote
from zerocopy.display import listed, shown
from zerocopy.errors import UnsupportedError
from zerocopy.loading.formats import dcp_metadata, hf_shards, shard_index
from zerocopy.remote.file import without_password

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
    "pytorch_lora_weights.safetensors",
    "pytorch_lora_weights.bin",
)
_STEMS = dict.fromkeys(name.partition(".")[0] for name in NAMES)
_EXPECTED = f"expected an index (*.index.json), or {', '.join(f'{stem}.*' for stem in _STEMS)}"

OF_DISTRIBUTED = (
    "is a folder of torch.distributed.checkpoint, whose files have a format of its own: "
    "ls, show, diff, report, scan and verify take it"
)

_DCP_METADATA = ".metadata"


def is_folder(f: Any) -> bool:
    """Return whether `f` is the path of a folder, and not a file object or a buffer."""
    return isinstance(f, (str, os.PathLike)) and os.path.isdir(f)


def not_a_checkpoint(folder: str | os.PathLike[str]) -> str:
    """Return the error about a folder that has no file of a known name: what it has, and what was expected."""
    names = sorted(os.listdir(folder))
    return (
        f"is a directory without a checkpoint: it has {listed(map(shown, names), 10) or 'no files'}; {_EXPECTED}, "
        "or the .metadata of torch.distributed.checkpoint"
    )


def is_distributed(folder: Any) -> bool:
    """Return whether ``torch.distributed.checkpoint`` wrote a folder."""
    return is_folder(folder) and Path(os.fsdecode(folder), _DCP_METADATA).is_file()


def located(f: Any, strict: bool = True) -> Any:
    """Return where the checkpoint is that a path leads to. `strict` is that of the functions of ``shard_index``.

    Returns
    -------
    Index
        The index of shards that `f` names, or that is in the folder `f`.
    Folder
        The folder `f` of ``torch.distributed.checkpoint``.
    str
        The one model file of a Hugging Face folder.
    RemotePath
        Of a URL: `f`, or the one model file of the folder.
    object
        `f` itself, for a file, a file object or a buffer.

    Raises
    ------
    IsADirectoryError
        The folder `f` has none of these.
    OSError
        The folder or the index cannot be read.
    zerocopy.FormatError, zerocopy.UnsupportedError
        As :func:`zerocopy.loading.formats.shard_index.index_in`, or of a damaged ``.metadata``.
    """
    if remote.is_url(f):
        return _located_far(remote.RemotePath(f), strict)
    if not is_folder(f):
        return shard_index.index_named(f, strict) or f
    name = os.fsdecode(f)
    folder = Path(name)
    if not is_distributed(folder):
        for known in NAMES:
            if (folder / known).is_file():
                return shard_index.index_named(folder / known, strict) or str(folder / known)
    # An index of another name, or the metadata of a distributed folder.
    found = shard_index.index_in(folder, strict) or dcp_metadata.folder_of(f) or hf_shards.folder_of(name)
    if found is None:
        raise IsADirectoryError(errno.EISDIR, not_a_checkpoint(folder), name)
    return found


def _located_far(path: remote.RemotePath, strict: bool) -> Any:
    if path.is_folder:  # which nobody lists: the first file of a known name
        for known in NAMES:
            if path.beside(known).exists():
                return _located_far(path.beside(known), strict)
        title = without_password(path.url)
        if path.beside(_DCP_METADATA).exists():
            raise UnsupportedError(f"{title}: folders of torch.distributed.checkpoint need local files")
        raise FileNotFoundError(errno.ENOENT, f"is a folder without a known file: {_EXPECTED}", title)
    return shard_index.index_at(path, strict) if path.name.endswith(shard_index.ENDING) else path


def files_of(found: Any) -> list[str]:
    """Return the files whose bytes a located checkpoint is made of: shards, and not their index."""
    match found:
        case shard_index.Index():
            return [str(shard) for shard in found.shards]
        case dcp_metadata.Folder():
            return list(dict.fromkeys(place.file for place in found.places))
        case remote.RemotePath():
            return [found.url]
    return [os.fspath(found)]
