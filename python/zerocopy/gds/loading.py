"""``zerocopy.gds.load``: the index from the file's head or tail, then each storage straight to the device."""

from __future__ import annotations

import functools
import logging
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy._typing import GdsMode
from zerocopy.display import shown
from zerocopy.errors import Error, UnsupportedError
from zerocopy.gds import cufile
from zerocopy.gds.available import is_required, required
from zerocopy.gds.channel import Channel
from zerocopy.loading import error_context, inputs, loader
from zerocopy.loading.formats import dcp_metadata, shard_index
from zerocopy.loading.objects import allowlist, builder

log = logging.getLogger("zerocopy")


def load(
    path: str | os.PathLike[str], device: str | int | torch.device = "cuda", *, require: GdsMode | None = None
) -> Any:
    """Load a checkpoint to a GPU, by GPUDirect Storage if possible.

    Shared storages stay shared.

    Parameters
    ----------
    path : str or PathLike
        A file of ``torch.save``, a ``.safetensors`` file, an index of shards (``*.index.json``), or a folder
        that holds an index or one model file.
    device : str, int or torch.device
        "cuda", "cuda:1", ...; "cpu": as ``zerocopy.load``; "auto": the GPU where there is one, else the CPU.
    require : {None, "direct", "compat"}
        The mode that :func:`available` must report for the file. None accepts any mode, and warns if
        cuFile cannot be used.

    Returns
    -------
    object
        The object of ``torch.load(path, map_location=device, weights_only=True)``.

    Raises
    ------
    zerocopy.UnsupportedError
        The device is missing, or the required mode is not available. The message says why.
    torch.cuda.OutOfMemoryError
        The device has no room for all; the message says for how many bytes.
    Exception
        As ``zerocopy.load``.

    Examples
    --------
    >>> import pathlib, tempfile, torch, zerocopy
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.pt"
    >>> zerocopy.gds.save({"weight": torch.arange(4.0)}, path)
    >>> zerocopy.gds.load(path, device="cpu")
    {'weight': tensor([0., 1., 2., 3.])}
    """
    found = _device(device)
    if found.type not in cufile.DEVICES:
        if is_required(require):
            raise UnsupportedError(f"GPUDirect Storage is required, but cannot load to {found}")
        return loader.load(path, map_location=found)
    located = inputs.located(path)
    if isinstance(located, shard_index.Index):
        return shard_index.load(located, functools.partial(_load_file, device=found, require=require))
    file = path if isinstance(located, dcp_metadata.Folder) else located
    return _load_file(Path(os.fsdecode(file)), found, require)


def _device(device: str | int | torch.device) -> torch.device:
    """Return the device that is meant. Raises UnsupportedError, a RuntimeError like torch's, if it is missing."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if found.type != "cuda":
        return found
    if not torch.cuda.is_available():
        raise UnsupportedError(
            f"{found}: torch.cuda.is_available() is False. device='cpu' loads without a GPU; device='auto' does so "
            "if the machine lacks one"
        )
    index = torch.cuda.current_device() if found.index is None else found.index
    if index >= torch.cuda.device_count():
        raise UnsupportedError(
            f"cuda:{index} does not exist: this machine has {torch.cuda.device_count()} CUDA devices"
        )
    return torch.device("cuda", index)


def _load_file(path: Path, device: torch.device, require: str | None) -> Any:
    required(require, path)
    name = os.fsdecode(path)
    reason = "" if require is not None else cufile.refusal()
    by_cufile = False
    if not reason:
        if path.is_dir() or _torch.skips_data():
            return _load_by_cpu(path, device, require)
        with path.open("rb") as file:
            try:
                archive = inputs.open_archive(file, "c", "mmap")
                records = _records(archive)
            except (Error, pickle.UnpicklingError):
                records = None  # zerocopy.load says what is wrong with it
            if records is None:
                return _load_by_cpu(path, device, require)
            channel = Channel(file.fileno(), name, os.O_RDONLY)
            if by_cufile := not channel.reason:
                storage_of = _storages(records, device, channel, name)
                with error_context.naming(path):
                    result = archive.load_over(allowlist.resolve, storage_of, "utf-8", builder)
                    archive.require_unchanged()
        reason = channel.reason
    if reason and require is not None:
        raise UnsupportedError(f"{name}: GPUDirect Storage ({require}) is required: {reason}")
    if reason:
        text = f"{shown(name)}: loaded through the host's memory, without GPUDirect Storage: {reason}"
        warnings.warn(text, stacklevel=3)
    return result if by_cufile else loader.load(name, map_location=device)


def _storages(
    records: list[tuple[int, int]], device: torch.device, channel: Channel, name: str
) -> Callable[[int], torch.UntypedStorage]:
    """Return a function that makes each storage on a device, and reads it, when it is first asked for."""

    @functools.cache
    def storage_of(number: int) -> torch.UntypedStorage:
        offset, size = records[number]
        try:
            made = torch.UntypedStorage(size, device=device)
        except torch.cuda.OutOfMemoryError as error:
            needed = sum(size for _, size in records)
            raise type(error)(f"{name}: {needed} bytes are needed on {device}: {error}") from error
        channel.read(made, offset)
        return made

    return storage_of


def _load_by_cpu(path: Path, device: torch.device, require: str | None) -> Any:
    """Load by the CPU: storages that must be inflated, swapped or joined first, and files with a fault."""
    if require is None:
        log.info("%s: loaded to %s by way of the CPU", path, device)
        return loader.load(path, map_location=device)
    loader.load(path)
    raise UnsupportedError(
        f"{path}: its storages must be converted, so cuFile cannot read them into a GPU's memory"
    )


def _records(archive: _C.Archive) -> list[tuple[int, int]] | None:
    """Return offset and size of each storage; None unless the file has all of them as they are in memory."""
    if archive.is_torchscript or archive.big_endian:
        return None
    storages = archive.explain()
    is_plain = archive.container in ("zip", "legacy", "safetensors")
    if not is_plain or any(storage.how == "inflated" for storage in storages):
        return None
    return [(storage.offset, storage.nbytes) for storage in storages]
