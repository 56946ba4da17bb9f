"""Reads the names, shapes and places of the tensors of a checkpoint: a file, an index of shards, or a folder.

The native core reads zip, legacy, safetensors and HDF5 files, and ``.metadata`` of ``torch.distributed.checkpoint``, so
torch is not imported for them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

from zerocopy import _core, display, remote
from zerocopy.catalogue.files import OpenFile, Trouble, open_file
from zerocopy.errors import Error
from zerocopy.loading.formats import dcp_metadata, model_folder, shard_index

_MAX_MESSAGE = 1000


class Entry(NamedTuple):
    """The facts that a file states about one tensor.

    Attributes
    ----------
    name : str
        Its dotted name.
    dtype : str
        torch's name of the element type; empty where the file does not say it.
    shape : tuple of int or None
        None where only the function that rebuilds the tensor knows the shape.
    nbytes : int
        Bytes of its elements; of a sparse or quantized tensor the bytes that are stored.
    file : str
        The file that holds its bytes.
    offset : int or None
        Where its first element is in the file; None for compressed records, for tensors of several parts or chunks,
        and where ``.metadata`` of ``torch.distributed.checkpoint`` only says where the archive of a chunk begins.
    storage : str
        The name of its storage in the file, or empty.
    geometry : tuple
        Equal for two tensors if they show the same bytes in the same way; empty for tensors of several parts. The last
        two items say whether the elements are conjugate or negative.
    same_as : str
        The first tensor with the same bytes, shape and strides; empty if this one is the first.
    shares_with : str
        The first tensor over the same storage; empty if this one is the first.
    stride : tuple of int or None
        In elements.
    requires_grad : bool
        Whether it takes part in autograd.
    made_by : str
        The function that rebuilds a tensor of several parts; empty for a dense tensor.
    inside : str
        The class of the object that holds the tensor; empty where dicts and lists lead to the tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    nbytes: int
    file: str
    offset: int | None
    storage: str = ""
    geometry: tuple[Any, ...] = ()
    same_as: str = ""
    shares_with: str = ""
    stride: tuple[int, ...] | None = None
    requires_grad: bool = False
    made_by: str = ""
    inside: str = ""

    def spelled_shape(self, by: str = " x ") -> str:
        """Return the shape as people and programs read it: ``2 x 3``, ``scalar``, or ``?``."""
        return "?" if self.shape is None else by.join(map(str, self.shape)) or "scalar"


class Value(NamedTuple):
    """A value that is not a tensor: its name, kind, and the value itself where it is small, or its length."""

    name: str
    kind: str
    value: Any


class Contents(NamedTuple):
    """The tensors and other values of a checkpoint.

    Attributes
    ----------
    path : str
        As it was given.
    container : str
        The format.
    files : list of str
        The files that it consists of.
    entries : list of Entry
        In file order.
    values : list of Value
        Everything that is not a tensor.
    metadata : dict of str to str
        The metadata of a .safetensors file or of an index.
    stored_nbytes : int
        Bytes of all storages, each counted once.
    faults : list of str
        How an index and its shards disagree; empty for a checkpoint that loads.
    """

    path: str
    container: str
    files: list[str]
    entries: list[Entry]
    values: list[Value]
    metadata: dict[str, str]
    stored_nbytes: int
    faults: list[str]


def contents_of(path: str, *, strict: bool = True) -> Contents:
    """Return the contents of a checkpoint.

    Parameters
    ----------
    path : str
        A file, an index of shards, or a folder.
    strict : bool
        As for ``zerocopy.load``: False lists what the shards of a wrong index have, and says in `faults` what is wrong.

    Raises
    ------
    Trouble
        If it cannot be read, or is not a checkpoint.
    OSError
        If the operating system refuses.
    """
    if "\0" in path:
        raise Trouble("embedded null byte")
    with _in_words():
        match model_folder.located(path, strict):
            case shard_index.Index() as index:
                return _of_index(path, index, strict)
            case dcp_metadata.Folder() as folder:
                return _of_folder(path, folder)
            case remote.RemotePath() as far:
                return _of_file(path, far.url)
            case file:
                return _of_file(path, file)


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    """Raise Trouble in place of the errors that a bad file causes."""
    try:
        yield
    except (Error, UnpicklingError) as error:
        raise Trouble(_shown(str(error), _MAX_MESSAGE)) from None


def _shown(text: str, longest: int = 200) -> str:
    return display.shown(text, longest, exact=True)


def facts_of(file: OpenFile) -> dict[str, Any]:
    """Return the native core's facts about an open file.

    Raises
    ------
    Trouble
        If it is not a checkpoint that can be listed.
    """
    container = _core.container(file.descriptor, file.path)
    if container == "zip":
        try:
            return _core.contents(file.descriptor, file.path)
        except (Error, UnpicklingError) as error:
            container = _kind_of(file)
            if container == "zip":
                raise Trouble(_shown(str(error), _MAX_MESSAGE)) from None
    container = container or _kind_of(file)
    with _in_words():
        if container in ("zip", "legacy", "safetensors"):
            return _core.contents(file.descriptor, file.path)
        from zerocopy.catalogue import layout  # It takes longer to import than to list most files.

        layout.require_listed(container)
        return _core.contents(file.descriptor, file.path, layout.listing_of(file))


