"""``zerocopy.explain``: how the bytes of each storage of a checkpoint come to memory, and why."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import torch

from zerocopy._native import _C
from zerocopy.display import count, size
from zerocopy.loading import archives, backends, diagnosis, error_context, inputs
from zerocopy.loading.formats import dcp_metadata, model_folder, shard_index
from zerocopy.loading.options import LoadOptions
from zerocopy.loading.readers import dcp_folder

_SHOWN = 4  # storages named for each reason


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
        Where its bytes begin, from where the checkpoint begins in the file.
    how : {"mapped", "copied", "inflated"}
        Shared with the file, or read into private memory, or decompressed into it.
    why : str
        Why it is not mapped; empty if it is.
    """

    key: str
    dtype: str
    nbytes: int
    location: str
    offset: int
    how: str
    why: str


class Explanation(NamedTuple):
    """The result of :func:`explain`. ``str()`` of it is a short report.

    Attributes
    ----------
    name : str
        The file.
    container : {"zip", "legacy", "tar", "torchscript", "safetensors", "hdf5", "sharded", "distributed"}
        Its format.
    storages : tuple of StorageExplanation
        In the order of first use.
    note : str
        A further remark, or empty.
    """

    name: str
    container: str
    storages: tuple[StorageExplanation, ...]
    note: str = ""

    def nbytes(self, how: str) -> int:
        """Return the bytes that are "mapped", "copied" or "inflated"."""
        return sum(storage.nbytes for storage in self.storages if storage.how == how)

    def __str__(self) -> str:
        groups: dict[tuple[str, str], list[StorageExplanation]] = defaultdict(list)
        for storage in self.storages:
            groups[storage.how, storage.why].append(storage)
        whole = sum(storage.nbytes for storage in self.storages)
        lines = [f"{self.name}: {self.container}, {count(len(self.storages), 'storage')}, {size(whole)}"]
        for (how, why), storages in sorted(groups.items(), reverse=True):
            nbytes = sum(storage.nbytes for storage in storages)
            lines.append(
                f"  {how:<8}  {count(len(storages), 'storage'):>15}  {size(nbytes):>9}"
                + (f"  {why}" if why else "")
            )
            if why:
                named = ", ".join(
                    f"{ascii(storage.key)[1:-1]} ({storage.dtype})" for storage in storages[:_SHOWN]
                )
                more = ", ..." if len(storages) > _SHOWN else ""
                lines.append(f"            {named}{more}")
        if self.note:
            lines.append(f"  {self.note}")
        if self.container != "distributed" and any(storage.how != "mapped" for storage in self.storages):
            lines.append("  zerocopy.save writes a file whose storages can all be mapped")
        return "\n".join(lines)


def explain(path: Any, *, backend: str = "auto", mode: str = "c") -> Explanation:
    """Say for each storage of a checkpoint whether ``load`` maps it, copies it or inflates it, and why.

    Nothing is loaded, no class of the file is imported, no data is read.

    Parameters
    ----------
    path : str, PathLike, binary file object or buffer
        As for ``load``.
    backend, mode : str
        As for ``load``.

    Returns
    -------
    Explanation

    Raises
    ------
    OSError, zerocopy.FormatError, zerocopy.UnsupportedError, pickle.UnpicklingError
        As ``load``; the last only for what no safe reader can follow, not for globals that are on no list.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save({"weight": torch.ones(256, 256), "bias": torch.ones(256)}, file.name)
    ...     explanation = zerocopy.explain(file.name)
    >>> print(explanation)
    /...: zip, 2 storages, 263.2 kB
      mapped         2 storages   263.2 kB
    >>> explanation.storages[1].nbytes
    1024
    """
    path = model_folder.resolved(path)
    match inputs.several_files(path):
        case shard_index.Index() as index:
            shards = [_of_file(shard, backend, mode) for shard in index.shards]
            storages = tuple(storage for shard in shards for storage in shard.storages)
            return Explanation(index.name, "sharded", storages, f"in {count(len(shards), 'file')}")
        case dcp_metadata.Folder() as folder:
            return _of_folder(folder, backend, mode)
    return _of_file(path, backend, mode)


def _of_file(f: Any, backend: str, mode: str) -> Explanation:
    begin = inputs.position_of(f)
    name = inputs.name_of(f)
    try:
        with error_context.as_public_error(), error_context.naming(f, weights_only=True):
            try:
                archive = inputs.open_archive(f, mode, backends.backend_of(backend, None), windows=True)
            except diagnosis.TarError:
                note = (
                    "every storage is copied; weights_only refuses the format, which lets a file run any code"
                )
                return Explanation(name, "tar", (), note)
            if archive.is_torchscript:
                note = "a program: weights_only refuses it, zerocopy.jit.load loads it"
                return Explanation(name, "torchscript", (), note)
            return Explanation(name, archive.container, tuple(_storages_of(archive)))
    finally:
        if begin is not None:
            f.seek(begin)


def _storages_of(archive: _C.Archive) -> list[StorageExplanation]:
    # A StoragePlacement has the same fields in the same order; by name each would take twice as long.
    return [StorageExplanation._make(storage) for storage in archive.explain()]


def _of_folder(folder: dcp_metadata.Folder, backend: str, mode: str) -> Explanation:
    def of_archive(archive: _C.Archive) -> list[StorageExplanation]:
        found = _storages_of(archive)
        tensor = archives.load(archive, LoadOptions("meta", unknown="stub"))
        if isinstance(tensor, torch.Tensor) and not tensor.is_contiguous():
            found = [
                storage._replace(how="copied", why="the tensor does not lie row by row") for storage in found
            ]
        return found

    way = backends.backend_of(backend, None)
    files = dcp_folder.Files(folder, mode, way, windows=True, load_archive=of_archive)
    storages: list[StorageExplanation] = []
    for name, entry in folder.entries.items():
        found = [storage._replace(key=name) for part in files.each(name) for storage in part]
        if isinstance(entry, dcp_metadata.Chunked) and len(entry.chunks) > 1:
            why = "the tensor is put together of several chunks"
            found = [storage._replace(how="copied", why=why) for storage in found]
        storages += found
    where = f"in {count(len({place.file for place in folder.places}), 'file')}"
    return Explanation(folder.name, "distributed", tuple(storages), where)
