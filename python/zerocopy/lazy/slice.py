"""``Checkpoint.get_slice``: a part of a tensor, read without the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from zerocopy.lazy.placeholder import materialized
from zerocopy.loading.extents import Geometry, is_basic
from zerocopy.loading.formats.safetensors import DTYPES
from zerocopy.loading.objects.rebuild import MAX_DIMENSIONS


class Slice:
    """A tensor of a file that reads the parts by which it is indexed: the result of :meth:`Checkpoint.get_slice`.

    ``slice[index]`` is a tensor with the values, shape and dtype of ``tensor[index]``, where ``tensor`` is the whole
    tensor. If the tensor is dense, integers, slices, ``None`` and ``...`` read only the pages that they select (of an
    HDF5 dataset, the chunks). Masks and lists of indices map the whole tensor, and read the elements that they select.
    The values come from the file, without grad, and do not show changes in memory.

    Attributes
    ----------
    shape : torch.Size
        Of the whole tensor.
    dtype : torch.dtype
        Of the whole tensor, and of what indexing returns.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save({"weight": torch.arange(12.0).view(3, 4)}, file.name)
    ...     with zerocopy.open(file.name) as checkpoint:
    ...         weight = checkpoint.get_slice("weight")
    ...         weight.get_shape(), weight.get_dtype(), weight[1:, ::2]
    ([3, 4], 'F32', tensor([[ 4.,  6.],
            [ 8., 10.]]))
    """

    def __init__(
        self,
        whole: torch.Tensor,
        geometry: Geometry | None = None,
        part: Callable[[Geometry], torch.Tensor] | None = None,
    ) -> None:
        """Initialise a slice. A dense tensor in a file has a `geometry`, and a function that reads a `part` of it."""
        self._whole, self._geometry, self._part = whole, geometry, part

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole tensor."""
        return self._whole.shape

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the whole tensor."""
        return self._whole.dtype

    def get_shape(self) -> list[int]:
        """Return the shape as safetensors' slices do."""
        return list(self.shape)

    def get_dtype(self) -> str:
        """Return the dtype as safetensors' slices do: ``"F32"``. One that safetensors lacks has torch's name."""
        name = str(self.dtype).removeprefix("torch.")
        return DTYPES.get(name, name)  # others have torch's

    def __len__(self) -> int:
        return len(torch.empty(self.shape, device="meta"))

    def __getitem__(self, index: Any) -> torch.Tensor:
        if self._geometry is None or self._part is None:
            whole = materialized(self._whole).detach()
            return whole if index is ... else whole[index]  # torch has no views of sparse tensors
        if is_basic(index):
            geometry = self._geometry.at(index)
            if len(geometry.size) <= MAX_DIMENSIONS:  # each None adds one
                return self._converted(self._part(geometry))
        return self._converted(self._part(self._geometry)[index])

    def _converted(self, read: torch.Tensor) -> torch.Tensor:
        return read.to(self._whole.device, self._whole.dtype)

    def __repr__(self) -> str:
        return f"Slice(shape={tuple(self.shape)}, dtype={self.dtype})"