def _kind_of(file: OpenFile) -> str:
    """Return the kind of a file whose first bytes are not those of a checkpoint."""
    from zerocopy.catalogue import layout

    return layout.container_of(file)


def _of_file(path: str, file_path: str | os.PathLike[str]) -> Contents:
    file_path = os.fspath(file_path)
    with contextlib.closing(open_file(file_path)) as file:
        facts = facts_of(file)
    entries = list(_entries(facts, file_path))
    values = [Value(*value) for value in facts["others"]]
    if left_out := facts["left_out"]:  # of HDF5
        from zerocopy.loading.formats import hdf5

        values += [
            Value(name, "left out", why) for name, why in left_out if why not in (hdf5.TEXT, hdf5.ATTRIBUTE)
        ]
    stored = sum(storage.nbytes for storage in facts["storages"])
    metadata = facts["metadata"] or {}
    return Contents(path, facts["container"], [file_path], with_ties(entries), values, metadata, stored, [])


def _entries(facts: dict[str, Any], path: str) -> Iterator[Entry]:
    storages = facts["storages"]
    for (
        name, dtype, shape, stride, nbytes, offset, number, begin, requires_grad, made_by, inside, *flags
    ) in facts["tensors"]:  # fmt: skip
        dense = number is not None
        yield Entry(
            name, dtype, shape, nbytes, path, offset,
            storages[number].key if dense else "",
            (path, number, begin, dtype, shape, stride, *flags) if dense else (),
            "", "", stride, requires_grad, made_by, inside or "",
        )  # fmt: skip


def with_ties(entries: Iterable[Entry]) -> list[Entry]:
    """Return entries with the names of the first tensor over the same bytes, and over the same storage."""
    views: dict[tuple[Any, ...], str] = {}
    storages: dict[tuple[Any, ...], str] = {}
    found = []
    for entry in entries:
        if entry.geometry and entry.nbytes:
            first = views.setdefault(entry.geometry, entry.name)
            owner = storages.setdefault(entry.geometry[:2], entry.name)
            if owner != entry.name or first != entry.name:
                entry = entry._replace(
                    same_as="" if first == entry.name else first,
                    shares_with="" if owner == entry.name else owner,
                )
        found.append(entry)
    return found


def by_dtype(entries: Iterable[Entry]) -> dict[str, tuple[int, int]]:
    """Return the number of tensors and their bytes for each dtype."""
    sums: dict[str, tuple[int, int]] = {}
    for entry in entries:
        count, nbytes = sums.get(entry.dtype or "?", (0, 0))
        sums[entry.dtype or "?"] = (count + 1, nbytes + entry.nbytes)
    return sums


def _of_index(path: str, index: shard_index.Index, strict: bool) -> Contents:
    held: dict[Path, dict[str, Entry]] = {}
    stored = 0
    kinds: dict[str, None] = {}
    shards = shard_index.present(index, strict) or list(index.shards)
    for shard in shards:
        try:
            part = _of_file(str(shard), str(shard))
        except OSError as error:
            raise type(error)(error.errno, f"{_shown(shard.name)}: {error.strerror}") from None
        except Trouble as trouble:
            raise Trouble(f"{_shown(shard.name)}: {trouble}") from None
        held[shard] = {entry.name: entry for entry in part.entries}
        stored += part.stored_nbytes
        kinds[part.container] = None
    homes = shard_index.compared(index, held)
    if strict:
        homes.require_agreement()
    container = f"sharded {' and '.join(kinds)}".rstrip()
    ordered = [held[shard][name] for name, shard in homes.found.items()]
    return Contents(
        path, container, [str(shard) for shard in shards], ordered, [], {}, stored, homes.faults()
    )


def _of_folder(path: str, folder: dcp_metadata.Folder) -> Contents:
    """Return the contents of a folder of torch.distributed.checkpoint."""
    entries, values = [], []
    for name, found in folder.entries.items():
        if not isinstance(found, dcp_metadata.Chunked):
            where = found.file.rpartition(os.sep)[2]
            values.append(Value(name, "object", f"{found.length} bytes in {where}"))
            continue
        is_one = len(found.chunks) == 1
        place = found.chunks[0].place if found.chunks else None
        offset = place.offset if place is not None and is_one and folder.is_safetensors else None
        made_by = "" if is_one else f"{len(found.chunks)} chunks"
        file = "" if place is None else place.file
        entries.append(Entry(name, found.dtype, found.shape, found.nbytes, file, offset, made_by=made_by))
    stored = sum(place.length for place in folder.places)
    return Contents(path, "distributed", model_folder.files_of(folder), entries, values, {}, stored, [])
