"""Reads ``.metadata`` of a ``torch.distributed.checkpoint`` folder: the place of each tensor's chunks.

::

    .metadata                     a pickle: of each tensor its shape and dtype, of each chunk its file and place
    __0_0.distcp, __1_0.distcp    the chunks one behind the other, each what torch.save wrote

The pickle is made of objects of ``torch.distributed``. They come as stubs here: nothing of the file is imported or
called, and it does not matter which release of torch wrote it or reads it.
"""

from __future__ import annotations

import io
import itertools
import os
import zipfile
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zerocopy import _core
from zerocopy._native import _C
from zerocopy.display import described, shown
from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.loading.device import staging
from zerocopy.loading.objects import builder, stubs

_METADATA = ".metadata"
_MAX_LENGTH = 1 << 30  # bytes
_WIDEST_GAP = 1024  # places of a list that nothing was saved for
_MAX_CELLS = 1 << 20
_MAX_DIMENSIONS = 64
_POINTER = 8
_CELL = 64  # of a grid: it is counted, compared and kept
_CHUNK = 512  # of a tensor: the objects that are made of it, in each dimension

Key = str | int


class ArchiveExtent(NamedTuple):
    """Where an archive lies: in bytes of a file."""

    file: Path
    offset: int
    length: int


class Chunk(NamedTuple):
    """A part of a tensor: where it begins in the tensor in each dimension, its shape, and where it lies."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    place: ArchiveExtent


class Chunked(NamedTuple):
    """A tensor in chunks."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: list[Chunk]


