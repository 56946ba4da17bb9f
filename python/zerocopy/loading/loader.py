"""``zerocopy.load``."""

from __future__ import annotations

import contextlib
import io
import pickle
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy.errors import Error, UnsupportedError
from zerocopy.loading import backends, diagnosis, error_context, inputs
from zerocopy.loading.device import staging
from zerocopy.loading.formats import dcp_metadata, shard_index
from zerocopy.loading.objects import allowlist, builder, stubs
from zerocopy.loading.objects.global_names import Name
from zerocopy.loading.readers import legacy, tar, torchscript, unpickler

Allow = Callable[[list[Name]], dict[Name, Any]]

TORCHSCRIPT_REFUSED = (
    "this is a TorchScript archive, which is a program: weights_only refuses it. If you trust the file, "
    "load it with zerocopy.jit.load, or with torch.jit.load"
)


def load(
    f: Any,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = True,
    mmap: bool | None = None,
    backend: str = "auto",
    mode: str = "c",
    unknown: str = "refuse",
    **pickle_load_args: Any,
) -> Any:
    """Load what ``torch.save`` wrote, a ``.safetensors`` or an HDF5 file, without reading the data until it is touched.

    The result equals that of ``torch.load``: structure, values, dtypes, strides, ties, classes. Its tensors are
    ordinary ``torch.Tensor`` objects whose storages lie in one mapping of the file.

    Parameters
    ----------
    f : str, PathLike, binary file object or buffer
        The index of a sharded checkpoint (``*.index.json``), or the folder that has one, gives a dict of all its
        tensors. A file object is read from its current position; one that is not simply a file on disk to its end.
        The storages of a buffer are copied unless `mode` says otherwise.
    map_location : optional
        As in ``torch.load``: None, str, ``torch.device``, dict or callable. What goes to a CUDA device goes there
        through a small ring of page-locked memory, into one allocation: see docs/gpu.md.
    pickle_module : module, optional
        Where ``Unpickler`` comes from if `weights_only` is false; default ``pickle``.
    weights_only : bool
        True (and None), on every release: the file is read by a machine that has no way to call what it names, other
        than the running release's allow-list and the user's (``zerocopy.safe_globals``,
        ``torch.serialization.add_safe_globals``). False: the file may run any code.
    mmap : bool, optional
        True for ``backend="mmap"``, False for ``backend="pread"``.
    backend : {"auto", "mmap", "pread", "direct"}
        How storages come to memory. "mmap": mapped, read when they are touched. "pread": read into private memory, by
        several threads; what is not in the page cache does not come there, where the file system lets it be passed by
        (``O_DIRECT``). "direct": the same, for what is in the page cache too. "auto": mapped, and on a network file
        system read ahead by many requests at once. Default from ``ZEROCOPY_BACKEND``; ``ZEROCOPY_NUM_THREADS`` bounds
        the threads. The logger ``zerocopy`` says at INFO what "auto" chose.
    mode : {"c", "r", "r+"}
        "c": copy-on-write; in-place writes work, and neither the file nor anybody else sees them. "r": read-only
        pages; a write kills the process. "r+": writes reach the file.
    unknown : {"refuse", "stub"}
        What becomes of a global of the file that is on no allow-list, with `weights_only`. "refuse": the file is
        refused. "stub": a ``zerocopy.Stub`` takes the place of each object that would need it and holds what the
        file says about the object, its tensors among it. Nothing is imported or run.
    **pickle_load_args
        ``encoding`` (default "utf-8") for files that Python 2 wrote; others for `weights_only` false only.

    Raises
    ------
    OSError
        The operating system refused: no such file, no permission, a directory, ... ``errno.ESTALE``: the file was
        written to while it was loaded.
    zerocopy.FormatError
        The bytes contradict the format: truncated, overlapping, out of range.
    pickle.UnpicklingError
        The file names globals that are on no allow-list. All are listed, nothing was imported or run.
    zerocopy.UnsupportedError
        Legal, but not supported: TorchScript, encryption, a dtype that this release of PyTorch lacks, ...

    Notes
    -----
    Of an HDF5 file that no ``torch.save`` wrote groups become dicts and datasets tensors. Strings, attributes and other
    things that are no numbers are left out, and what lies in other files is never followed.

    Truncating a file while its tensors are alive makes touching them a bus error, as with every mapping. Programs
    that replace a file should write another one and rename it; ``backend="pread"`` is immune.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save({"weight": torch.arange(4.0)}, file.name)
    ...     state = zerocopy.load(file.name)
    >>> state
    {'weight': tensor([0., 1., 2., 3.])}
    """
    if weights_only is None:
        weights_only = True
    how = (map_location, pickle_module, weights_only, mmap, backend, mode, pickle_load_args)
    if (index := shard_index.index_of(f)) is not None:
        return shard_index.load(index, lambda shard: _load_shard(shard, *how, unknown=unknown))
    if (folder := dcp_metadata.folder_of(f)) is not None:
        from zerocopy.loading.readers.dcp_folder import Files  # which needs this module

        pickle_load_args = _checked(pickle_module, weights_only, unknown, pickle_load_args)
        files = Files(
            folder,
            mode,
            backends.backend_of(backend, mmap),
            windows=False,
            load_archive=lambda archive: load_archive(
                archive, map_location, pickle_module, weights_only, pickle_load_args, unknown
            ),
        )
        return folder.nested({name: files.load(name) for name in folder.entries})
    with error_context.undiagnosed():
        return load_diagnosed(f, *how, unknown=unknown)


