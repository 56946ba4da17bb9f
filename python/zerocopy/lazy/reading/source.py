"""An open checkpoint, to be read by parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from zerocopy import remote
from zerocopy.lazy.reading.extents import Box, FileVersion, TensorExtents

if TYPE_CHECKING:
    from zerocopy.lazy.checkpoint import Checkpoint


class CheckpointSource:
    """The tensors of an open checkpoint for one read, and the files that they are in."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._there: set[int] = set()
        self._versions: dict[str, FileVersion] = {}
        self._layer: Any = None
        layers = checkpoint.layers
        self._only = layers[0] if len(layers) == 1 else None

    def extents(self, name: str, box: Box | None = None) -> TensorExtents | None:
        """Return where a tensor lies, in files that are still those that were opened.

        With `box`, a position and a shape in the tensor, only chunks that overlap it have to be there.
        """
        layer = self._only
        if layer is None or name not in layer:
            layer = self._checkpoint.layer_of(name)
        self._layer = layer
        found: TensorExtents | None = layer.extents(name, box)
        if found is not None and id(layer) not in self._there:
            layer.require_there()
            self._there.add(id(layer))
        return found

    def shape(self, name: str) -> torch.Size:
        """Return the shape of a tensor."""
        return self._checkpoint[name].shape

    def version(self, file: str) -> FileVersion:
        """Return the version of a file."""
        if file not in self._versions:
            self._versions[file] = FileVersion.of(file)
        return self._versions[file]

    def wanted(self, dtype: torch.dtype) -> tuple[torch.dtype, torch.device]:
        """Return the dtype and device that the tensor that was asked for last gets."""
        found: tuple[torch.dtype, torch.device] = self._layer.wanted(dtype)
        return found

    def is_far(self) -> bool:
        """Return whether files are on other machines."""
        return any(remote.is_url(layer.path) for layer in self._checkpoint.layers)

    def indexed(self, name: str, index: Any) -> torch.Tensor:
        """Return a part of a tensor through the mapping of its file."""
        return self._checkpoint.get_slice(name)[index]
