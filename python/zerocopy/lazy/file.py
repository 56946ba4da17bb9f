"""A file whose pickle was read, before anything is built."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zerocopy import _torch, remote
from zerocopy._native import _C
from zerocopy._torch import context, modules
from zerocopy.display import listed
from zerocopy.errors import UnsupportedError
from zerocopy.lazy.conversion import Converted, converted
from zerocopy.lazy.options import LazyOptions
from zerocopy.lazy.placeholder_builder import Deferred, Read, TensorRecipe
from zerocopy.loading import archives, diagnosis, error_context, inputs, loader
from zerocopy.loading.device import staging
from zerocopy.loading.extents import Box, ChunkExtent, TensorExtents
from zerocopy.loading.formats import dcp_metadata
from zerocopy.loading.objects import builder
from zerocopy.loading.objects.stubs import StubBuilder
from zerocopy.loading.options import LoadOptions
from zerocopy.loading.readers import dcp_folder


class LazyFile:
    """A checkpoint that was read, and the real tensors of its placeholders.

    Attributes
    ----------
    name : str
        The name of the file in errors and reprs.
    native : zerocopy._C.Lazy
        The names and tensors of the file. For a file that needs ``weights_only=False``, the ``Archive``, without these.
    options : LazyOptions
        How the file is read, and how its tensors are converted.
    source : str or None
        The absolute path of the file whose bytes are those of the tensors; None for anything else.
    """

    def __init__(self, native: Any, name: str, options: LazyOptions, source: str | None = None) -> None:
        self.native, self.name, self.source = native, name, source
        self.options = options
        self._converted = Converted()

    def objects(self, *, read: bool = False, charge: Callable[[], None] | None = None) -> Any:
        """Return the builder of placeholders: a ``Deferred``, inside a ``StubBuilder`` if stubs are wanted.

        With `read`, the builder reads dense tensors if none are converted: converted ones take memory of their own.
        `charge` is called before each tensor is made. The builder refers to this file. So it is not stored here: the
        cycle would keep descriptors open until the garbage collector runs.
        """
        kind = Read if read and not self.options.converts else Deferred
        made = kind(self, charge)
        return StubBuilder(made) if self.options.load.unknown == "stub" else made

    def current_path(self) -> str:
        """Return the path of the file. Raise ``OSError`` if the file was moved, replaced or changed."""
        with error_context.naming(self.name):
            self.native.require_there()
        return self.source or self.name

    def load(self, recipe: int | TensorRecipe, *, as_saved: bool = False) -> torch.Tensor:
        """Return the real tensor of a recipe: a number of the native side, or a call.

        The result does not depend on modes that are active at a placeholder's first use. `as_saved`: do not convert it.
        """
        with error_context.naming(self.name), context.advising_device():
            return context.ordinarily(self._as_saved if as_saved else self._as_wanted, recipe)

    def _as_wanted(self, recipe: int | TensorRecipe) -> torch.Tensor:
        return self.as_wanted(self._as_saved(recipe), None if isinstance(recipe, TensorRecipe) else recipe)

    def _as_saved(self, recipe: int | TensorRecipe) -> torch.Tensor:
        if isinstance(recipe, TensorRecipe):
            self.native.require_there()
            return recipe.made()
        made: torch.Tensor = self.native.tensor_at(recipe)
        return made

    def identity(self, number: int) -> Any:
        """Return a key that is equal for tensors over one storage, even if each is made anew.

        Converted tensors share a storage only if they are tied: if they view the same bytes in the same way.
        """
        name, storage, shown = self.native.shown_at(number)
        dtype = builder.dtype(name)
        if self.options.converted(dtype, "cpu") == (dtype, torch.device("cpu")):
            return storage
        return storage, shown, name

    def extents(self, name: str, box: Box | None) -> TensorExtents | None:
        """Return where a tensor's bytes lie unchanged in a file; None if they do not (deflated, sparse, ...)."""
        native = self.native
        if isinstance(native, dcp_folder.Files):
            return native.extents(name, box)
        entry = native.entry(native.find(name))
        if self.source is None or entry.offset is None or entry.is_conjugate or entry.is_negative:
            return None
        chunk = ChunkExtent(self.source, entry.offset, (0,) * len(entry.shape), entry.shape, entry.stride)
        return TensorExtents(entry.shape, builder.dtype(entry.dtype), (chunk,))

    def advise(self, tensor: torch.Tensor, advice: str) -> None:
        """Advise the kernel how a tensor's bytes are going to be read: "together", "scattered", or "soon"."""
        if tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized:
            # Within a transform of torch.func it has no storage.
            with contextlib.suppress(NotImplementedError):
                storage = _torch.untyped_of(tensor)
                offset = int(tensor.storage_offset())
                _C.advise(storage, tensor.dtype, offset, tensor.size(), tensor.stride(), advice)

    def as_wanted(self, real: torch.Tensor, number: int | None = None) -> torch.Tensor:
        """Convert a tensor to the dtype and device of the options, and keep its attributes.

        `number` is the native side's number of a dense tensor. A tensor without data stays on the device "meta".
        """
        if not self.options.converts:
            return real
        dtype, device = self.options.converted(real.dtype, str(real.device))
        device = real.device if real.is_meta else device
        if (dtype, device) == (real.dtype, real.device):
            return real
        if self.options.load.mode == "r+":
            raise UnsupportedError(
                f"mode 'r+' cannot write to what has to be converted from {real.dtype} on {real.device}"
            )
        if number is None:
            moved = converted(real.detach(), dtype, device)
        else:
            identity = self.identity(number)
            moved = self._converted.of(identity, lambda: converted(real.detach(), dtype, device))
        if isinstance(real, torch.nn.Parameter):
            made: torch.Tensor = torch.nn.Parameter(moved, real.requires_grad)
        else:
            made = moved.requires_grad_(real.requires_grad)
        if modules.is_elements(real):
            vars(made).update(vars(real) | vars(made))  # a subclass may have set some itself
        return made


