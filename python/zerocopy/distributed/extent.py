"""A rank's part of a tensor in a new file, and how it is written."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch

from zerocopy.converting.elements import elements_of
from zerocopy.lazy.reading.segments import merged_dims
from zerocopy.loading.extents import contiguous_strides


class WriteExtent(NamedTuple):
    """A part of a tensor in a new file.

    Attributes
    ----------
    file : int
        Number of the file.
    offset : int
        Of the tensor's first element, in bytes.
    shape, begin, size : tuple of int
        Of the tensor; position and shape of the part.
    """

    file: int
    offset: int
    shape: tuple[int, ...]
    begin: tuple[int, ...]
    size: tuple[int, ...]

    def write(self, descriptor: int, tensor: torch.Tensor) -> int:
        """Write a part to its place. Return its bytes."""
        row_by_row = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        content = elements_of(row_by_row)
        itemsize = row_by_row.element_size()
        strides = contiguous_strides(self.shape)
        first = self.offset + sum(i * step for i, step in zip(self.begin, strides, strict=True)) * itemsize
        dims = merged_dims(self.size, strides, contiguous_strides(self.size))
        if dims is not None:
            _write_runs(descriptor, content, first, 0, dims, itemsize)
        return content.nbytes


def _write_runs(
    descriptor: int, content: memoryview, at: int, begin: int, dims: list[tuple[int, int, int]], itemsize: int
) -> None:
    if len(dims) > 1 or (dims and dims[0][1:] != (1, 1)):
        n, step, own_step = dims[0]
        for i in range(n):
            inner = at + i * step * itemsize
            _write_runs(descriptor, content, inner, begin + i * own_step * itemsize, dims[1:], itemsize)
        return
    left = content[begin : begin + itemsize * (dims[0][0] if dims else 1)]
    while left:
        done = os.pwrite(descriptor, left, at)
        left, at = left[done:], at + done
