"""``zerocopy.lazy_load``."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Iterable
from typing import Any

import torch

from zerocopy._typing import Backend, File, Mode, Unknown
from zerocopy.errors import Error
from zerocopy.lazy import file as lazy_file
from zerocopy.lazy import selection
from zerocopy.lazy.checkpoint import open_shards
from zerocopy.lazy.conversion import Options
from zerocopy.lazy.unpickler import LazyUnpickler
from zerocopy.loading import diagnosis, error_context, inputs
from zerocopy.loading.formats import dcp_metadata, shard_index
from zerocopy.loading.options import is_weights_only
from zerocopy.loading.readers import tar


def lazy_load(
    path: File,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    keys: Iterable[str] | None = None,
    prefix: str | None = None,
    predicate: selection.Predicate | None = None,
    weights_only: bool | None = True,
    backend: Backend = "auto",
    mode: Mode = "c",
    encoding: str = "utf-8",
    unknown: Unknown = "refuse",
) -> Any:
    """Load what ``torch.save`` wrote, with placeholders for its tensors.

    The object is the one that ``zerocopy.load`` returns; its tensors are :class:`zerocopy.NotYetLoadedTensor`, which
    take no memory and no address space until they are used, and give it back with the last real tensor.

    Parameters
    ----------
    path : str, PathLike, binary file object or buffer
        As for ``load``.
    dtype : torch.dtype, optional
        The dtype that floating-point tensors are cast to when they are loaded. Complex tensors need a complex
        dtype.
    device : torch.device or str, optional
        Where tensors go when they are loaded; default: where they were saved from.
    keys, prefix, predicate : optional
        Select leaves by dotted name (``"model.layers.0.weight"``). `keys` are names of leaves or branches,
        `prefix` is the beginning of names, and `predicate` is a function of a name. A leaf must satisfy all
        that are given. Other leaves are left out of dicts, and are None in lists and tuples.
    weights_only : bool
        As for ``load``.
    backend : {"auto", "mmap", "pread", "direct"}
    mode : {"c", "r", "r+"}
    encoding : str
    unknown : {"refuse", "stub"}
        As for ``load``.

    Returns
    -------
    object
        The saved object, with placeholders.

    Raises
    ------
    KeyError
        `keys` has a name that is neither of a leaf nor of a branch.
    OSError, zerocopy.FormatError, pickle.UnpicklingError, zerocopy.UnsupportedError
        As ``load``. A later fault of the file is raised when a placeholder is used.

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
    weights_only = is_weights_only(weights_only, unknown)
    options = Options(dtype, device, mode, unknown)
    match inputs.located(path):
        case shard_index.Index() as index:
            how = {
                "mode": mode,
                "backend": backend,
                "encoding": encoding,
                "dtype": dtype,
                "device": device,
                "unknown": unknown,
            }
            checkpoint = open_shards(index, weights_only, keys, prefix, predicate, **how)
            return {name: checkpoint[name] for name in checkpoint}
        case dcp_metadata.Folder() as folder:
            source = lazy_file.read_folder(folder, mode, backend, encoding, options, weights_only)
            return source.native.build(
                source.objects, selection.chosen(source.native, keys, prefix, predicate)
            )
        case file:
            path = file

    def load_safely(opened: lazy_file.Opened) -> Any:
        source = lazy_file.read_archive(opened, encoding, options)
        return source.native.build(source.objects, selection.chosen(source.native, keys, prefix, predicate))

    # To choose by names takes the safe machine: pickle's own knows of none.
    trusting = not weights_only and all(chooses is None for chooses in (keys, prefix, predicate))
    with error_context.as_public_error(), error_context.naming(path, weights_only=not trusting):
        begin = inputs.position_of(path)
        try:
            opened = lazy_file.open_archive(path, mode, backend)
        except diagnosis.TarError:  # each of its storages is copied, whatever is done
            if not trusting:
                raise
            with inputs.binary_file(path, begin) as stream:
                return tar.load(stream, options.map_location, pickle, {"encoding": encoding})
        if not (trusting and opened.archive.is_pickled):
            return load_safely(opened)
        with contextlib.suppress(Error, pickle.UnpicklingError):
            return load_safely(opened)
        return _load_trusting(opened, encoding, options)


def _load_trusting(opened: lazy_file.Opened, encoding: str, options: Options) -> Any:
    """Let pickle run what the file says, with placeholders for its tensors."""
    archive = opened.archive
    source = lazy_file.LazyFile(archive, opened.name, options)
    pickled = io.BytesIO(archive.pickle())
    unpickling = LazyUnpickler(
        pickled, archive, source.objects, map_location=options.map_location, encoding=encoding
    )
    result = unpickling.load()
    unpickling.read_storages()
    opened.finish()
    return result
