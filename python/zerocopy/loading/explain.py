"""``zerocopy.explain``: how the bytes of each storage of a checkpoint are loaded, and why."""

from __future__ import annotations

import contextlib
import pickle
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zerocopy import notebook, remote
from zerocopy._native import _C
from zerocopy._typing import Backend, File, Mode
from zerocopy.display import count, listed, shown, size
from zerocopy.errors import Error
from zerocopy.loading import backends, error_context, inputs
from zerocopy.loading.device import staging
from zerocopy.loading.formats import dcp_metadata, shard_index
from zerocopy.loading.objects import stubs
from zerocopy.loading.options import LoadOptions
from zerocopy.loading.readers import dcp_folder

_MAX_NAMES = 3  # tensors that the short report names for each reason
# The native extension gives this reason for buffers, and for every backend but mmap.
_READ = "the file is read, not mapped"


class StorageExplanation(NamedTuple):
    """One storage of a checkpoint.

    Attributes
    ----------
    key : str
        Its name in the file.
    dtype : str
        Element type; for untyped bytes the widest of the tensors over them.
    nbytes : int
        Its size, in bytes.
    location : str
        The device it was saved from.
    offset : int
        Offset of its bytes, counted from the start of the checkpoint within the file.
    how : {"mapped", "copied", "inflated"}
        Shared with the file, or read into private memory, or decompressed into it.
    why : str
        Why it is not mapped; empty if it is.
    names : tuple of str
        The tensors over it, by their dotted names.
    """

    key: str
    dtype: str
    nbytes: int
    location: str
    offset: int
    how: str
    why: str
    names: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The names of its tensors, or its key, in printable characters."""
        if not self.names:
            return f"storage {shown(self.key)}"
        first, *others = (shown(name) or "''" for name in self.names)
        return f"{first} (shared with {listed(others, _MAX_NAMES)})" if others else first


class Explanation(NamedTuple):
    """The result of :func:`explain`. ``str()`` returns a short report, :meth:`details` a line for each storage.

    A notebook shows a table of the storages.

    Attributes
    ----------
    name : str
        The file.
    container : {"zip", "legacy", "torchscript", "pt2", "safetensors", "hdf5", "sharded", "distributed"}
        Its format.
    storages : tuple of StorageExplanation
        In the order of first use.
    note : str
        A further remark, or empty.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save({"weight": torch.ones(4)}, file.name)
    ...     explanation = zerocopy.explain(file.name)
    >>> explanation.nbytes("mapped"), [storage.names for storage in explanation.storages]
    (16, [('weight',)])
    """

    name: str
    container: str
    storages: tuple[StorageExplanation, ...]
    note: str = ""

    def nbytes(self, how: str) -> int:
        """Return the bytes that are "mapped", "copied" or "inflated"."""
        return sum(storage.nbytes for storage in self.storages if storage.how == how)

    def __str__(self) -> str:
        return "\n".join([self._verdict(), *self._reasons(), *self._remedy()])

    def details(self) -> str:
        """Return the short report, and a line for each storage: how, bytes, dtype, offset, tensors, reason.

        Examples
        --------
        >>> import tempfile, torch, zerocopy
        >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        ...     torch.save({"weight": torch.ones(4)}, file.name)
        ...     print(zerocopy.explain(file.name).details())
        /...: zip, 1 storage, 16 B: all mapped
          mapped         16 B  float32   at ...  weight
        """
        return "\n".join([self._verdict(), *map(_line, self.storages), *self._remedy()])

    def _repr_html_(self) -> str:
        heads = ("tensors", "how", "bytes", "dtype", "offset", "reason")
        rows = ((s.label, s.how, size(s.nbytes), s.dtype, str(s.offset), s.why) for s in self.storages)
        more = notebook.left_out(len(self.storages), "storage")
        return notebook.table(self._verdict(), heads, rows, more=more, notes=self._remedy())

    def _verdict(self) -> str:
        name, note = shown(self.name), f", {self.note}" if self.note else ""
        if not self.storages:
            return f"{name}: {self.container}{note or ', no storages'}"
        whole = size(sum(storage.nbytes for storage in self.storages))
        hows = sorted({storage.how for storage in self.storages}, reverse=True)
        sums = ", ".join(f"{size(self.nbytes(how))} {how}" for how in hows) if hows[1:] else f"all {hows[0]}"
        return f"{name}: {self.container}{note}, {count(len(self.storages), 'storage')}, {whole}: {sums}"

    def _reasons(self) -> Iterable[str]:
        groups: dict[tuple[str, str], list[StorageExplanation]] = defaultdict(list)
        for storage in self.storages:
            if storage.why:
                groups[storage.how, storage.why].append(storage)
        for (how, why), storages in groups.items():
            yield f"  {how}: {listed((storage.label for storage in storages), _MAX_NAMES)}: {why}"

    def _remedy(self) -> Iterable[str]:
        whys = {storage.why for storage in self.storages if storage.how != "mapped"}
        if self.container == "distributed" and whys:
            yield "  zerocopy.convert writes the folder as one mappable file"
        elif whys - {_READ}:
            yield "  zerocopy.save writes it mappable"
        elif whys and not remote.is_url(self.name):
            yield '  to map it, load it by its path with backend="mmap"'


def _line(storage: StorageExplanation) -> str:
    why = f": {storage.why}" if storage.why else ""
    facts = f"{storage.how:<8}  {size(storage.nbytes):>9}  {storage.dtype:<8}  at {storage.offset}"
    return f"  {facts}  {storage.label}{why}"


def explain(path: File, *, backend: Backend = "auto", mode: Mode = "c") -> Explanation:
    """Return for each storage of a checkpoint whether ``load`` maps it, copies it or inflates it, and why.

    Nothing is loaded, no class of the file is imported, no data is read. ``print(explain(path))`` prints the verdict,
    the tensors that are not mapped, and the remedy. ``explain(path).details()`` has a line for each storage.

    Parameters
    ----------
    path : str, PathLike, binary file object or buffer
        As for ``load``.
    backend : {"auto", "mmap", "pread", "direct"}
    mode : {"c", "r", "r+"}
        As for ``load``.

    Returns
    -------
    Explanation

    Raises
    ------
    OSError, zerocopy.FormatError, zerocopy.UnsupportedError, pickle.UnpicklingError
        As ``load``. UnpicklingError is raised only for a pickle that no safe reader can follow: a global that is on no
        allow-list is not an error here.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save({"weight": torch.ones(256, 256), "bias": torch.ones(256)}, file.name)
    ...     explanation = zerocopy.explain(file.name)
    >>> print(explanation)
    /...: zip, 2 storages, 263.2 kB: all mapped
    >>> explanation.storages[1].nbytes
    1024
    """
    match inputs.located(path):
        case shard_index.Index() as index:
            held: dict[Path, list[str]] = {shard: [] for shard in index.shards}
            shards = [_of_file(shard, backend, mode, names) for shard, names in held.items()]
            shard_index.compared(index, held).require_agreement()
            storages = tuple(storage for shard in shards for storage in shard.storages)
            return Explanation(index.name, "sharded", storages, f"in {count(len(shards), 'file')}")
        case dcp_metadata.Folder() as folder:
            return _of_folder(folder, backend, mode)
        case file:
            return _of_file(file, backend, mode)


def _of_file(f: Any, backend: str, mode: str, names: list[str] | None = None) -> Explanation:
    """Return how the storages of a file are loaded, and append the names of its tensors to `names`."""
    f = remote.opened(f)
    begin = inputs.position_of(f)
    name = inputs.name_of(f)
    try:
        with error_context.public(f):
            archive = inputs.open_archive(
                f, mode, backends.backend_of(backend, None), windows=True, by_position=True
            )
            if archive.is_torchscript:
                note = "a program: weights_only refuses it, zerocopy.jit.load loads it"
                return Explanation(name, "torchscript", (), note)
            return Explanation(name, archive.container, tuple(_storages_of(archive, names)))
    finally:
        if begin is not None:
            f.seek(begin)


def _storages_of(archive: _C.Archive, held: list[str] | None = None) -> list[StorageExplanation]:
    names = defaultdict(list)
    # A file whose names cannot be made (absurdly many, say) is explained by its keys.
    with contextlib.suppress(Error, pickle.UnpicklingError):
        native = _described(archive)
        for name, entry in zip(native.names(), native.outlines(), strict=True):
            names[entry.storage].append(name)
        if held is not None:
            held += native.names()
    # A StoragePlacement has the same fields in the same order. Passing them as keywords would take twice as long.
    return [StorageExplanation._make((*storage, tuple(names[storage.key]))) for storage in archive.explain()]


def _described(archive: _C.Archive) -> _C.Lazy:
    """Return the names and descriptions of the tensors in an archive, without building one."""
    return _C.Lazy(archive, stubs.allow, staging.Destination(), "utf-8", stubs.BUILDER, "")


def _is_in_rows(archive: _C.Archive) -> bool:
    """Return False if the archive is a single dense tensor that is not stored row by row, otherwise True."""
    with contextlib.suppress(Error, pickle.UnpicklingError):  # the same errors are ignored in _storages_of
        native = _described(archive)
        if native.names() == [""] and (entry := native.entry(0)).is_dense:
            return torch.empty_strided(entry.shape, entry.stride, device="meta").is_contiguous()
    return True


def _of_folder(folder: dcp_metadata.Folder, backend: str, mode: str) -> Explanation:
    def of_archive(archive: _C.Archive, _: LoadOptions) -> list[StorageExplanation]:
        found = _storages_of(archive)
        if _is_in_rows(archive):
            return found
        return [storage._replace(how="copied", why="the tensor does not lie row by row") for storage in found]

    options = LoadOptions(backend=backends.backend_of(backend, None), mode=mode)
    paths = dict.fromkeys(place.file for place in folder.places)
    parts: dict[str, Iterable[list[StorageExplanation]]]
    if folder.is_safetensors:
        known = {
            (path, each.key): [each] for path in paths for each in _of_file(path, backend, mode).storages
        }
        parts = {
            name: [known[place.file, name] for place in dcp_metadata.places_of(entry)]
            for name, entry in folder.entries.items()
        }
    else:
        files = dcp_folder.Files(folder, options, windows=True)
        parts = {name: files.each(name, of_archive) for name in folder.entries}
    storages: list[StorageExplanation] = []
    for name, entry in folder.entries.items():
        found = [storage._replace(key=name, names=(name,)) for part in parts[name] for storage in part]
        if isinstance(entry, dcp_metadata.Chunked) and len(entry.chunks) > 1:
            why = "the tensor is put together of several chunks"
            found = [storage._replace(how="copied", why=why) for storage in found]
        storages += found
    where = f"in {count(len(paths), 'file')}"
    return Explanation(folder.name, "distributed", tuple(storages), where)