class Folder(NamedTuple):
    """The content of ``.metadata``.

    Attributes
    ----------
    name : str
        Its path, for messages.
    entries : dict of str to Chunked or ArchiveExtent
        Tensors and everything else, by name, in the order they were saved in.
    paths : dict of str to tuple
        Under which keys of nested dicts and lists each belongs.
    metadata_size : int
        Bytes of ``.metadata``: what is made of the folder is in proportion to them.
    """

    name: str
    entries: dict[str, Chunked | ArchiveExtent]
    paths: dict[str, tuple[Key, ...]]
    metadata_size: int

    @property
    def places(self) -> Iterator[ArchiveExtent]:
        """Where all that is in it lies."""
        for entry in self.entries.values():
            yield from (chunk.place for chunk in entry.chunks) if isinstance(entry, Chunked) else (entry,)

    def nested(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return values by name as the nested object that was saved."""
        root: dict[Any, Any] = {}
        budget = _core.Budget(self.metadata_size, f"{self.name}: lists with far more gaps than items")
        for name, value in values.items():
            path = self.paths.get(name, (name,))
            try:
                _put(root, path, value, budget)
            except (TypeError, KeyError, IndexError):
                raise FormatError(f"{self.name}: {shown(name)} belongs where something else is") from None
        return root


def folder_of(f: Any) -> Folder | None:
    """Return what is in a folder that ``torch.distributed.checkpoint`` wrote; None for anything else.

    Raises
    ------
    OSError
        It cannot be read.
    zerocopy.FormatError
        Its ``.metadata`` makes no sense, or leads out of the folder.
    zerocopy.UnsupportedError
        It was written by an extension (compressed, encrypted).
    """
    if not isinstance(f, (str, os.PathLike)) or not os.path.isdir(f):  # noqa: PTH112  a Path takes longer to make
        return None
    path = Path(os.fsdecode(f)).absolute()
    if not (path / _METADATA).is_file():
        return None
    name = os.fsdecode(f)
    try:
        content = _content(path / _METADATA)
        return _folder(name, path, _unpickled(content), len(content))
    except UnsupportedError:
        raise
    except (FormatError, TypeError, ValueError, KeyError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise FormatError(f"{name}/{_METADATA}: {reason}") from None


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        # Python allocates the number of bytes that it is asked for, however short the file is.
        content = file.read(min(_MAX_LENGTH, os.fstat(file.fileno()).st_size) + 1)
    if len(content) > _MAX_LENGTH:
        raise ValueError("more than 1 GiB")
    return content


def _unpickled(content: bytes) -> Any:
    opened = _C.Archive.open_buffer(as_archive(content), "c", None)
    return opened.load(stubs.allow, staging.Destination(), "utf-8", _ObjectBuilder(builder))


class _Object(stubs.Stub):
    """An object of ``.metadata``: its class and its attributes. Folders have millions, so each is small."""

    def __init__(self, cls: stubs.UnknownGlobal) -> None:
        self.callable, self.state = cls, None


class _ObjectBuilder(stubs.StubBuilder):
    """Makes the objects of ``.metadata``, which are no containers."""

    def create(self, cls: Any, arguments: tuple[Any, ...]) -> Any:
        """Return an object of a class of torch."""
        if isinstance(cls, stubs.UnknownGlobal) and not arguments:
            return _Object(cls)
        return super().create(cls, arguments)

    def append(self, target: Any, item: Any) -> None:
        """Append to a list."""
        _require_container(target)
        super().append(target, item)

    def set_item(self, target: Any, key: Any, value: Any) -> None:
        """Set an item of a dict."""
        _require_container(target)
        super().set_item(target, key, value)


def _require_container(target: Any) -> None:
    if isinstance(target, _Object):
        raise TypeError(f"a {shown(_class_of(target))} is not a container")


def as_archive(content: bytes) -> memoryview:
    """Return an archive around the content of ``.metadata``: the machine reads pickles that are in archives."""
    wrapped = io.BytesIO()
    with zipfile.ZipFile(wrapped, "w") as archive:
        archive.writestr("metadata/data.pkl", content)
        archive.writestr("metadata/version", "3\n")
    return wrapped.getbuffer()


def _folder(name: str, folder: Path, metadata: Any, size: int) -> Folder:
    said = _state(metadata, "Metadata")
    budget = _core.Budget(size, "far more chunks than it spells out")
    if not isinstance(said["storage_data"], dict) or not isinstance(said["state_dict_metadata"], dict):
        raise TypeError("it is not what a FileSystemWriter writes")
    files = _Files(folder)
    places = dict(_place(files, *item) for item in said["storage_data"].items())
    entries: dict[str, Chunked | ArchiveExtent] = {}
    for key, value in said["state_dict_metadata"].items():
        if not isinstance(key, str):
            raise TypeError(f"expected a name, found {described(key)}")
        if _class_of(value) == "BytesStorageMetadata":
            entries[key] = places[key, None]
        else:
            entries[key] = _chunked(key, _state(value, "TensorStorageMetadata"), places, budget)
    paths = said.get("planner_data") or {}
    if not isinstance(paths, dict):
        raise TypeError("planner_data is not a dict")
    return Folder(name, entries, {key: _path(path) for key, path in paths.items()}, size)


def _class_of(value: Any) -> str:
    known = value.callable if isinstance(value, stubs.Stub) else None
    return known.name if isinstance(known, stubs.UnknownGlobal) else getattr(known, "__name__", "")


def _state(value: Any, wanted: str) -> dict[str, Any]:
    if _class_of(value) != wanted or not isinstance(value.state, dict):
        raise TypeError(f"a {shown(_class_of(value) or type(value).__name__)} where a {wanted} belongs")
    return value.state


class _Files(dict[str, Path]):
    """Makes the path of each file once: a path takes more memory than all else that is kept of a chunk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, file: str) -> Path:
        self[file] = path = self.folder / file
        return path


def _place(files: _Files, index: Any, info: Any) -> tuple[tuple[str, tuple[int, ...] | None], ArchiveExtent]:
    key, said = _state(index, "MetadataIndex"), _state(info, "_StorageInfo")
    if said.get("transform_descriptors"):
        raise UnsupportedError(f"{files.folder}: written by an extension")
    file, offset, length = said["relative_path"], said["offset"], said["length"]
    if not isinstance(file, str) or not os.fsencode(file) or "\0" in file:
        raise TypeError("the file of a chunk is not a file name")
    if file.startswith("/") or ".." in file.split("/"):
        raise ValueError(f"the file {shown(file)} is not in its folder")
    for number in (offset, length):
        if type(number) is not int or not 0 <= number < 1 << 62:
            raise ValueError(f"expected an offset and a length in bytes, found {described(number)}")
    begin = key.get("offset")
    return (key["fqn"], None if begin is None else _extent(begin)), ArchiveExtent(files[file], offset, length)


