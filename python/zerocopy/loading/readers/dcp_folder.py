"""The tensors of a ``torch.distributed.checkpoint`` folder, read from its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from zerocopy import _core, _torch
from zerocopy._native import _C
from zerocopy.display import shown
from zerocopy.errors import ClosedError, FormatError, UnsupportedError
from zerocopy.loading import archives, error_context, inputs
from zerocopy.loading.device import staging
from zerocopy.loading.extents import Box, ChunkExtent, TensorExtents
from zerocopy.loading.formats import dcp_metadata
from zerocopy.loading.objects import allowlist, builder
from zerocopy.loading.options import LoadOptions


class Files:
    """The files of a folder, each opened once, and the tensors in them.

    It has what ``_C.Lazy`` has of a file: names, facts, and the tensors behind placeholders.

    Parameters
    ----------
    folder : zerocopy.loading.formats.dcp_metadata.Folder
        The content of their ``.metadata``.
    options : LoadOptions
        How they are opened, and the archives that lie in them are loaded.
    windows : bool
        Whether they are mapped part by part.
    """

    container = "distributed"
    left_out: tuple[()] = ()

    def __init__(
        self,
        folder: dcp_metadata.Folder,
        options: LoadOptions,
        *,
        windows: bool,
    ) -> None:
        self.folder, self.name = folder, folder.name
        self._options = options
        self._tensors = folder.tensors
        self._names = list(self._tensors)
        self._places = {name: place for place, name in enumerate(self._names)}
        self.nbytes = sum(place.length for place in folder.places)
        self._repeats = _core.Budget(self.nbytes, "repeated bytes")
        self._repeating: set[str] = set()
        self.closed = False
        self._opened: dict[str, Any] = {}
        for file in dict.fromkeys(place.file for place in folder.places):
            if folder.is_safetensors:
                self._opened[file] = _TensorFile(file, options, windows)
            else:
                total, backend = self.nbytes, options.backend
                self._opened[file] = inputs.open_parts(
                    file, options.mode, backend, windows=windows, total=total
                )

    def load(self, name: str) -> Any:
        """Return the value of a name. A tensor lies in its file, or is joined from its chunks."""
        entry = self.folder.entries[name]
        if isinstance(entry, dcp_metadata.ArchiveExtent):
            return next(self.each(name))
        dtype = builder.dtype(entry.dtype)
        parts = (_checked(name, dtype, *part) for part in zip(entry.chunks, self.each(name), strict=True))
        return (
            self._in_rows(name, next(parts)) if len(entry.chunks) == 1 else self._joined(name, entry, parts)
        )

    def each(
        self, name: str, load: Callable[[_C.Archive, LoadOptions], Any] = archives.load
    ) -> Iterator[Any]:
        """Yield the parts of a named value, in the order of its chunks. `load` loads one archive."""
        entry = self.folder.entries[name]
        for place in dcp_metadata.places_of(entry):
            yield self._loaded(name, place, load)

    def extents(self, name: str, box: Box | None) -> TensorExtents | None:
        """Return where the chunks of a tensor that overlap a box lie; None if a chunk is not stored as it is."""
        entry = self._tensors[name]
        # Each chunk is an archive of its own, which has to be opened.
        wanted = [chunk for chunk in entry.chunks if box is None or _overlaps(chunk, box)]
        found = [self._chunk_extent(name, entry, chunk) for chunk in wanted]
        chunks = tuple(extent for extent in found if extent is not None)
        whole = TensorExtents(entry.shape, builder.dtype(entry.dtype), chunks)
        return whole if len(chunks) == len(found) else None

    def _chunk_extent(
        self, name: str, entry: dcp_metadata.Chunked, chunk: dcp_metadata.Chunk
    ) -> ChunkExtent | None:
        place = chunk.place
        opened = self._file(place)
        if isinstance(opened, _TensorFile):
            opened.archive.require_there()
            strides = torch.empty(chunk.sizes, device="meta").stride()
            return ChunkExtent(place.file, place.offset, chunk.offsets, chunk.sizes, strides)
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
        offset = place.offset + stored.offset
        return ChunkExtent(place.file, offset, chunk.offsets, chunk.sizes, stored.stride)

    def _in_rows(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """Return a part as a contiguous tensor, as torch's reader does and ``.metadata`` says."""
        strides = torch.empty(part.shape, device="meta").stride()
        if part.stride() == strides:
            return part
        if part.is_contiguous():  # a dimension of one element may have any stride
            return part.as_strided(part.shape, strides)
        if self._options.mode == "r+":
            raise UnsupportedError(
                f"{self.folder.name}: mode 'r+' cannot write to {shown(name)}, which does not lie row by row"
            )
        nbytes = part.numel() * _torch.element_size(part.dtype)
        self._charge_copy(name, nbytes, _torch.untyped_of(part).nbytes())
        return part.contiguous()

    def _charge_copy(self, name: str, nbytes: int, stored: int) -> None:
        """Refuse copies that are out of proportion to all stored bytes: a stride of 0 repeats elements."""
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
        # Checked before memory is allocated: a stranger's .metadata may claim any size.
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

    def _file(self, place: dcp_metadata.ArchiveExtent) -> Any:
        self.require_there()
        return self._opened[place.file]

    def _archive(self, place: dcp_metadata.ArchiveExtent) -> _C.Archive:
        """Open the bytes at a place: one archive by torch.save, and nothing else."""
        try:
            archive: _C.Archive = self._file(place).archive(place.offset, place.length)
        except FormatError:
            if dcp_metadata.is_safetensors(place.file, place.offset):
                raise UnsupportedError(dcp_metadata.OF_SAFETENSORS) from None
            raise
        if archive.container != "zip" or archive.is_torchscript or archive.end != place.length:
            raise FormatError(f"the bytes at {place.offset:#x} are not a file of torch.save")
        return archive

    def _loaded(self, name: str, place: dcp_metadata.ArchiveExtent, load: Callable[..., Any]) -> Any:
        with error_context.public(place.file):
            if isinstance(opened := self._file(place), _TensorFile):
                return opened.load(name)
            archive = self._archive(place)
            archive.require_there()
            loaded = load(archive, self._options)
            archive.require_unchanged()
            return loaded

    def close(self) -> None:
        """Drop the open files."""
        self.closed = True
        self._opened = {}

    def require_there(self) -> None:
        """Require open files. Reading a chunk checks that its file is still the one that was opened."""
        if self.closed:
            raise ClosedError(f"{self.name} is closed")

    def names(self) -> list[str]:
        """Return the names of tensors."""
        return self._names

    def other_names(self) -> list[str]:
        """Return the names of everything else."""
        return [name for name in self.folder.entries if name not in self._places]

    def find(self, name: str) -> int:
        """Return the place of a tensor among the names; -1 if there is none."""
        return self._places.get(name, -1)

    def entry(self, i: int) -> _C.TensorEntry:
        """Return the facts about a tensor, as ``_C.Lazy.entry`` does. It does not lie in one storage."""
        stored = self._tensors[self._names[i]]
        return _C.scattered_entry(stored.shape, stored.dtype)

    def expect_records(self) -> None:
        """Do nothing: entries need only the metadata."""

    def outlines(self) -> list[_C.TensorEntry]:
        """Return the facts about all tensors."""
        return [self.entry(i) for i in range(len(self._names))]

    def leaf(self, name: str, objects: Any) -> Any:
        """Return the placeholder of a tensor; anything else itself."""
        entry = self.folder.entries[name]
        if isinstance(entry, dcp_metadata.ArchiveExtent):
            return self.load(name)
        strides = torch.empty(entry.shape, device="meta").stride()
        dtype = builder.dtype(entry.dtype)
        return objects.placeholder(self._places[name], 0, entry.shape, strides, dtype, "cpu", False)

    def leaves(self, names: list[str], objects: Any) -> list[Any]:
        """Return the leaves of several names."""
        return [self.leaf(name, objects) for name in names]

    def build(self, objects: Any, chosen: Iterable[str] | None) -> Any:
        """Return the nested object with the chosen leaves, or with all if `chosen` is None."""
        wanted = self.folder.entries if chosen is None else set(chosen)
        return self.folder.nested(
            {name: self.leaf(name, objects) for name in self.folder.entries if name in wanted}
        )

    def metadata(self, objects: Any) -> None:
        """Return None: a folder has named values only."""

    def tensor_at(self, index: int) -> torch.Tensor:
        """Return a real tensor."""
        tensor: torch.Tensor = self.load(self._names[index])
        return tensor

    def shown_at(self, index: int) -> tuple[str, int, None]:
        """Return a tensor's dtype, the number of its storage, and None: each tensor covers its whole storage."""
        return self.entry(index).dtype, index, None


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


def _overlaps(chunk: dcp_metadata.Chunk, box: Box) -> bool:
    sides = zip(chunk.offsets, chunk.sizes, *box, strict=True)
    return all(mine < begin + n and begin < mine + length for mine, length, begin, n in sides)
