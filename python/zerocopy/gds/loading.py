"""``zerocopy.gds.load``: the index from the file's head or tail, then each storage straight to the device."""

from __future__ import annotations

import functools
import logging
import os
import pickle
import warnings
from pathlib import Path
from typing import Any, NamedTuple

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
    if require is None and (reason := cufile.refusal()):
        return _load_without(name, device, reason)
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
        if require is None and channel.reason:
            return _load_without(name, device, channel.reason)
        storages = _Storages(records, device, channel, name)
        with error_context.naming(path):
            result = archive.load_over(allowlist.resolve, storages.__getitem__, "utf-8", builder)
            archive.require_unchanged()
    if channel.reason:
        if require is not None:
            raise UnsupportedError(f"{name}: GPUDirect Storage ({require}) is required: {channel.reason}")
        _warn(name, channel.reason)
    return result


class _Record(NamedTuple):
    """The place of a storage's bytes in the file."""

    offset: int
    size: int


class _Storages(dict[int, torch.UntypedStorage]):
    """The storages of a file on a device. Each is read when it is first asked for."""

    def __init__(self, records: list[_Record], device: torch.device, channel: Channel, name: str) -> None:
        super().__init__()
        self._records, self._device, self._channel, self._name = records, device, channel, name

    def __missing__(self, number: int) -> torch.UntypedStorage:
        offset, size = self._records[number]
        try:
            made = torch.UntypedStorage(size, device=self._device)
        except torch.cuda.OutOfMemoryError as error:
            needed = sum(record.size for record in self._records)
            raise type(error)(
                f"{self._name}: {needed} bytes are needed on {self._device}: {error}"
            ) from error
        self._channel.read(made, offset)
        self[number] = made
        return made


def _load_without(name: str, device: torch.device, reason: str) -> Any:
    """Load by a staged copy through the host's memory, with a warning."""
    _warn(name, reason)
    return loader.load(name, map_location=device)


def _load_by_cpu(path: Path, device: torch.device, require: str | None) -> Any:
    """Load by the CPU: storages that must be inflated, swapped or joined first, and files with a fault."""
    if require is None:
        log.info("%s: loaded to %s by way of the CPU", path, device)
        return loader.load(path, map_location=device)
    loader.load(path)
    raise UnsupportedError(
        f"{path}: its storages must be converted, so cuFile cannot read them into a GPU's memory"
    )


def _records(archive: _C.Archive) -> list[_Record] | None:
    """Return where the storages are; None unless the file has all of them as they are in memory."""
    if (
        archive.is_torchscript
        or archive.big_endian
        or archive.container not in ("zip", "legacy", "safetensors")
    ):
        return None
    storages = archive.explain()
    if any(storage.how == "inflated" for storage in storages):
        return None
    return [_Record(storage.offset, storage.nbytes) for storage in storages]


def _warn(name: str, reason: str) -> None:
    warnings.warn(
        f"{shown(name)}: loaded through the host's memory, without GPUDirect Storage: {reason}", stacklevel=6
    )
