"""``zerocopy.load``."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import torch

from zerocopy import remote
from zerocopy._native import _C
from zerocopy._typing import Backend, File, MapLocation, Mode, Unknown
from zerocopy.errors import UnsupportedError
from zerocopy.loading import archives, diagnosis, error_context, inputs
from zerocopy.loading.device import staging
from zerocopy.loading.formats import dcp_metadata, shard_index
from zerocopy.loading.options import LoadOptions, checked
from zerocopy.loading.readers import torchscript
from zerocopy.loading.readers.dcp_folder import Files
from zerocopy.process import replacements

Require = Callable[[_C.Archive, LoadOptions], None]

TORCHSCRIPT_REFUSED = (
    "this is a TorchScript archive, which is a program: weights_only refuses it, and nothing reads it lazily. If you "
    "trust the file, load it with zerocopy.jit.load, or with torch.jit.load"
)
_PROGRAM_REFUSED = (
    "this is a program of torch.export or AOTInductor: zerocopy.export.load or zerocopy.aoti.load gives the program, "
    "zerocopy.open and zerocopy.load_model its weights"
)


def load(
    f: File,
    map_location: MapLocation = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = True,
    mmap: bool | None = None,
    backend: Backend = "auto",
    mode: Mode = "c",
    unknown: Unknown = "refuse",
    strict: bool = True,
    **pickle_load_args: Any,
) -> Any:
    """Load what ``torch.save`` wrote, a ``.safetensors`` or an HDF5 file, without reading the data until it is touched.

    The result equals that of ``torch.load``: structure, values, dtypes, strides, ties, classes. Its tensors are
    ordinary ``torch.Tensor`` objects whose storages lie in one mapping of the file.

    Parameters
    ----------
    f : str, PathLike, binary file object or buffer
        The index of a sharded checkpoint (``*.index.json``), or the folder that has one, gives a dict of all its
        tensors. A file at a URL is transferred. A file object is read from its current position. If it is not simply
        a file on disk, it is read to its end.
        The storages of a buffer, or of an ``mmap.mmap`` from its current position, are copied unless `mode` says
        otherwise.
    map_location : optional
        As in ``torch.load``: None, str, ``torch.device``, dict or callable. Storages for a CUDA device are
        copied through a small ring of page-locked memory into one allocation: see docs/gpu.md.
    pickle_module : module, optional
        Where ``Unpickler`` comes from if `weights_only` is false; default ``pickle``.
    weights_only : bool
        True or None, on every release: of the globals that the file names, only those on the running release's
        allow-list and on the user's (``zerocopy.safe_globals``, ``torch.serialization.add_safe_globals``) can be
        called. False: the file may run any code. The source code that a legacy file holds for its modules' classes is
        not compared with today's source; the patched ``torch.load`` leaves that to torch.
    mmap : bool, optional
        True for ``backend="mmap"``, False for ``backend="pread"``.
    backend : {"auto", "mmap", "pread", "direct"}
        How storages are loaded. "mmap": mapped, and read when they are touched. "pread": read into private memory by
        several threads. Bytes that the page cache does not hold are read past it (``O_DIRECT``) if the file system
        permits. "direct": always read past the page cache. "auto": mapped; on a network file system also read ahead by
        many requests at once. ``ZEROCOPY_BACKEND`` sets the default, and ``ZEROCOPY_NUM_THREADS`` limits the threads.
        The logger ``zerocopy`` says at INFO what "auto" chose.
    mode : {"c", "r", "r+"}
        "c": copy-on-write; in-place writes work, and neither the file nor anybody else sees them. "r": read-only
        pages; a write kills the process. "r+": writes reach the file.
    unknown : {"refuse", "stub"}
        How to treat a global that is not on an allow-list, with `weights_only`. "refuse": raise. "stub":
        return a ``zerocopy.Stub`` in place of each object that needs the global, with the object's arguments,
        state and tensors. Nothing is imported or run.
    strict : bool
        Whether a wrong index of shards raises FormatError. With False, the tensors that the shards have are returned,
        and one warning names what is missing.
    **pickle_load_args
        ``encoding`` (default "utf-8") for files that Python 2 wrote; others for `weights_only` false only.

    Returns
    -------
    object
        The saved object. For a ``.safetensors`` file, an HDF5 file or several files: a dict from names to tensors.

    Raises
    ------
    OSError
        The operating system refused: no such file, no permission, a directory, ... ``errno.ESTALE``: the file was
        written to while it was loaded.
    zerocopy.FormatError
        The bytes contradict the format: truncated, overlapping, out of range.
    pickle.UnpicklingError
        The file names globals that are on no allow-list. Nothing was imported or run. The message names five of these
        globals. The error's attribute ``globals`` has all of them.
    zerocopy.UnsupportedError
        Legal, but not supported: TorchScript, a program of torch.export, encryption, a dtype that this release of
        PyTorch lacks, ...

    Notes
    -----
    In an HDF5 file without a pickle, groups become dicts and datasets become tensors. Texts and attributes are left
    out; a warning names datasets of numbers that a tensor cannot hold. Links to other files are never followed.

    If a file is truncated while its tensors are alive, touching them is a bus error, as with every mapping. Programs
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
    options = checked(
        map_location, pickle_module, weights_only, mmap, backend, mode, unknown, pickle_load_args, strict
    )
    return _loading(f, options, require_no_program)()