def _chunked(
    name: str, said: dict[str, Any], places: dict[Any, ArchiveExtent], budget: _core.Budget
) -> Chunked:
    properties = said["properties"]
    state = properties.state if _class_of(properties) == "TensorProperties" else None
    dtype = state[0] if isinstance(state, tuple) and state else None
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{shown(name)} has no dtype")
    shape = _extent(said["size"])
    if not isinstance(said["chunks"], list):
        raise TypeError(f"the chunks of {shown(name)} are not a list")
    budget.charge(_CHUNK * len(said["chunks"]) * (1 + len(shape)))
    chunks = []
    for chunk in said["chunks"]:
        extent = _state(chunk, "ChunkStorageMetadata")
        begin, size = _extent(extent["offsets"]), _extent(extent["sizes"])
        place = places.get((name, begin))
        if place is None:
            raise ValueError(f"{shown(name)} has no place for its chunk at {begin}")
        chunks.append(Chunk(begin, size, place))
    tensor = Chunked(shape, dtype, chunks)
    if not _is_whole(tensor, budget):
        raise ValueError(f"the chunks of {shown(name)} do not make up a tensor of {tensor.shape}")
    return tensor


def _extent(value: Any) -> tuple[int, ...]:
    numbers = tuple(value) if isinstance(value, (tuple, list)) else None
    if numbers is None or not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        raise TypeError(f"expected a size, found {described(value)}")
    if len(numbers) > _MAX_DIMENSIONS:
        raise ValueError(f"a size of {len(numbers)} dimensions")
    return numbers


def _is_whole(tensor: Chunked, budget: _core.Budget) -> bool:
    """Whether each element is in one chunk: in a grid along the borders of all chunks, each cell is."""
    rank = len(tensor.shape)
    borders: list[dict[int, int]] = []
    for chunk in tensor.chunks:
        if len(chunk.offsets) != rank or len(chunk.sizes) != rank:
            return False
    for dim, length in enumerate(tensor.shape):
        found = {0, length}
        for chunk in tensor.chunks:
            found.update((chunk.offsets[dim], chunk.offsets[dim] + chunk.sizes[dim]))
        if max(found) > length:
            return False
        borders.append({border: place for place, border in enumerate(sorted(found))})
    cells = [len(places) - 1 for places in borders]
    if prod(cells) > _MAX_CELLS:
        raise UnsupportedError(f"chunks in a grid of {shown(str(cells))}")
    budget.charge(_CELL * prod(cells))
    grid = torch.zeros(cells, dtype=torch.int32)
    for chunk in tensor.chunks:
        begins = zip(borders, chunk.offsets, chunk.sizes, strict=True)
        grid[tuple(slice(places[begin], places[begin + size]) for places, begin, size in begins)] += 1
    return bool((grid == 1).all())


def _path(path: Any) -> tuple[Key, ...]:
    if not isinstance(path, tuple) or not path or not all(type(key) in (str, int) for key in path):
        raise TypeError(f"expected a path of names and numbers, found {described(path)}")
    return path


def _put(root: Any, path: tuple[Key, ...], value: Any, budget: _core.Budget) -> None:
    """Put a value into nested dicts (by strings) and lists (by numbers), which are made as they are needed."""
    here = root
    for key, following in itertools.pairwise(path):
        inner = _get(here, key)
        if inner is None:
            inner = {} if isinstance(following, str) else []
            _set(here, key, inner, budget)
        here = inner
    if _get(here, path[-1]) is not None:
        raise KeyError(path[-1])
    _set(here, path[-1], value, budget)


def _get(here: Any, key: Key) -> Any:
    if isinstance(here, dict):
        return here.get(key)
    if not isinstance(here, list) or not isinstance(key, int) or key < 0:
        raise TypeError("no container")
    return here[key] if key < len(here) else None


def _set(here: Any, key: Key, value: Any, budget: _core.Budget) -> None:
    if isinstance(here, list) and isinstance(key, int):
        if key > len(here) + _WIDEST_GAP:
            raise IndexError(key)
        missing = max(0, key + 1 - len(here))
        budget.charge(_POINTER * missing)
        here.extend([None] * missing)
    here[key] = value
