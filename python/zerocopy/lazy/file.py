"""A file that was read, of which nothing has been built yet."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy.display import listed
from zerocopy.errors import UnsupportedError
from zerocopy.lazy.conversion import Options, cast_dtype, converted
from zerocopy.lazy.placeholder_builder import Call, Deferred
from zerocopy.lazy.stub_builder import StubbingDeferred
from zerocopy.loading import archives, backends, diagnosis, error_context, inputs, loader
from zerocopy.loading.device import staging
from zerocopy.loading.formats import dcp_metadata
from zerocopy.loading.objects import allowlist, builder, stubs
from zerocopy.loading.options import LoadOptions
from zerocopy.loading.readers import dcp_folder


class LazyFile:
    """A checkpoint that was read, and the real tensors of its placeholders.

    Attributes
    ----------
    name : str
        The name of the file in errors and reprs.
    native : zerocopy._C.Lazy
        Its names, its tensors. Of a file that takes trust the ``Archive``, which has neither.
    objects : zerocopy.lazy.placeholder_builder.Deferred
        Makes its placeholders.
    converts : bool
        Whether tensors get another dtype or device than they have in the file.
    has_stubs : bool
        Whether stubs stand for objects whose globals are on no allow-list.
    same : dict
        Numbers of tensors that are tied, and that of the tensor which stands for each.
    source : str or None
        The absolute path of the file whose bytes are those of the tensors; None for anything else.
    """

    def __init__(self, native: Any, name: str, options: Options, source: str | None = None) -> None:
        self.native, self.name, self.same, self.source = native, name, dict[Any, Any](), source
        self._dtype, self._device, self._mode = options.dtype, options.device, options.mode
        self.converts = options.dtype is not None or options.device is not None
        self.has_stubs = options.unknown == "stub"
        self.objects = StubbingDeferred(self) if self.has_stubs else Deferred(self)

    def converted(self, dtype: torch.dtype, location: str) -> tuple[torch.dtype, torch.device]:
        """Return what a tensor's dtype and device will be."""
        device = self._device
        if device is None:
            try:
                device = torch.device(location)
            except RuntimeError:  # a name of the user's own (register_package); whoever restores it knows
                device = torch.device("cpu")
        return cast_dtype(dtype, self._dtype), device

    def load(self, recipe: int | Call) -> torch.Tensor:
        """Return the real tensor of a recipe: a number of the native side, or a call."""
        with error_context.naming(self.name, weights_only=True):
            if isinstance(recipe, Call):
                self.native.require_there()
                real = recipe.made()
            else:
                real = self.native.tensor_at(recipe)
            return self._as_wanted(real) if self.converts else real

    def identity(self, number: int) -> Any:
        """Return what tensors have in common that are over one storage, even if each is made anew."""
        name, *storage = self.native.storage_at(number)
        dtype = builder.dtype(name)
        if cast_dtype(dtype, self._dtype) == dtype and (self._device is None or self._device.type == "cpu"):
            return tuple(storage)
        return self.same.get(number, number)

    def advise(self, tensor: torch.Tensor, advice: str) -> None:
        """Say how a tensor's bytes are going to be read: "together", "scattered", or "soon"."""
        if tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized:
            storage = _torch.untyped_of(tensor)
            _C.advise(
                storage, tensor.dtype, int(tensor.storage_offset()), tensor.size(), tensor.stride(), advice
            )

    def _as_wanted(self, real: torch.Tensor) -> torch.Tensor:
        dtype, device = self.converted(real.dtype, str(real.device))
        if (dtype, device) == (real.dtype, real.device):
            return real
        if self._mode == "r+":
            raise UnsupportedError(
                f"mode 'r+' cannot write to what has to be converted from {real.dtype} on {real.device}"
            )
        moved = converted(real.detach(), dtype, device)
        if isinstance(real, torch.nn.Parameter):
            return torch.nn.Parameter(moved, real.requires_grad)
        return moved.requires_grad_(real.requires_grad)


def read(f: Any, mode: str = "c", backend: str = "auto", encoding: str = "utf-8", **options: Any) -> LazyFile:
    """Read the pickle of one file, or of a folder that was found, and build nothing of it. Errors as ``lazy_load``."""
    if isinstance(f, dcp_metadata.Folder):
        return read_folder(f, mode, backend, encoding, Options(mode=mode, **options))
    with error_context.as_public_error(), error_context.naming(f, weights_only=True):
        return read_archive(open_archive(f, mode, backend), encoding, Options(mode=mode, **options))


class Opened(NamedTuple):
    """An archive, and what it was opened from, which is left standing at its end."""

    archive: _C.Archive
    name: str
    file: Any
    begin: int | None

    def finish(self) -> None:
        """Require an unchanged file, and leave a file object at the archive's end."""
        self.archive.require_unchanged()
        if self.begin is not None:
            self.file.seek(self.begin + self.archive.end)


def open_archive(f: Any, mode: str, backend: str) -> Opened:
    """Open an archive, of which windows are mapped when they are needed."""
    begin, name = inputs.position_of(f), inputs.name_of(f)
    if isinstance(f, (str, os.PathLike)):
        f = Path(os.fsdecode(f)).absolute()  # placeholders find it when the program has gone elsewhere
    archive = inputs.open_archive(f, mode, backends.backend_of(backend, None), windows=True)
    if archive.is_torchscript:
        raise diagnosis.TorchScriptError(loader.TORCHSCRIPT_REFUSED)
    return Opened(archive, name, f, begin)


def read_archive(opened: Opened, encoding: str, options: Options) -> LazyFile:
    """Read the pickle of an open archive, with the safe machine."""
    where = (*_torch.restore_function(options.map_location), staging.transfer_to(options.device))
    allow, construction = (stubs.allow, stubs) if options.unknown == "stub" else (allowlist.resolve, builder)
    native = _C.Lazy(opened.archive, allow, *where, encoding, construction, opened.name)
    opened.finish()
    is_plain = isinstance(opened.file, Path) and not opened.archive.big_endian
    return LazyFile(native, opened.name, options, str(opened.file) if is_plain else None)


def read_folder(
    folder: dcp_metadata.Folder,
    mode: str,
    backend: str,
    encoding: str,
    options: Options,
    weights_only: bool = True,
) -> LazyFile:
    """Read the metadata of a folder of ``torch.distributed.checkpoint``."""

    def load_archive(archive: _C.Archive) -> Any:
        pickle_args = {"encoding": encoding}
        return archives.load(
            archive,
            LoadOptions(
                options.map_location,
                weights_only=weights_only,
                unknown=options.unknown,
                pickle_args=pickle_args,
            ),
        )

    way = backends.backend_of(backend, None)
    files = dcp_folder.Files(folder, mode, way, windows=True, load_archive=load_archive)
    return LazyFile(dcp_folder.Tensors(files), folder.name, options)


def read_with_names(f: Any, weights_only: bool, **how: Any) -> LazyFile:
    """Read one file or DCP folder for a Checkpoint, and make its names. ``how`` are the arguments of :func:`read`."""
    try:
        file = read(f, **how)
    except pickle.UnpicklingError as error:
        if weights_only:
            raise
        found = listed(getattr(error, "globals", [str(error)]), 5)
        raise UnsupportedError(
            f"{inputs.name_of(f)}: expected globals on an allow-list, since open() never runs code of a file, found "
            f'{found}. zerocopy.open(FILE, unknown="stub") opens all else.'
        ) from error
    with error_context.naming(f, weights_only):
        file.native.find("")  # makes the names, so that a file with absurdly many is refused now
    return file