def load_weights(f: Any, options: LoadOptions) -> Any:
    """Load with checked options. For a program, return its weights."""
    return _loading(f, options, None)()


def _loading(f: Any, options: LoadOptions, require: Require | None) -> Callable[[], Any]:
    """Return the function that loads a file, an index or a folder. The caller calls it: warnings count frames."""
    match inputs.located(f, options.strict):
        case shard_index.Index() as index:
            # A shard cannot be an index or a folder: a few of these could name each other without end.
            of_shard = dataclasses.replace(options, by_name=True)
            load_shard = functools.partial(_load_file, options=of_shard, require=require)
            return functools.partial(shard_index.load, index, load_shard, options.strict)
        case dcp_metadata.Folder() as folder:
            files = Files(folder, options, windows=False)
            return lambda: folder.nested({name: files.load(name) for name in folder.entries})
        case file:
            return functools.partial(_load_file, file, options, require)


def require_no_program(archive: _C.Archive, _: LoadOptions) -> None:
    """Refuse a program of torch.export or AOTInductor, which is more than its weights."""
    if archive.container == "pt2":
        raise UnsupportedError(_PROGRAM_REFUSED)


def _load_file(f: Any, options: LoadOptions, require: Require | None) -> Any:
    f = remote.opened(f)
    begin = inputs.position_of(f)
    try:
        return load_diagnosed(f, options, require)
    except diagnosis.DIAGNOSES as error:
        if options.weights_only or not isinstance(error, diagnosis.TarError):
            raise diagnosis.public_error(error) from error.__cause__
    with inputs.binary_file(f, begin) as file:
        stock, module = replacements.original(torch.load), options.pickle_module or pickle
        return stock(file, options.map_location, module, weights_only=False, **options.pickle_args)


def load_diagnosed(f: Any, options: LoadOptions, require: Require | None = None) -> Any:
    """Load one file. Raise one of ``diagnosis.DIAGNOSES`` for a file that is not a checkpoint.

    `require` may refuse an archive that was opened, by raising.
    """
    begin = inputs.position_of(f)
    with error_context.naming(f, options.weights_only):
        # The staged copy reads the file itself, so reading ahead would read it twice.
        windows = staging.stages_all(options.map_location)
        archive = inputs.open_archive(f, options.mode, options.backend, windows=windows)
        archive.begin_records()  # in a thread that starts while the next lines run
        if require is not None:
            require(archive, options)
        if archive.is_torchscript:
            result = _load_torchscript(f, begin, archive, options)
        else:
            result = archives.load(archive, options)
        archive.require_unchanged()
        if begin is not None:
            f.seek(begin + archive.end)
        return result


def _load_torchscript(f: Any, begin: int | None, archive: _C.Archive, options: LoadOptions) -> Any:
    """Load a TorchScript archive as recent torch.load does: refuse it with weights_only, else warn and run it."""
    if options.weights_only:
        raise diagnosis.TorchScriptError(TORCHSCRIPT_REFUSED)
    warnings.warn(
        "'torch.load' received a zip file that looks like a TorchScript archive dispatching to 'torch.jit.load' "
        "(call 'torch.jit.load' directly to silence this warning)",
        UserWarning,
        stacklevel=5,
    )
    try:
        return torchscript.load(archive, options.map_location, None)
    except torchscript.StockOnlyError as reason:
        return torchscript.load_by_stock(f, begin, options.map_location, None, reason)
