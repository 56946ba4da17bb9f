"""Reads ``.metadata`` of a ``torch.distributed.checkpoint`` folder: the place of each tensor's chunks.

::

    .metadata                     a pickle: the shape and dtype of each tensor, the file and place of each chunk
    __0_0.distcp, __1_0.distcp    the chunks one behind the other, each what torch.save wrote

The pickle has objects of ``torch.distributed``. Here they are read as plain records: nothing that the file names is
imported or called. So any release of torch may have written it, and torch need not be installed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from zerocopy import _core
from zerocopy.display import described, shown
from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.loading.formats import dcp_paths

_METADATA = ".metadata"
_MAX_LENGTH = 1 << 30  # bytes
_MAX_DIMENSIONS = 64
_CORNER = 128  # bytes for each corner of a chunk, which is counted and kept
_CHUNK = 512  # bytes of the objects that are made for a chunk of a tensor, for each dimension


_SAFETENSORS = struct.Struct("<Q2s")  # the length of the header, and how JSON begins

#: Why a folder whose tensors lie in a .safetensors file is refused.
OF_SAFETENSORS = (
    "written with SerializationFormat.SAFETENSORS: .metadata does not say where in the file tensors lie, and torch's "
    "FileSystemReader cannot read them either"
)


class ArchiveExtent(NamedTuple):
    """The bytes of a file that an archive takes."""

    file: str  # its path
    offset: int
    length: int


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
        The keys of nested dicts and lists that lead to each entry.
    metadata_size : int
        Bytes of ``.metadata``. The memory for the folder's contents is bounded in proportion to them.
    is_safetensors : bool
        Whether the files are ``.safetensors``, where a chunk has the name of its tensor.
    """

    name: str
    entries: dict[str, Chunked | ArchiveExtent]
    paths: dict[str, dcp_paths.Path]
    metadata_size: int
    is_safetensors: bool = False

    @property
    def tensors(self) -> dict[str, Chunked]:
        """The entries of tensors."""
        return {name: entry for name, entry in self.entries.items() if isinstance(entry, Chunked)}

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
    require_disjoint((key, place) for key, entry in entries.items() for place in places_of(entry))
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
    if not _is_whole(tensor, budget):
        raise ValueError(f"the chunks of {shown(name)} do not make up a tensor of {tensor.shape}")


def _is_whole(tensor: Chunked, budget: _core.Budget) -> bool:
    """Return whether each element is in exactly one chunk.

    A box is counted by its corners, with alternating signs. Where boxes meet, their corners cancel. So the sum over all
    chunks must equal the corners of the tensor.
    """
    rank = len(tensor.shape)
    for begin, size, _ in tensor.chunks:
        if len(begin) != rank or len(size) != rank:
            return False
        if any(map(operator.gt, map(operator.add, begin, size), tensor.shape)):
            return False
    found = [((0,) * rank, tensor.shape, -1), *((chunk.offsets, chunk.sizes, 1) for chunk in tensor.chunks)]
    boxes = [box for box in found if all(box[1])]
    split = [dim for dim in range(rank) if len({(begin[dim], size[dim]) for begin, size, _ in boxes}) > 1]
    budget.charge(min(_CORNER * len(boxes) << len(split), 1 << 62))
    corners = Counter[tuple[int, ...]]()
    for begin, size, sign in boxes:
        for ends in itertools.product((0, 1), repeat=len(split)):
            corner = tuple(begin[dim] + end * size[dim] for dim, end in zip(split, ends, strict=True))
            corners[corner] += sign * (-1) ** sum(ends)
    return not any(corners.values())


def require_disjoint(places: Iterable[tuple[str, ArchiveExtent]]) -> None:
    """Require that no two archives share a byte of a file. A shared archive would be read once for each name.

    Raises
    ------
    zerocopy.FormatError
        Two of them overlap.
    zerocopy.UnsupportedError
        They overlap because they lie in a .safetensors file.
    """
    by_path: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for name, (file, offset, length) in places:
        if length:
            by_path[file].append((offset, length, name))
    by_file: defaultdict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
    real = functools.cache(os.path.realpath)
    for source, found in by_path.items():
        # A link to a folder gives a file many paths.
        folder, filename = os.path.split(source)
        by_file[real(folder), filename] += found
    for (folder, filename), found in by_file.items():
        found.sort()
        for (begin, length, name), (offset, _, other) in itertools.pairwise(found):
            if offset < begin + length:
                if is_safetensors(f"{folder}/{filename}", begin):
                    raise UnsupportedError(f"{shown(filename)}: {OF_SAFETENSORS}")
                where = f"{shown(name)} at {begin:#x} of {shown(filename)}"
                raise FormatError(f"{shown(other)} overlaps {where}: archives must not overlap")


def is_safetensors(file: str, offset: int) -> bool:
    """Return whether a .safetensors file begins at this place, which the metadata claim for a tensor."""
    path = Path(file)
    if not path.is_file():  # To open a pipe would wait for its writer.
        return False
    with path.open("rb") as opened:
        opened.seek(offset)
        head = opened.read(_SAFETENSORS.size)
    return len(head) == _SAFETENSORS.size and _SAFETENSORS.unpack(head)[1] == b'{"'
