"""``zerocopy.open`` and ``zerocopy.overlay``: files, or the shards of an index, as a ``Checkpoint``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch

from zerocopy._typing import Backend, Device, File, Mode, Unknown
from zerocopy.lazy import file as lazy_file
from zerocopy.lazy.checkpoint import Checkpoint
from zerocopy.lazy.layer import FileLayer, Layer, TensorsLayer
from zerocopy.lazy.names import Predicate, Selection
from zerocopy.lazy.options import LazyOptions, checked
from zerocopy.loading import inputs
from zerocopy.loading.formats import shard_index


def open(
    path: File,
    *,
    mode: Mode = "c",
    backend: Backend = "auto",
    weights_only: bool | None = True,
    dtype: torch.dtype | None = None,
    device: Device = None,
    keys: Iterable[str] | None = None,
    prefix: str | None = None,
    predicate: Predicate | None = None,
    encoding: str = "utf-8",
    unknown: Unknown = "refuse",
    strict: bool = True,
) -> Checkpoint:
    """Open a checkpoint to inspect it and to read single tensors.

    Parameters
    ----------
    path : str, PathLike, binary file object or buffer
        As for ``load``, in every format that it reads. From a file object that can seek, and from a URL, only the bytes
        that a call needs are read. Keep such a file object open.
    mode : {"c", "r", "r+"}
    backend : {"auto", "mmap", "pread", "direct"}
    encoding : str
        As for ``load``.
    weights_only : bool
        Opening never runs code of the file. With False, a file that ``weights_only`` refuses raises
        ``UnsupportedError``; ``lazy_load`` can read the file.
    dtype : torch.dtype, optional
        The dtype that floating-point tensors are converted to when they are read.
    device : optional
        Where tensors are moved when they are read.
    keys : iterable of str, optional
        Open only these dotted names. The name of a branch stands for all leaves in the branch.
    prefix : str, optional
        Open only names that begin with this text.
    predicate : callable, optional
        Open only names for which ``predicate(name)`` is true. A name must satisfy each of these three options that is
        given.
    unknown : {"refuse", "stub"}
        As for ``load``. With "stub", a file that names unknown globals can be opened, and ``metadata()`` has a
        ``zerocopy.Stub`` for each object that would need such a global.
    strict : bool
        As for ``load``. False: if an index of shards is wrong, open the tensors that the shards have.

    Returns
    -------
    Checkpoint

    Raises
    ------
    OSError, zerocopy.FormatError, zerocopy.UnsupportedError, pickle.UnpicklingError
        As ``load``. A tensor whose own record is damaged raises the error when it is accessed.
    KeyError
        The file does not have one of `keys`.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> state = {"model": {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, "step": 7}
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save(state, file.name)
    ...     with zerocopy.open(file.name) as checkpoint:
    ...         list(checkpoint), checkpoint.metadata(), checkpoint.get_tensor("model.bias")
    (['model.weight', 'model.bias'], {'step': 7}, tensor([0., 0.]))
    """
    options = checked(dtype, device, weights_only, backend, mode, encoding, unknown, strict)
    selection = Selection(keys, prefix, predicate)
    found = inputs.located(path, strict)
    if isinstance(found, shard_index.Index):
        return open_shards(found, options, selection)
    file = lazy_file.read_with_names(found, options)
    layer = FileLayer(file, selection.chosen(file.native))
    return Checkpoint([layer], opened=[layer])


def open_shards(index: shard_index.Index, options: LazyOptions, selection: Selection) -> Checkpoint:
    """Open the shards of an index as one checkpoint, with a layer for each shard."""
    files: dict[Path, lazy_file.LazyFile] = {}
    with ExitStack() as on_failure:
        for shard in shard_index.present(index, options.load.strict):
            files[shard] = lazy_file.read_with_names(shard, options)
            on_failure.callback(files[shard].native.close)
        held = {shard: file.native.names() for shard, file in files.items()}
        homes = shard_index.homes(index, held, options.load.strict)
        chosen = selection.chosen(index._replace(homes=homes))
        names = dict[Path, list[str]]()
        for name in homes if chosen is None else chosen:
            names.setdefault(homes[name], []).append(name)
        layers: list[Layer] = [FileLayer(file, names.get(shard, ())) for shard, file in files.items()]
        on_failure.pop_all()
    return Checkpoint(layers, opened=layers, path=index.name)


def overlay(*checkpoints: Checkpoint | Mapping[str, torch.Tensor] | File) -> Checkpoint:
    """Stack checkpoints as one. If several have the same name, the last one's tensor counts.

    No tensor is read or copied. Shared tensors of one file stay shared, unless a later file has one of the
    names.

    Parameters
    ----------
    *checkpoints : Checkpoint, mapping of tensors, path, binary file object or buffer
        The base first. Files are opened as ``zerocopy.open`` does by default.

    Returns
    -------
    Checkpoint
        Names are in the order of their first appearance. Closing the result closes the files that ``overlay`` opened.
        If a checkpoint that was given is closed, the result is closed too.

    Raises
    ------
    TypeError
        No checkpoint is given, or a value of a mapping is not a tensor.
    OSError, zerocopy.FormatError, zerocopy.UnsupportedError, pickle.UnpicklingError
        As ``zerocopy.open``.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> with tempfile.NamedTemporaryFile() as base, tempfile.NamedTemporaryFile() as tuned:
    ...     torch.save({"body": torch.zeros(2), "head": torch.zeros(2)}, base.name)
    ...     torch.save({"head": torch.ones(2)}, tuned.name)
    ...     with zerocopy.overlay(base.name, tuned.name) as both:
    ...         {name: both.get_tensor(name) for name in both}
    {'body': tensor([0., 0.]), 'head': tensor([1., 1.])}
    """
    if not checkpoints:
        raise TypeError("expected at least one checkpoint")
    layers: list[Layer] = []
    opened: list[Layer] = []
    with ExitStack() as on_failure:
        for checkpoint in checkpoints:
            if isinstance(checkpoint, Checkpoint):
                layers += checkpoint.layers
            elif isinstance(checkpoint, Mapping):
                layers.append(TensorsLayer(checkpoint))
            else:
                own = on_failure.enter_context(open(checkpoint)).layers
                opened += own
                layers += own
        on_failure.pop_all()
    return Checkpoint(layers, opened)
