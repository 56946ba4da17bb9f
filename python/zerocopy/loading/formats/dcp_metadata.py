"""Reads ``.metadata`` of a ``torch.distributed.checkpoint`` folder: the place of each tensor's chunks.

::

    .metadata                     a pickle: of each tensor its shape and dtype, of each chunk its file and place
    __0_0.distcp, __1_0.distcp    the chunks one behind the other, each what torch.save wrote

The pickle is made of objects of ``torch.distributed``. They come as records here: nothing of the file is imported or
called, and it does not matter which release of torch wrote it, or whether there is one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from zerocopy import _core
from zerocopy.display import described, shown
from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.loading.formats import dcp_extents, dcp_paths
from zerocopy.loading.formats.dcp_extents import ArchiveExtent as ArchiveExtent

_METADATA = ".metadata"
_MAX_LENGTH = 1 << 30  # bytes
_MAX_CELLS = 1 << 20
_MAX_DIMENSIONS = 64
_CELL = 64  # of a grid: it is counted, compared and kept
_CHUNK = 512  # of a tensor: the objects that are made of it, in each dimension


class Chunk(NamedTuple):
    """A part of a tensor: where it begins in the tensor in each dimension, its shape, and where it lies."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    place: ArchiveExtent


class Chunked(NamedTuple):
    """A tensor in chunks. Its dtype is torch's name of it."""

    shape: tuple[int, ...]
    dtype: str
    chunks: list[Chunk]

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return prod(self.shape) * itemsize(self.dtype)


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
    is_safetensors : bool
        Whether the files are ``.safetensors``, where a chunk has the name of its tensor.
    """

    name: str
    entries: dict[str, Chunked | ArchiveExtent]
    paths: dict[str, dcp_paths.Path]
    metadata_size: int
    is_safetensors: bool = False

    @property
    def places(self) -> Iterator[ArchiveExtent]:
        """The extents of all of its archives."""
        for entry in self.entries.values():
            yield from places_of(entry)

    def nested(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return values by name as the nested object that was saved."""
        return dcp_paths.nested(values, self.paths, self.metadata_size)


def places_of(entry: Chunked | ArchiveExtent) -> list[ArchiveExtent]:
    """Return the places of the chunks of a tensor, or the place of another value."""
    return [chunk.place for chunk in entry.chunks] if isinstance(entry, Chunked) else [entry]


def folder_of(f: Any) -> Folder | None:
    """Return the contents of a folder that ``torch.distributed.checkpoint`` wrote; None for anything else.

    Raises
    ------
    OSError
        It cannot be read.
    zerocopy.FormatError
        Its ``.metadata`` makes no sense, or leads out of the folder.
    zerocopy.UnsupportedError
        It was written by an extension (compressed, encrypted).
    """
    if not isinstance(f, (str, os.PathLike)) or not os.path.isdir(f):
        return None
    path = Path(os.fsdecode(f)).absolute()
    if not (path / _METADATA).is_file():
        return None
    name = os.fsdecode(f)
    try:
        content = _content(path / _METADATA)
        return _folder(name, path, _core.unpickled(content), len(content))
    except UnsupportedError as error:
        raise UnsupportedError(f"{name}/{_METADATA}: {error}") from None
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
    dcp_extents.require_disjoint((key, place) for key, entry in entries.items() for place in places_of(entry))
    planned = said.get("planner_data") or {}
    if not isinstance(planned, dict):
        raise TypeError("planner_data is not a dict")
    paths = {key: dcp_paths.checked(key, path) for key, path in planned.items()}
    dcp_paths.require_one_object(entries, paths, size)
    return Folder(name, entries, paths, size)


def _class_of(value: Any) -> str:
    known = value.callable if isinstance(value, _core.PlainObject) else None
    return known.name if isinstance(known, _core.PlainGlobal) else ""


def _state(value: Any, wanted: str) -> dict[str, Any]:
    if _class_of(value) != wanted or not isinstance(value.state, dict):
        raise TypeError(f"a {shown(_class_of(value) or type(value).__name__)} where a {wanted} belongs")
    state: dict[str, Any] = value.state
    return state


def itemsize(dtype: str) -> int:
    """Return the bytes of an element; 0 if no known release of torch has such a dtype."""
    size = _core.itemsize(dtype)
    if not size:
        from zerocopy import _torch  # The running release may have it.
        from zerocopy.loading.objects import builder

        with contextlib.suppress(UnsupportedError, AttributeError):
            size = _torch.element_size(builder.dtype(dtype))
    return size


class _Files(dict[str, str]):
    """Makes the path of each file once. A ``Path`` would take more memory than all else that is kept of a chunk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __missing__(self, file: str) -> str:
        self[file] = path = os.path.join(self.folder, os.path.normpath(file))
        return path


def _place(files: _Files, index: Any, info: Any) -> tuple[tuple[str, tuple[int, ...] | None], ArchiveExtent]:
    key, said = _state(index, "MetadataIndex"), _state(info, "_StorageInfo")
    if said.get("transform_descriptors"):
        raise UnsupportedError("written by an extension")
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
    if not isinstance(dtype, _core.PlainGlobal) or dtype.module != "torch" or not itemsize(dtype.name):
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
    tensor = Chunked(shape, dtype.name, chunks)
    require_whole(name, tensor, budget)
    return tensor


def _extent(value: Any) -> tuple[int, ...]:
    numbers = tuple(value) if isinstance(value, (tuple, list)) else None
    if numbers is None or not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        raise TypeError(f"expected a size, found {described(value)}")
    if len(numbers) > _MAX_DIMENSIONS:
        raise ValueError(f"a size of {len(numbers)} dimensions")
    return numbers


def require_whole(name: str, tensor: Chunked, budget: _core.Budget) -> None:
    """Raise ``ValueError`` unless each element of a tensor is in one chunk."""
    if not _is_whole(name, tensor, budget):
        raise ValueError(f"the chunks of {shown(name)} do not make up a tensor of {tensor.shape}")


def _is_whole(name: str, tensor: Chunked, budget: _core.Budget) -> bool:
    """Return whether each element is in one chunk: in a grid along the borders of all chunks, each cell is."""
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
        grid = " x ".join(map(str, cells))
        raise UnsupportedError(
            f"the borders of the chunks of {shown(name)} make a grid of {shown(grid)} cells, more than {_MAX_CELLS}: "
            "load the tensor with torch.distributed.checkpoint, and save it in chunks of one size"
        )
    budget.charge(_CELL * prod(cells))
    covered = bytearray(prod(cells))
    for chunk in tensor.chunks:
        if not all(chunk.sizes):
            continue
        begins = zip(borders, chunk.offsets, chunk.sizes, strict=True)
        spans = [range(places[begin], places[begin + size]) for places, begin, size in begins]
        for row in _rows(spans, cells):
            if any(covered[row]):
                return False
            covered[row] = b"\1" * (row.stop - row.start)
    return all(covered)


def _rows(spans: list[range], cells: list[int]) -> Iterator[slice]:
    """Yield the cells of a part of a grid, as slices of the grid in row-major order."""
    *outer, last = spans or [range(1)]
    for place in itertools.product(*outer):
        begin = 0
        for index, count in zip(place, cells, strict=False):
            begin = begin * count + index
        begin = begin * (cells[-1] if cells else 1)
        yield slice(begin + last.start, begin + last.stop)
