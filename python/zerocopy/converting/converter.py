"""``zerocopy.convert``: a checkpoint in another format."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from zerocopy import _core, _torch
from zerocopy._native import _C
from zerocopy._typing import FilePath, Unknown
from zerocopy.converting import outputs, shard_plan
from zerocopy.converting.hdf5_writer import Hdf5Writer
from zerocopy.converting.inputs import Keep
from zerocopy.converting.zip_records import zip_records
from zerocopy.errors import Error, UnsupportedError
from zerocopy.lazy.options import checked
from zerocopy.loading import error_context, inputs
from zerocopy.loading.formats import hdf5
from zerocopy.loading.objects import allowlist
from zerocopy.progress import Counted, Progress, require_progress
from zerocopy.saving.atomic_file import path_of_file, replacing

_logger = logging.getLogger("zerocopy")


def convert(
    src: FilePath | Sequence[FilePath],
    dst: FilePath,
    *,
    dtype: torch.dtype | None = None,
    max_shard_size: int | str | None = None,
    keep: Keep | None = None,
    progress: Progress | None = None,
    unknown: Unknown = "refuse",
    strip_prefix: str = "",
    ties: str | Collection[str] = "note",
    strict: bool | None = None,
) -> None:
    """Write a checkpoint in another format: ``.pt``, ``.safetensors`` and ``.h5``, one file or shards.

    Tensors go one by one, from file to file where their bytes stay what they are, so memory stays at the largest that
    has to be changed. Where the target was there, it is replaced when the new one is whole, and left as it is if
    anything goes wrong.

    Parameters
    ----------
    src : str or PathLike, or a list of them
        Anything that ``zerocopy.open`` takes: a file, an index of shards, a folder. Several sources are
        merged by dotted name.
    dst : str or PathLike
        Its ending says the format: ``.safetensors``; ``.pt``, ``.pth``, ``.bin``, ``.ckpt``; ``.h5``, ``.hdf5``. With
        `max_shard_size` a folder, which gets what transformers reads (``model.safetensors.index.json``, and shards
        beside it), an index, or a file that indices and shards are named after: ``folder/pytorch_model.bin``.
    dtype : torch.dtype, optional
        The dtype for floating-point tensors.
    max_shard_size : int or str, optional
        Bytes of a shard, or ``"5GB"`` (decimal, as transformers has it), ``"500MB"``, ``"1GiB"``.
    keep : str, list of str or callable, optional
        Selects leaves by dotted name: a prefix, a list of leaves and branches, or a function ``keep(name)``.
        Use ``keep=["model"]`` to drop the optimizer. Names do not change.
    strip_prefix : str
        Removed from the beginning of each dotted name that begins so: ``"model."`` writes ``model.weight`` as
        ``weight``. `keep` selects by the names before that. A ``.pt`` or ``.h5`` target then holds a flat dict.
    progress : callable, optional
        Called with the bytes that are written and those that there are.
    unknown : {"refuse", "stub"}
        How to treat objects whose globals are not on an allow-list. "refuse": raise an error. "stub": leave
        out the values that are or hold such objects. The tensors inside them are written.
    ties : {"note", "copy"} or list of str
        Tensors that show the same bytes, in ``.safetensors``. "note": write them once, under the first name in the
        alphabet, and note the other names in the metadata. A list has names that are written in any case. "copy":
        write the bytes under each name, and also of tensors that overlap.
    strict : bool, optional
        With True, an error if the target would leave out anything. By default one WARNING counts and names what it
        leaves out. With False, a set of shards whose index is wrong is taken for what the shards have, as by ``load``.

    Raises
    ------
    OSError
        The operating system refused; ESTALE if a source was changed meanwhile; EINVAL if the target is a
        device, a pipe, ...
    zerocopy.FormatError, pickle.UnpicklingError
        As ``open``.
    zerocopy.UnsupportedError
        There are tensors that the format cannot hold (sparse, quantized, overlapping, ...), which the message lists;
        several sources have the same names; a format that is none of these; h5py is not installed; with `strict`, what
        the target would leave out.
    ValueError
        No such size; nothing to write; `keep` leaves nothing; no name begins with `strip_prefix`.
    KeyError
        `keep` or `ties` has a name that is not there.

    Notes
    -----
    ``.pt`` as ``.h5`` without `dtype`, `keep` and `strip_prefix` is a copy, record by record: nothing is unpickled, so
    whole modules come along too. With ``unknown="stub"`` this holds for sources without unknown classes.
    docs/converting.md describes ties, metadata and values that are not tensors.

    Examples
    --------
    >>> import tempfile, pathlib, torch, zerocopy
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> torch.save({"model": {"weight": torch.arange(4.0)}, "step": 7}, folder / "model.pt")
    >>> zerocopy.convert(folder / "model.pt", folder / "model.safetensors", keep=["model"], dtype=torch.bfloat16)
    >>> zerocopy.load(folder / "model.safetensors")
    {'model.weight': tensor([0., 1., 2., 3.], dtype=torch.bfloat16)}
    """
    paths: Sequence[Any] = list(src) if isinstance(src, (list, tuple)) else [src]
    is_file = max_shard_size is None or not os.fspath(dst)
    target = (path_of_file(dst) if is_file else Path(os.fsdecode(dst))).absolute()
    if not paths:
        raise ValueError("expected at least one source")
    checked(dtype, unknown=unknown)  # which says what is wrong with them
    require_progress(progress)
    if _torch.skips_data():
        raise UnsupportedError(
            f"{os.fspath(dst)}: convert copies data, which a block of skip_data leaves out"
        )
    if not isinstance(strip_prefix, str):
        raise TypeError(f"expected strip_prefix to be a str, got {type(strip_prefix).__name__}")
    if isinstance(ties, str) and ties not in ("note", "copy"):
        raise ValueError(f"expected ties to be 'note', 'copy' or a list of names, got {ties!r}")
    kept_ties = None if ties == "copy" else () if ties == "note" else list(ties)
    job = outputs.Job(paths, dtype, keep, progress, unknown, strip_prefix, strict, kept_ties)
    if max_shard_size is not None:
        most = shard_plan.size_of(max_shard_size)
        layout = shard_plan.layout_of(target, outputs.SUFFIXES)
        if layout.suffix in hdf5.SUFFIXES:
            raise UnsupportedError(f"{os.fspath(dst)}: expected shards of .safetensors or .pt, got .h5")
        outputs.write_shards(job, layout, most)
        if (other := layout.preferred()) is not None:
            _logger.warning(
                "%s is there too, and loaders of the folder take it: remove one of the two", other
            )
        return
    if target.is_dir():
        why = "Is a directory: name a file in it, or give max_shard_size (--max-shard-size) for shards in it"
        raise IsADirectoryError(errno.EISDIR, why, os.fspath(dst))
    if target.suffix == outputs.SAFETENSORS:
        outputs.write_safetensors(job, target)
    elif target.suffix in outputs.PICKLED:
        outputs.write_pickled(job, target)
    elif target.suffix not in hdf5.SUFFIXES:
        ending = target.suffix or "a file without an ending"
        raise UnsupportedError(
            f"{os.fspath(dst)}: expected a name that ends in .pt, .safetensors or .h5, got {ending!r}"
        )
    else:
        changes = dtype is not None or keep is not None or bool(strip_prefix)
        if not changes and len(paths) == 1 and _can_be_copied(source := inputs.located(paths[0]), unknown):
            _copy_archive(Path(os.fsdecode(source)).absolute(), target, progress)
        else:
            outputs.write_hdf5(job, target)


def _can_be_copied(source: Any, unknown: Unknown) -> bool:
    """Return whether the source is a zip archive whose records can all be copied."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    name = inputs.name_of(source)
    with error_context.public(source), inputs.descriptor_of(source) as descriptor:
        if _core.container(descriptor, name) != "zip":
            return False
        # It checks the file, and says what it is instead.
        archive = inputs.open_archive(source, windows=True)
        with contextlib.suppress(
            Error, UnpicklingError
        ):  # a pickle that the safe machine cannot read is copied
            found = _core.contents(descriptor, name)
            if not (found["tensors"] or found["others"]):
                raise ValueError(f"{name}: nothing to write: found no values")
        return unknown == "refuse" or not allowlist.look_up(_C.foreign_globals(archive.pickle()))[1]


def _copy_archive(source: Path, target: Path, progress: Progress | None) -> None:
    """Write the records of an archive to HDF5, as they are."""
    h5py = hdf5.import_h5py(target)
    with contextlib.ExitStack() as block:
        block.enter_context(error_context.naming(source))
        file = block.enter_context(source.open("rb"))
        new = block.enter_context(replacing(target, has_name=True))
        block.enter_context(hdf5.staying(os.fsencode(source)))
        records = zip_records(file, str(source))
        written = Counted(progress, sum(record.size for record in records))
        Hdf5Writer(h5py, Path(new.path), records, str(target)).write(written)