def _load_shard(shard: Path, *how: Any, unknown: str) -> Any:
    """Load one file: an index or a folder is no shard, or a few of them could name each other without end."""
    with error_context.undiagnosed():
        return load_diagnosed(shard, *how, unknown=unknown)


def load_diagnosed(
    f: Any,
    map_location: Any,
    pickle_module: Any,
    weights_only: bool,
    mmap: bool | None,
    backend: str,
    mode: str,
    pickle_load_args: dict[str, Any],
    *,
    loads_only: bool = False,
    unknown: str = "refuse",
) -> Any:
    """Load, or say what the file is instead: raises one of ``diagnosis.DIAGNOSES`` too.

    With `loads_only`, ``UnsupportedError`` for what takes torch.load more than to load: comparing the source of
    classes, running TorchScript.
    """
    backend = backends.backend_of(backend, mmap)
    pickle_load_args = _checked(pickle_module, weights_only, unknown, pickle_load_args)
    begin = inputs.position_of(f)
    with error_context.naming(f, weights_only):
        try:
            # What goes to a device is read on its way there: to read ahead would be to read twice.
            archive = inputs.open_archive(f, mode, backend, windows=staging.leads_to(map_location))
        except diagnosis.TarError:
            if weights_only:
                raise
            with inputs.binary_file(f, begin) as file:
                return tar.load(file, map_location, pickle_module or pickle, pickle_load_args)
        if archive.is_torchscript:
            if loads_only and not weights_only:
                raise UnsupportedError("this is a TorchScript archive")
            result = _load_torchscript(f, begin, archive, weights_only, map_location)
        else:
            result = load_archive(
                archive, map_location, pickle_module, weights_only, pickle_load_args, unknown, loads_only
            )
        archive.require_unchanged()
        if begin is not None:
            f.seek(begin + archive.end)
        return result


def _checked(
    pickle_module: Any, weights_only: bool, unknown: str, pickle_args: dict[str, Any]
) -> dict[str, Any]:
    """Refuse arguments that contradict each other, and return those for the unpickler."""
    if strangers := pickle_args.keys() & _OF_LAZY_LOAD.keys():
        name = min(strangers)
        raise TypeError(f"load() got an unexpected keyword argument {name!r}: {_OF_LAZY_LOAD[name]}")
    if weights_only and pickle_module is not None:
        raise RuntimeError("Can not safely load weights when explicit pickle_module is specified")
    if weights_only and (strangers := pickle_args.keys() - {"encoding"}):
        raise TypeError(f"load() got an unexpected keyword argument {min(strangers)!r}, under weights_only")
    if not isinstance(pickle_args.get("encoding", ""), str):
        raise TypeError(f"expected encoding to be a str, got {type(pickle_args['encoding']).__name__}")
    if unknown not in ("refuse", "stub"):
        raise ValueError(f"unknown must be 'refuse' or 'stub', not {unknown!r}")
    if unknown == "stub" and not weights_only:
        raise ValueError("unknown='stub' runs nothing of the file: it goes with weights_only=True")
    return {"encoding": "utf-8", **pickle_args}


