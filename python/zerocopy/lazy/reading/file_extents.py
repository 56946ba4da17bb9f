"""Finds the bytes of the tensors of a file, or of a DCP folder."""

from __future__ import annotations

from zerocopy.lazy.file import LazyFile
from zerocopy.lazy.reading.extents import Box, ChunkExtent, TensorExtents
from zerocopy.loading.formats import dcp_metadata
from zerocopy.loading.objects import builder
from zerocopy.loading.readers import dcp_folder


def extents_in(file: LazyFile, name: str, box: Box | None) -> TensorExtents | None:
    """Return where a tensor's bytes lie; None if they lie in no file as they are (deflated, sparse, ...)."""
    native = file.native
    if isinstance(native, dcp_folder.Tensors):
        return _folder_extents(native, name, box)
    entry = native.entry(native.find(name))
    if file.source is None or entry.offset is None or entry.is_conjugate or entry.is_negative:
        return None
    chunk = ChunkExtent(file.source, entry.offset, (0,) * len(entry.shape), entry.shape, entry.stride)
    return TensorExtents(entry.shape, builder.dtype(entry.dtype), (chunk,))


def _folder_extents(tensors: dcp_folder.Tensors, name: str, box: Box | None) -> TensorExtents | None:
    """Return where a tensor's chunks lie, those that overlap a box; None if one is not stored as it is."""
    stored = tensors.chunked(name)
    # Each chunk is an archive of its own, which has to be opened.
    wanted = [chunk for chunk in stored.chunks if box is None or _overlaps(chunk, box)]
    places = tensors.chunk_places(name, wanted)
    if places is None:
        return None
    chunks = (
        ChunkExtent(place.file, place.offset, chunk.offsets, chunk.sizes, place.stride)
        for chunk, place in zip(wanted, places, strict=True)
    )
    return TensorExtents(stored.shape, builder.dtype(stored.dtype), tuple(chunks))


def _overlaps(chunk: dcp_metadata.Chunk, box: Box) -> bool:
    sides = zip(chunk.offsets, chunk.sizes, *box, strict=True)
    return all(mine < begin + n and begin < mine + length for mine, length, begin, n in sides)
