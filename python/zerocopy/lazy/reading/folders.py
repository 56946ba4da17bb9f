"""Where the chunks of a DCP folder's tensors lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerocopy.lazy.reading.extents import ChunkExtent, TensorExtents

if TYPE_CHECKING:
    from zerocopy.loading.readers import dcp_folder


def folder_extents(tensors: dcp_folder.Tensors, name: str) -> TensorExtents | None:
    """Return where a tensor's bytes lie; None if a chunk of it is not stored as it is."""
    stored = tensors.chunked(name)
    places = tensors.chunk_places(name)
    if places is None:
        return None
    chunks = (
        ChunkExtent(place.file, place.offset, chunk.offsets, chunk.sizes, place.stride)
        for chunk, place in zip(stored.chunks, places, strict=True)
    )
    return TensorExtents(stored.shape, stored.dtype, tuple(chunks))
