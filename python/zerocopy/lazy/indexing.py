"""Computes the part of a tensor that an index selects, without the tensor."""

from __future__ import annotations

import numbers
from typing import Any, NamedTuple

import torch


class Geometry(NamedTuple):
    """The places of a dense tensor's elements in its storage, all in elements."""

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def at(self, index: Any) -> Geometry:
        """Return the geometry of ``tensor[index]``, for a basic index. torch itself indexes a tensor without memory."""
        view = torch.empty_strided(self.size, self.stride, device="meta")[index]
        inside = view.numel() > 0  # torch lets an empty view begin behind the end of its storage
        return Geometry(self.offset + inside * int(view.storage_offset()), tuple(view.shape), view.stride())


def is_basic(index: Any) -> bool:
    """Return whether torch makes a view of an index: no copy, so that where its elements lie is known beforehand."""
    parts = index if isinstance(index, tuple) else (index,)
    if sum(part is ... for part in parts) > 1:  # not alike for tensors with memory and without
        return False
    return all(part is None or part is ... or isinstance(part, slice) or _is_int(part) for part in parts)


def _is_int(part: Any) -> bool:
    return isinstance(part, numbers.Integral) and not isinstance(part, bool)  # True and False are masks
