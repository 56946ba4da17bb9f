"""``zerocopy.convert``: a checkpoint in another format."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

from zerocopy import _core
from zerocopy._typing import FilePath, Unknown
from zerocopy.catalogue.files import OpenFile, Trouble
from zerocopy.converting import left_out, new_files, shard_plan
from zerocopy.converting.pickled import PickledPlan
from zerocopy.converting.safetensors_writer import SafetensorsPlan
from zerocopy.converting.shard_plan import SAFETENSORS
from zerocopy.converting.sources import Keep, Sources
from zerocopy.errors import Error, FormatError, UnsupportedError
from zerocopy.loading.formats import hdf5, model_folder
from zerocopy.progress import Counted, Progress, require_progress
from zerocopy.saving.atomic_file import local_path, path_of_file

if TYPE_CHECKING:
    import torch


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

    Tensors are written one by one. Tensors whose bytes do not change are copied from file to file, so memory holds at
    most the largest tensor that has to be converted. An existing target is replaced when the new one is complete, and
    stays as it is if anything goes wrong.

    Parameters
    ----------
    src : str or PathLike, or a list of them
        Anything that ``zerocopy.open`` takes: a file, an index of shards, a folder. Several sources are
        merged by dotted name.
    dst : str or PathLike
        Its ending selects the format: ``.safetensors``; ``.pt``, ``.pth``, ``.bin``, ``.ckpt``; ``.h5``, ``.hdf5``.
        With `max_shard_size`: a folder, which gets the files that transformers reads (``model.safetensors.index.json``,
        and shards beside it); an index; or a file name from which the names of index and shards are made:
        ``folder/pytorch_model.bin``.
    dtype : torch.dtype, optional
        The dtype for floating-point tensors.
    max_shard_size : int or str, optional
        The most bytes in a shard, or ``"5GB"`` (decimal, as transformers has it), ``"500MB"``, ``"1GiB"``.
    keep : str, list of str or callable, optional
        Selects leaves by dotted name: a prefix, a list of leaves and branches, or a function ``keep(name)``.
        Use ``keep=["model"]`` to drop the optimizer. Names do not change.
    strip_prefix : str
        A text to remove from each dotted name that begins with it: ``"model."`` writes ``model.weight`` as ``weight``.
        `keep` selects by the names in the sources. A ``.pt`` or ``.h5`` target then holds a flat dict.
    progress : callable, optional
        Called with the bytes written so far and the total.
    unknown : {"refuse", "stub"}
        How to treat objects whose globals are not on an allow-list. "refuse": raise an error. "stub": leave
        out the values that are or hold such objects. The tensors inside them are written.
    ties : {"note", "copy"} or list of str
        How to write tied tensors, which have the same bytes, to ``.safetensors``. "note": write them once, under the
        first name in the alphabet, and note the other names in the metadata. A list: do so, but always write the names
        in the list. "copy": write the bytes under each name, and write tensors that overlap too.
    strict : bool, optional
        True: raise an error if the target would leave out anything. By default, one WARNING counts and names what the
        target leaves out. False: also read shards whose index is wrong, and take the tensors that they have, as
        ``load`` does.

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
        `max_shard_size` is not a size; there is nothing to write; `keep` selects nothing; no name begins with
        `strip_prefix`.
    KeyError
        `keep` or `ties` has a name that the sources lack.

    Notes
    -----
    Without `dtype`, `keep` and `strip_prefix`, a ``.pt`` file is converted to ``.h5`` record by record. Nothing is
    unpickled, so whole modules can be converted too. With ``unknown="stub"`` this holds for sources without unknown
    classes.
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
    target = (path_of_file(dst) if is_file else local_path(dst)).absolute()
    _require_options(paths, dst, dtype, progress, unknown, strip_prefix, ties)
    most, layout, suffix = None, None, target.suffix
    if max_shard_size is not None:
        most = shard_plan.size_of(max_shard_size)
        layout = shard_plan.layout_of(target, shard_plan.SUFFIXES)
        suffix = layout.suffix
        if suffix in hdf5.SUFFIXES:
            raise UnsupportedError(f"{os.fspath(dst)}: expected shards of .safetensors or .pt, got .h5")
    elif target.is_dir():
        why = "Is a directory: name a file in it, or give max_shard_size (--max-shard-size) for shards in it"
        raise IsADirectoryError(errno.EISDIR, why, os.fspath(dst))
    elif suffix not in shard_plan.SUFFIXES:
        raise UnsupportedError(
            f"{os.fspath(dst)}: expected a name that ends in .pt, .safetensors or .h5, got "
            f"{suffix or 'a file without an ending'!r}"
        )
    is_safetensors, is_hdf5 = suffix == SAFETENSORS, suffix in hdf5.SUFFIXES
    if is_hdf5:
        hdf5.import_h5py(target)
        changes = dtype is not None or keep is not None or bool(strip_prefix)
        if not changes and len(paths) == 1 and _is_copied(paths[0], target, unknown, progress):
            return
    # Formats whose bytes may be copied without torch. Writing a pickle of another structure needs torch.
    plain = (
        []
        if dtype is not None or is_hdf5
        else ["safetensors", *(["zip", "legacy"] if is_safetensors else [])]
    )
    # To .safetensors each tensor is converted when it is written.
    cast = None if is_safetensors else dtype
    with Sources(
        paths, keep, strip_prefix, dtype=cast, unknown=unknown, strict=strict is not False, plain=plain
    ) as sources:
        if (is_safetensors or layout) and not sources.tensors:
            raise ValueError(f"{sources.name}: nothing to write: found no tensor")
        plan: SafetensorsPlan | PickledPlan
        if is_safetensors:
            kept = None if ties == "copy" else () if ties == "note" else list(ties)
            plan = SafetensorsPlan(sources, dtype, kept, is_sharded=layout is not None)
        else:
            plan = PickledPlan(sources, dtype, target if is_hdf5 else None)
        units = [] if most is None else plan.units()
        shards = None if most is None else shard_plan.spread(units, most)
        contents = plan.contents(shards)
        left_out.report(layout.index_path if layout else target, plan.left_out(), strict)
        written = Counted(progress, sum(content.total for content in contents))
        with (
            new_files.one_file(target, has_name=is_hdf5) if layout is None or shards is None
            else new_files.shard_files(layout, shards, sum(size for _, size in units))
        ) as files:  # fmt: skip
            for new, content in zip(files, contents, strict=True):
                content.write(new, written)
            sources.require_unchanged()


def _require_options(
    paths: Sequence[Any],
    dst: FilePath,
    dtype: torch.dtype | None,
    progress: Progress | None,
    unknown: str,
    strip_prefix: str,
    ties: str | Collection[str],
) -> None:
    """Raise an error if an argument is wrong."""
    if not paths:
        raise ValueError("expected at least one source")
    if dtype is not None or unknown != "refuse":
        from zerocopy.lazy.options import checked

        checked(dtype, unknown=unknown)
    require_progress(progress)
    if "torch" in sys.modules:
        from zerocopy import _torch

        if _torch.skips_data():
            raise UnsupportedError(
                f"{os.fspath(dst)}: convert copies data, which a block of skip_data leaves out"
            )
    if not isinstance(strip_prefix, str):
        raise TypeError(f"expected strip_prefix to be a str, got {type(strip_prefix).__name__}")
    if isinstance(ties, str) and ties not in ("note", "copy"):
        raise ValueError(f"expected ties to be 'note', 'copy' or a list of names, got {ties!r}")


def _is_copied(path: Any, target: Path, unknown: str, progress: Progress | None) -> bool:
    """Write the records of a zip archive to HDF5, as they are. Return False if the source cannot be copied so."""
    source = model_folder.located(path)
    if not isinstance(source, (str, os.PathLike)):
        return False
    from zerocopy._native import _C
    from zerocopy.converting import hdf5_writer
    from zerocopy.loading import error_context, inputs
    from zerocopy.loading.objects import allowlist

    name = inputs.name_of(source)
    with error_context.public(source), inputs.descriptor_of(source) as descriptor:
        if _core.container(descriptor, name) != "zip":
            return False
        # This checks the file, and raises an error that says what the file is instead.
        archive = inputs.open_archive(source, windows=True)
        if not archive.is_pickled:
            return False
        # A pickle that the safe machine cannot read is copied.
        with contextlib.suppress(Error, UnpicklingError):
            found = _core.contents(descriptor, name)
            if not (found["tensors"] or found["others"]):
                raise ValueError(f"{name}: nothing to write: found no values")
        if unknown == "stub" and allowlist.look_up(_C.foreign_globals(archive.pickle()))[1]:
            return False
    with error_context.naming(source), contextlib.closing(OpenFile(os.fsdecode(source))) as file:
        content = hdf5_writer.copied(file, target)
        with new_files.one_file(target, has_name=True) as (new,), hdf5.staying(os.fsencode(source)):
            try:
                content.write(new, Counted(progress, content.total))
            except Trouble as trouble:
                raise FormatError(str(trouble)) from None
    return True