def load_archive(
    archive: _C.Archive,
    map_location: Any,
    pickle_module: Any,
    weights_only: bool,
    pickle_args: dict[str, Any],
    unknown: str = "refuse",
    loads_only: bool = False,
) -> Any:
    """Return what is in an open archive."""
    if unknown == "stub":
        return _load_safely(archive, map_location, **pickle_args, allow=stubs.allow, objects=stubs)
    if weights_only or not archive.is_pickled:
        return _load_safely(archive, map_location, encoding=pickle_args["encoding"])
    return _load_trusting(archive, map_location, pickle_module or pickle, pickle_args, loads_only)


def _load_safely(
    archive: _C.Archive,
    map_location: Any,
    *,
    encoding: str,
    allow: Allow = allowlist.resolve,
    objects: types.ModuleType = builder,
) -> Any:
    restore, cpu_as_is = (
        staging.restoring(map_location) if callable(map_location) else _torch.restore_function(map_location)
    )
    way = staging.road_to(map_location)
    return archive.load(allow, restore, cpu_as_is, way, encoding, objects, objects is stubs)


_OF_LAZY_LOAD = {
    **dict.fromkeys(("dtype", "keys", "prefix", "predicate"), "zerocopy.lazy_load takes it"),
    "device": "use map_location, or zerocopy.lazy_load, which takes it",
}


def refuse_all(names: list[Name]) -> dict[Name, Any]:
    """Allow no global but the machine's own."""
    if names:
        raise pickle.UnpicklingError("other globals than the machine's own")
    return {}


def _load_trusting(
    archive: _C.Archive,
    map_location: Any,
    pickle_module: Any,
    pickle_args: dict[str, Any],
    loads_only: bool,
) -> Any:
    if pickle_module is pickle and list(pickle_args) == ["encoding"] and not callable(map_location):
        # Most checkpoints name nothing that could run code: then the safe machine comes to the same, many times sooner.
        # What it cannot build is begun again, and a callable must not be asked twice.
        with contextlib.suppress(Error, pickle.UnpicklingError):
            return _load_safely(archive, map_location, **pickle_args, allow=refuse_all)
    if loads_only and archive.container == "legacy" and legacy.has_sources(archive, **pickle_args):
        raise UnsupportedError("classes that were saved with their source, to be compared")
    unpickler_class = unpickler.unpickler_of(pickle_module.Unpickler)
    file = io.BytesIO(archive.pickle())
    with _torch.loading_to(map_location):
        unpickling = unpickler_class(file, archive, map_location=map_location, **pickle_args)
        result = unpickling.load()
        unpickling.read_storages()
    _torch.validate_sparse_tensors()
    return result


def _load_torchscript(
    f: Any, begin: int | None, archive: _C.Archive, weights_only: bool, map_location: Any
) -> Any:
    """Do what torch.load does with such an archive, on releases that know better than to run it unasked."""
    if weights_only:
        raise diagnosis.TorchScriptError(TORCHSCRIPT_REFUSED)
    warnings.warn(
        "'torch.load' received a zip file that looks like a TorchScript archive dispatching to 'torch.jit.load' "
        "(call 'torch.jit.load' directly to silence this warning)",
        UserWarning,
        stacklevel=4,
    )
    try:
        return torchscript.load(archive, map_location, None)
    except torchscript.StockOnlyError as reason:
        return torchscript.load_by_stock(f, begin, map_location, None, reason)
