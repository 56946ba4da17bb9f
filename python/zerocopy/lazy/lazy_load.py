"""``zerocopy.lazy_load``."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy.errors import Error, UnsupportedError
from zerocopy.lazy.conversion import Options, cast_dtype, converted
from zerocopy.lazy.name_hints import no_such_name
from zerocopy.lazy.placeholder_builder import Call, Deferred
from zerocopy.lazy.unpickler import LazyUnpickler
from zerocopy.loading import backends, diagnosis, inputs, loader
from zerocopy.loading.device import staging
from zerocopy.loading.formats import dcp_metadata, shard_index
from zerocopy.loading.objects import allowlist, builder
from zerocopy.loading.readers import dcp_folder, tar

Predicate = Callable[[str], bool]


def lazy_load(
    path: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    keys: Iterable[str] | None = None,
    prefix: str | None = None,
    predicate: Predicate | None = None,
    weights_only: bool = True,
    backend: str = "auto",
    mode: str = "c",
    encoding: str = "utf-8",
) -> Any:
    """Load what ``torch.save`` wrote, with placeholders for its tensors.

    The object is the one that ``zerocopy.load`` returns; its tensors are :class:`zerocopy.NotYetLoadedTensor`, which
    take no memory and no address space until they are used, and give it back with the last real tensor.

    Parameters
    ----------
    path : str, PathLike, binary file object or buffer
        As for ``load``.
    dtype : torch.dtype, optional
        What floating-point tensors are cast to when they are loaded; complex ones only to another complex dtype.
    device : torch.device or str, optional
        Where tensors go when they are loaded; default: where they were saved from.
    keys, prefix, predicate : optional
        Which leaves to load, by their dotted names (``"model.layers.0.weight"``): `keys` are names of leaves or of
        whole branches, `prefix` is what names begin with, `predicate` a function of a name. All that are given have
        to hold. The rest is left out of dicts; in lists and tuples None stands in its place.
    weights_only : bool
        As for ``load``.
    backend, mode, encoding : str
        As for ``load``.

    Raises
    ------
    KeyError
        `keys` has a name that is neither of a leaf nor of a branch.
    OSError, zerocopy.FormatError, pickle.UnpicklingError, zerocopy.UnsupportedError
        As ``load``. What is wrong with the file later is raised by the placeholder that is used then.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> torch.save({"model": {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, "step": 7}, file.name)
    >>> zerocopy.lazy_load(file.name)["model"]["weight"].shape
    torch.Size([2, 3])
    >>> zerocopy.lazy_load(file.name, dtype=torch.float16, keys=["model.bias", "step"])
    {'model': {'bias': NotYetLoadedTensor(shape=(2,), dtype=torch.float16, file=...)}, 'step': 7}
    """
    if (index := shard_index.index_of(path)) is not None:
        from zerocopy.lazy.checkpoint import open_shards  # which needs this module

        checkpoint = open_shards(
            index,
            weights_only,
            keys,
            prefix,
            predicate,
            mode=mode,
            backend=backend,
            encoding=encoding,
            dtype=dtype,
            device=device,
        )
        return {name: checkpoint[name] for name in checkpoint}
    options = Options(dtype, device, mode)
    if (folder := dcp_metadata.folder_of(path)) is not None:
        source = _read_folder(folder, mode, backend, encoding, options, weights_only)
        return source.native.build(source.objects, chosen(source.native, keys, prefix, predicate))

    def load_safely(opened: _Opened) -> Any:
        source = _read(opened, encoding, options)
        return source.native.build(source.objects, chosen(source.native, keys, prefix, predicate))

    # To choose by names takes the safe machine: pickle's own knows of none.
    trusting = not weights_only and all(chooses is None for chooses in (keys, prefix, predicate))
    with loader.undiagnosed(), loader.naming(path, weights_only=not trusting):
        begin = inputs.position_of(path)
        try:
            opened = _open(path, mode, backend)
        except diagnosis.TarError:  # each of its storages is copied, whatever is done
            if not trusting:
                raise
            with inputs.binary_file(path, begin) as file:
                return tar.load(file, options.map_location, pickle, {"encoding": encoding})
        if not (trusting and opened.archive.is_pickled):
            return load_safely(opened)
        with contextlib.suppress(Error, pickle.UnpicklingError):
            return load_safely(opened)
        return _load_trusting(opened, encoding, options)


class LazyFile:
    """A checkpoint that was read, and the real tensors of its placeholders.

    Attributes
    ----------
    name : str
        What errors and reprs call the file.
    native : zerocopy._C.Lazy
        Its names, its tensors. Of a file that takes trust the ``Archive``, which has neither.
    objects : zerocopy.lazy.placeholder_builder.Deferred
        Makes its placeholders.
    converts : bool
        Whether tensors get another dtype or device than they have in the file.
    same : dict
        Numbers of tensors that are tied, and that of the tensor which stands for each.
    """

    def __init__(self, native: Any, name: str, options: Options) -> None:
        self.native, self.name, self.same = native, name, dict[Any, Any]()
        self._dtype, self._device, self._mode = options.dtype, options.device, options.mode
        self.converts = options.dtype is not None or options.device is not None
        self.objects = Deferred(self)

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
        with loader.naming(self.name, weights_only=True):
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
    """Read a checkpoint's pickle, and build nothing of it. Arguments and errors as for :func:`lazy_load`, safely."""
    if (folder := dcp_metadata.folder_of(f)) is not None:
        return _read_folder(folder, mode, backend, encoding, Options(mode=mode, **options))
    with loader.undiagnosed(), loader.naming(f, weights_only=True):
        return _read(_open(f, mode, backend), encoding, Options(mode=mode, **options))


class _Opened(NamedTuple):
    """An archive, and what it was opened from, which is left standing at its end."""

    archive: _C.Archive
    name: str
    file: Any
    begin: int | None

    def finish(self) -> None:
        self.archive.require_unchanged()
        if self.begin is not None:
            self.file.seek(self.begin + self.archive.end)


def _open(f: Any, mode: str, backend: str) -> _Opened:
    begin, name = inputs.position_of(f), inputs.name_of(f)
    if isinstance(f, (str, os.PathLike)):
        f = Path(os.fsdecode(f)).absolute()  # placeholders find it when the program has gone elsewhere
    archive = inputs.open_archive(f, mode, backends.backend_of(backend, None), windows=True)
    if archive.is_torchscript:
        raise diagnosis.TorchScriptError(loader.TORCHSCRIPT_REFUSED)
    return _Opened(archive, name, f, begin)


def _read(opened: _Opened, encoding: str, options: Options) -> LazyFile:
    where = (*_torch.restore_function(options.map_location), staging.road_to(options.device))
    native = _C.Lazy(opened.archive, allowlist.resolve, *where, encoding, builder, opened.name)
    opened.finish()
    return LazyFile(native, opened.name, options)


def _read_folder(
    folder: dcp_metadata.Folder,
    mode: str,
    backend: str,
    encoding: str,
    options: Options,
    weights_only: bool = True,
) -> LazyFile:
    def load_archive(archive: _C.Archive) -> Any:
        return loader.load_archive(archive, options.map_location, None, weights_only, {"encoding": encoding})

    way = backends.backend_of(backend, None)
    files = dcp_folder.Files(folder, mode, way, windows=True, load_archive=load_archive)
    return LazyFile(dcp_folder.Tensors(files), folder.name, options)


def _load_trusting(opened: _Opened, encoding: str, options: Options) -> Any:
    """Let pickle run what the file says, with placeholders for its tensors."""
    archive = opened.archive
    source = LazyFile(archive, opened.name, options)
    file = io.BytesIO(archive.pickle())
    unpickling = LazyUnpickler(
        file, archive, source.objects, map_location=options.map_location, encoding=encoding
    )
    result = unpickling.load()
    unpickling.read_storages()
    opened.finish()
    return result


class Named(Protocol):
    """What has names to choose from: a ``_C.Lazy``, a ``zerocopy.loading.formats.shard_index.Index``."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def names(self) -> list[str]:
        """Return the names of its tensors."""

    def other_names(self) -> list[str]:
        """Return the names of its other leaves."""


def chosen(
    native: Named, keys: Iterable[str] | None, prefix: str | None, predicate: Predicate | None
) -> list[str] | None:
    """Return the names of the leaves that a filter lets through; None for all, if there is no filter."""
    if keys is None and prefix is None and predicate is None:
        return None
    if isinstance(keys, str):
        raise TypeError("keys is one string; a list of names is wanted")
    keys = None if keys is None else set(keys)
    if keys is not None and not all(isinstance(key, str) for key in keys):
        raise TypeError("keys are names: strings")
    if prefix is not None and not isinstance(prefix, str):
        raise TypeError(f"expected prefix to be a str, got {type(prefix).__name__}")
    names: list[str] = [*native.names(), *native.other_names()]
    if keys is not None:
        names = _under(keys, names, native.name)
    if prefix is not None:
        names = [name for name in names if name.startswith(prefix)]
    return names if predicate is None else [name for name in names if predicate(name)]


def _under(keys: set[str], names: list[str], path: str) -> list[str]:
    """Return the names that are among the keys, or in a branch that is."""
    lengths, unknown, kept = {len(key) for key in keys}, set(keys), []
    for name in names:
        # Only what is as long as a key is looked up: a stranger's name may have any number of dots.
        if known := keys & {name[:end] for end in _ends(name) if end in lengths}:
            unknown -= known
            kept.append(name)
    if unknown:
        raise no_such_name(path, min(unknown), names)
    return kept


def _ends(name: str) -> Iterator[int]:
    """Yield where the names of the branches that a leaf is in end, and its own."""
    end = name.find(".")
    while end >= 0:
        yield end
        end = name.find(".", end + 1)
    yield len(name)