class Opened(NamedTuple):
    """An archive and its source. If the source is a file object, it is positioned at the archive's end."""

    archive: _C.Archive
    name: str
    file: Any
    begin: int | None

    def finish(self) -> None:
        """Require an unchanged file, and position a file object at the archive's end."""
        self.archive.require_unchanged()
        if self.begin is not None:
            self.file.seek(self.begin + self.archive.end)


def open_archive(f: Any, options: LoadOptions) -> Opened:
    """Open an archive that is mapped in windows when they are needed."""
    f = remote.opened(f)
    begin, name = inputs.position_of(f), inputs.name_of(f)
    if isinstance(f, (str, os.PathLike)) and os.fspath(f):
        f = _absolute(os.fsdecode(f))  # placeholders find it after the program has changed its folder
    archive = inputs.open_archive(f, options.mode, options.backend, windows=True, by_position=True)
    if archive.is_torchscript:
        raise diagnosis.TorchScriptError(loader.TORCHSCRIPT_REFUSED)
    return Opened(archive, name, f, begin)


def _absolute(path: str) -> str:
    # pathlib would drop a trailing slash, and the system would not refuse the file.
    return path if path.startswith("/") else f"{Path.cwd()}/{path}"


def read_archive(opened: Opened, options: LazyOptions) -> LazyFile:
    """Read the pickle of an open archive, with the safe machine."""
    load = options.load
    allow, objects = archives.policy_of(load)
    restored = _torch.restore_function(load.map_location)
    destination = staging.Destination(*restored, staging.transfer_to(options.device))
    native = _C.Lazy(opened.archive, allow, destination, load.encoding, objects, opened.name)
    opened.finish()
    is_plain = isinstance(opened.file, str) and not opened.archive.big_endian
    return LazyFile(native, opened.name, options, opened.file if is_plain else None)


def read_folder(folder: dcp_metadata.Folder, options: LazyOptions) -> LazyFile:
    """Return a folder of ``torch.distributed.checkpoint``, by its metadata, in the form of a file."""
    return LazyFile(dcp_folder.Files(folder, options.load, windows=True), folder.name, options)


def read_with_names(f: Any, options: LazyOptions) -> LazyFile:
    """Read one file or DCP folder for a Checkpoint, and make its names. No code of the file runs."""
    safe = dataclasses.replace(options, load=dataclasses.replace(options.load, weights_only=True))
    try:
        if isinstance(f, dcp_metadata.Folder):
            file = read_folder(f, safe)
        else:
            with error_context.public(f):
                file = read_archive(open_archive(f, safe.load), safe)
    except pickle.UnpicklingError as error:
        if options.load.weights_only:
            raise
        found = listed(getattr(error, "globals", [str(error)]), 5)
        raise UnsupportedError(
            f"{inputs.name_of(f)}: expected globals on an allow-list, since open() never runs code of a file, found "
            f'{found}. zerocopy.open(FILE, unknown="stub") opens all else.'
        ) from error
    with error_context.naming(f, options.load.weights_only):
        file.native.find("")  # makes the names, so that a file with far too many is refused now
    return file
