"""``zerocopy.gds.load``: the index from the file's head or tail, then the bytes of all storages to one place."""

from __future__ import annotations

import functools
import logging
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy._typing import GdsMode
from zerocopy.errors import Error, UnsupportedError
from zerocopy.gds import driver
from zerocopy.gds.availability import is_required, required
from zerocopy.gds.channel import Channel
from zerocopy.gds.devices import device_of
from zerocopy.gds.image import Image, Record
from zerocopy.loading import error_context, inputs, loader
from zerocopy.loading.formats import dcp_metadata, shard_index
from zerocopy.loading.objects import allowlist, builder

log = logging.getLogger("zerocopy")

_PLAIN = ("zip", "legacy", "safetensors")


def load(
    path: str | os.PathLike[str], device: str | int | torch.device = "cuda", *, require: GdsMode | None = None
) -> Any:
    """Load a checkpoint to a GPU, by GPUDirect Storage if possible.

    All storages of a file lie in one allocation, which lives as long as one of them. Shared storages stay shared.

    Parameters
    ----------
    path : str or PathLike
        A file of ``torch.save``, a ``.safetensors`` file, an index of shards (``*.index.json``), or a folder
        that holds an index or one model file.
    device : str, int or torch.device
        "cuda", "cuda:1", ...; "cpu": as ``zerocopy.load``; "auto": the GPU where there is one, else the CPU.
    require : {None, "direct", "compat"}
        The mode that :func:`available` must report for the file. None accepts any mode, with a warning
        without cuFile.

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
    found = device_of(device)
    if found.type not in driver.devices():
        if is_required(require):
            raise UnsupportedError(f"GPUDirect Storage is required, but cannot load to {found}")
        return loader.load(path, map_location=found)
    located = inputs.located(path)
    if isinstance(located, shard_index.Index):
        return shard_index.load(located, functools.partial(_load_file, device=found, require=require))
    file = path if isinstance(located, dcp_metadata.Folder) else located
    return _load_file(Path(os.fsdecode(file)), found, require)


def _load_file(path: Path, device: torch.device, require: str | None) -> Any:
    required(require, path)
    name = os.fsdecode(path)
    if require is None and device.type == "cuda" and (reason := driver.refusal()):
        _warn(name, reason)
        return loader.load(path, map_location=device)  # by a staged copy
    if path.is_dir() or _torch.skips_data():
        return _load_by_cpu(path, device, require)
    with path.open("rb") as file:
        try:
            archive = inputs.open_archive(file, "c", "mmap")
            records = _records(archive)
        except (Error, pickle.UnpicklingError):
            records = None  # zerocopy.load says what it is
        if records is None:
            return _load_by_cpu(path, device, require)
        image = Image(records, device, name)
        with (
            error_context.naming(path),
            Channel(file.fileno(), name, strict=require is not None) as channel,
        ):
            if image.size:
                channel.register_if_taken()
                if channel.reason:
                    _say(channel, image, name)
                    return loader.load(path, map_location=device)
            result = archive.load_over(
                allowlist.resolve, lambda i: image.storage(i, channel), "utf-8", builder
            )
            archive.require_unchanged()
            _say(channel, image, name)
    return result


def _load_by_cpu(path: Path, device: torch.device, require: str | None) -> Any:
    """Load what has to be inflated, swapped, put together, ... first, and a file that is at fault."""
    if require is None:
        log.info("%s: loaded to %s by way of the CPU", path, device)
        return loader.load(path, map_location=device)
    loader.load(path)
    raise UnsupportedError(
        f"{path}: its storages must be converted, so cuFile cannot read them into a GPU's memory"
    )


def _records(archive: _C.Archive) -> list[Record] | None:
    """Return where the storages are; None unless the file has all of them as they are in memory."""
    if archive.is_torchscript or archive.big_endian or archive.container not in _PLAIN:
        return None
    storages = archive.explain()
    if any(storage.how == "inflated" for storage in storages):
        return None
    elements = {dtype: _element_size(dtype) for dtype in {storage.dtype for storage in storages}}
    return [Record(storage.offset, storage.nbytes, elements[storage.dtype]) for storage in storages]


def _element_size(name: str) -> int:
    dtype = _torch.dtype(name)
    return _torch.element_size(dtype) if dtype is not None else 1


def _say(channel: Channel, image: Image, name: str) -> None:
    if not image.size:
        return
    if not channel.reason:
        log.info("%s: %d bytes read by cuFile", name, image.size)
    elif image.device.type == "cuda":
        _warn(name, channel.reason)


def _warn(name: str, reason: str) -> None:
    warnings.warn(
        f"{name}: loaded through the host's memory, without GPUDirect Storage: {reason}", stacklevel=5
    )
