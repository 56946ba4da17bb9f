"""The tensors of a ``torch.distributed.checkpoint`` folder, read from its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from zerocopy import _core, _torch
from zerocopy._native import _C
from zerocopy.display import shown
from zerocopy.errors import ClosedError, FormatError, UnsupportedError
from zerocopy.loading import archives, error_context, inputs
from zerocopy.loading.device import staging
from zerocopy.loading.formats import dcp_extents, dcp_metadata
from zerocopy.loading.objects import allowlist, builder
from zerocopy.loading.options import LoadOptions

LoadArchive = Callable[[_C.Archive, LoadOptions], Any]


class ChunkPlace(NamedTuple):
    """The place of a chunk's elements: offset of the first in its file, in bytes; strides in elements."""

    file: str
    offset: int
    stride: tuple[int, ...]


class Files:
    """The files of a folder, each opened once.

    Parameters
    ----------
    folder : zerocopy.loading.formats.dcp_metadata.Folder
        The content of their ``.metadata``.
    options : LoadOptions
        How they are opened, and the archives that lie in them are loaded.
    windows : bool
        Whether they are mapped part by part.
    load_archive : callable
        Loads one of the archives.
    """

    def __init__(
        self,
        folder: dcp_metadata.Folder,
        options: LoadOptions,
        *,
        windows: bool,
        load_archive: LoadArchive = archives.load,
    ) -> None:
        self.folder, self._options, self._load_archive = folder, options, load_archive
        total = sum(place.length for place in folder.places)
        self._repeats = _core.Budget(total, "repeated bytes")
        self._repeating: set[str] = set()
        files = dict.fromkeys(place.file for place in folder.places)
        self._parts, self._tensors = {}, {}
        if folder.is_safetensors:
            self._tensors = {file: _TensorFile(file, options, windows) for file in files}
        else:
            self._parts = {
                file: inputs.open_parts(file, options.mode, options.backend, windows=windows, total=total)
                for file in files
            }

    def load(self, name: str) -> Any:
        """Return the tensor of a name, over its file or joined from its chunks; or another value of that name."""
        entry = self.folder.entries[name]
        if isinstance(entry, dcp_metadata.ArchiveExtent):
            return self._loaded(name, entry)
        dtype = builder.dtype(entry.dtype)
        parts = (_checked(name, dtype, *part) for part in zip(entry.chunks, self.each(name), strict=True))
        return (
            self._in_rows(name, next(parts)) if len(entry.chunks) == 1 else self._joined(name, entry, parts)
        )

    def each(self, name: str) -> Iterator[Any]:
        """Yield each part of what has that name, in the order of the chunks."""
        entry = self.folder.entries[name]
        for place in dcp_metadata.places_of(entry):
            yield self._loaded(name, place)

    def chunk_places(self, name: str, chunks: list[dcp_metadata.Chunk]) -> list[ChunkPlace] | None:
        """Return where the elements of some chunks of a tensor lie; None if one is not stored as it is."""
        entry = self.folder.entries[name]
        assert isinstance(entry, dcp_metadata.Chunked)
        places = [self._chunk_place(name, entry, chunk) for chunk in chunks]
        return None if None in places else [place for place in places if place is not None]

    def _chunk_place(
        self, name: str, entry: dcp_metadata.Chunked, chunk: dcp_metadata.Chunk
    ) -> ChunkPlace | None:
        place = chunk.place
        if place.file in self._tensors:
            self._tensors[place.file].archive.require_there()
            return ChunkPlace(place.file, place.offset, torch.empty(chunk.sizes, device="meta").stride())
        with error_context.public(place.file):
            archive = self._archive(place)
            archive.require_there()
            read = _C.Lazy(archive, allowlist.resolve, staging.Destination(), "utf-8", builder, place.file)
            if read.names() != [""]:
                raise _no_chunk(name, place)
            stored = read.entry(0)
            archive.require_unchanged()
        if stored.offset is None or stored.is_conjugate or stored.is_negative or archive.big_endian:
            return None
        if (stored.shape, stored.dtype) != (chunk.sizes, entry.dtype):
            raise _no_chunk(name, place)
        # The archive is a part of the file, and its offsets count from where it begins.
        return ChunkPlace(place.file, place.offset + stored.offset, stored.stride)

    def _in_rows(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """Return a contiguous tensor: as torch's reader makes it, and as ``.metadata`` describes it."""
        strides = torch.empty(part.shape, device="meta").stride()
        if part.stride() == strides:
            return part
        if part.is_contiguous():  # of a dimension of one element any number will do
            return part.as_strided(part.shape, strides)
        if self._options.mode == "r+":
            raise UnsupportedError(
                f"{self.folder.name}: mode 'r+' cannot write to {shown(name)}, which does not lie row by row"
            )
        nbytes = part.numel() * _torch.element_size(part.dtype)
        self._charge_copy(name, nbytes, _torch.untyped_of(part).nbytes())
        return part.contiguous()

    def _charge_copy(self, name: str, nbytes: int, stored: int) -> None:
        """Refuse copies that are out of proportion to the stored bytes of all: a stride of 0 repeats these."""
        if nbytes <= stored or name in self._repeating:
            return
        self._repeating.add(name)
        try:
            self._repeats.charge(nbytes - stored)
        except FormatError:
            raise FormatError(f"{self.folder.name}: {shown(name)} is larger than its chunks") from None

    def _joined(self, name: str, entry: dcp_metadata.Chunked, parts: Iterator[torch.Tensor]) -> torch.Tensor:
        if self._options.mode == "r+":
            raise UnsupportedError(
                f"{self.folder.name}: mode 'r+' cannot write to {shown(name)}, which lies in several chunks"
            )
        # Before there is memory for it: a stranger's .metadata may say any number.
        if entry.nbytes > sum(chunk.place.length for chunk in entry.chunks):
            raise FormatError(f"{self.folder.name}: {shown(name)} is larger than its chunks")
        dtype = builder.dtype(entry.dtype)
        whole: torch.Tensor | None = None
        for chunk, part in zip(entry.chunks, parts, strict=True):
            if whole is None:
                whole = torch.empty(entry.shape, dtype=dtype, device=part.device)
            extents = zip(chunk.offsets, chunk.sizes, strict=True)
            whole[tuple(slice(begin, begin + size) for begin, size in extents)] = part
        return torch.empty(entry.shape, dtype=dtype, device="cpu") if whole is None else whole

    def _archive(self, place: dcp_metadata.ArchiveExtent) -> _C.Archive:
        """Open the bytes at a place: one archive by torch.save, and nothing else."""
        try:
            archive = self._parts[place.file].archive(place.offset, place.length)
        except FormatError:
            if dcp_extents.is_safetensors(place.file, place.offset):
                raise UnsupportedError(dcp_extents.OF_SAFETENSORS) from None
            raise
        if archive.container != "zip" or archive.is_torchscript or archive.end != place.length:
            raise FormatError(f"the bytes at {place.offset:#x} are not a file of torch.save")
        return archive

    def _loaded(self, name: str, place: dcp_metadata.ArchiveExtent) -> Any:
        with error_context.public(place.file):
            if place.file in self._tensors:
                return self._tensors[place.file].load(name)
            archive = self._archive(place)
            archive.require_there()
            loaded = self._load_archive(archive, self._options)
            archive.require_unchanged()
            return loaded


class _TensorFile:
    """An open ``.safetensors`` file, whose tensors are chunks."""

    def __init__(self, file: str, options: LoadOptions, windows: bool) -> None:
        with error_context.public(file):
            self.archive = inputs.open_archive(file, options.mode, options.backend, windows=windows)
            destination = staging.destination_of(options.map_location, is_legacy=False)
            self._native = _C.Lazy(self.archive, archives.refuse_all, destination, "utf-8", builder, file)

    def load(self, name: str) -> torch.Tensor:
        """Return a tensor. Nobody else holds it."""
        place = self._native.find(name)
        if place < 0:
            raise FormatError(f"the file changed: it has no tensor {shown(name)}")
        tensor: torch.Tensor = self._native.tensor_at(place)
        self.archive.require_unchanged()
        return tensor


def _checked(name: str, dtype: torch.dtype, chunk: dcp_metadata.Chunk, part: Any) -> torch.Tensor:
    if not isinstance(part, torch.Tensor) or (part.shape, part.dtype) != (chunk.sizes, dtype):
        raise _no_chunk(name, chunk.place)
    return part


def _no_chunk(name: str, place: dcp_metadata.ArchiveExtent) -> FormatError:
    return FormatError(f"{place.file}: the bytes at {place.offset:#x} are not a chunk of {shown(name)}")


class Tensors:
    """The counterpart of ``_C.Lazy`` for a folder: names, and the tensors behind placeholders."""

    container = "distributed"
    left_out: tuple[()] = ()

    def __init__(self, files: Files) -> None:
        self._files: Files | None = files
        entries = files.folder.entries
        self.name, self._entries = files.folder.name, entries
        self._names = [name for name, entry in entries.items() if isinstance(entry, dcp_metadata.Chunked)]
        self._others = [
            name for name, entry in entries.items() if isinstance(entry, dcp_metadata.ArchiveExtent)
        ]
        self._places = {name: place for place, name in enumerate(self._names)}

    @property
    def closed(self) -> bool:
        """Return whether :meth:`close` was called."""
        return self._files is None

    def close(self) -> None:
        """Close the files."""
        self._files = None

    def require_there(self) -> None:
        """Require open files. That each is still the one that was opened is checked where a chunk is read."""
        assert self._opened

    def names(self) -> list[str]:
        """Return the names of tensors."""
        return self._names

    def other_names(self) -> list[str]:
        """Return the names of everything else."""
        return self._others

    def find(self, name: str) -> int:
        """Return the place of a tensor among the names; -1 if there is none."""
        return self._places.get(name, -1)

    def entry(self, i: int) -> _C.TensorEntry:
        """Return the facts about a tensor, as ``_C.Lazy.entry`` does. It does not lie in one storage."""
        stored = self._entries[self._names[i]]
        assert isinstance(stored, dcp_metadata.Chunked)
        return _C.scattered_entry(stored.shape, stored.dtype)

    @property
    def nbytes(self) -> int:
        """The bytes of the archives that lie in the files."""
        return sum(place.length for place in self.folder.places)

    @property
    def folder(self) -> dcp_metadata.Folder:
        """The contents of ``.metadata``."""
        return self._opened.folder

    def chunked(self, name: str) -> dcp_metadata.Chunked:
        """Return a tensor's shape, dtype and chunks."""
        stored = self._entries[name]
        assert isinstance(stored, dcp_metadata.Chunked)
        return stored

    def chunk_places(self, name: str, chunks: list[dcp_metadata.Chunk]) -> list[ChunkPlace] | None:
        """Return where the elements of some chunks of a tensor lie; None if one is not stored as it is."""
        return self._opened.chunk_places(name, chunks)

    def expect_records(self) -> None:
        """Do nothing: entries need only the metadata."""

    def outlines(self) -> list[_C.TensorEntry]:
        """Return the facts about all tensors."""
        return [self.entry(i) for i in range(len(self._names))]

    def leaf(self, name: str, objects: Any) -> Any:
        """Return the placeholder of a tensor; anything else itself."""
        entry = self._entries[name]
        if isinstance(entry, dcp_metadata.ArchiveExtent):
            return self._opened.load(name)
        strides = torch.empty(entry.shape, device="meta").stride()
        dtype = builder.dtype(entry.dtype)
        return objects.placeholder(self._places[name], 0, entry.shape, strides, dtype, "cpu", False)

    def leaves(self, names: list[str], objects: Any) -> list[Any]:
        """Return several of these."""
        return [self.leaf(name, objects) for name in names]

    def build(self, objects: Any, chosen: Iterable[str] | None) -> Any:
        """Return the nested object, of the leaves that were chosen (None: of all)."""
        wanted = self._entries if chosen is None else set(chosen)
        return self._opened.folder.nested(
            {name: self.leaf(name, objects) for name in self._entries if name in wanted}
        )

    def metadata(self, objects: Any) -> None:
        """Return nothing: all that the folder says is under names."""

    def tensor_at(self, index: int) -> torch.Tensor:
        """Return a real tensor."""
        tensor: torch.Tensor = self._opened.load(self._names[index])
        return tensor

    def shown_at(self, index: int) -> tuple[str, int, None]:
        """Return a tensor's dtype, its storage's number, and how it shows that: here each has a whole one."""
        return self.entry(index).dtype, index, None

    @property
    def _opened(self) -> Files:
        if self._files is None:
            raise ClosedError(f"{self.name} is closed")
        return self._files
