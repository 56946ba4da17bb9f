"""The facts that a file states about a tensor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from zerocopy import _torch

_MAX_TIED = 100


class TensorInfo(NamedTuple):
    """The facts that a file states about one tensor.

    All attributes describe the tensor as it is in the file, before ``dtype=`` and ``device=`` convert it.

    Attributes
    ----------
    name : str
        Its dotted name.
    shape : torch.Size
        The size of each dimension; -1 for each dimension of a nested tensor.
    dtype : torch.dtype
        Element type.
    stride : tuple of int
        In elements; empty for sparse tensors and others that are not made of one storage.
    nbytes : int
        Bytes of all its elements, including those that a sparse tensor leaves out.
    offset : int or None
        Where its first element is in the file; None if the file does not hold the element as it is (deflated, not
        dense).
    storage : str
        The name of its storage in the file, or empty.
    device : torch.device or None
        The device it was saved from; None if this PyTorch knows no such device.
    requires_grad : bool
        Whether it takes part in autograd.
    tied : tuple of str
        Other tensors over the same storage, at most 100 of them, because thousands may be views of one storage.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save({"weight": torch.ones(2, 3)}, file.name)
    ...     with zerocopy.open(file.name) as checkpoint:
    ...         info = checkpoint.info("weight")
    >>> info.shape, info.dtype, info.stride, info.nbytes
    (torch.Size([2, 3]), torch.float32, (3, 1), 24)
    """

    name: str
    shape: torch.Size
    dtype: torch.dtype
    stride: tuple[int, ...]
    nbytes: int
    offset: int | None
    storage: str
    device: torch.device | None
    requires_grad: bool
    tied: tuple[str, ...]


class Tied:
    """The names of the tensors over one storage. If there are thousands, most of them share one tuple."""

    def __init__(self, names: list[str]) -> None:
        self._first = dict.fromkeys(names[: _MAX_TIED + 1])
        self._most = tuple(names[:_MAX_TIED])

    def beside(self, name: str) -> tuple[str, ...]:
        """Return the first names except this one."""
        if len(self._first) > _MAX_TIED and name not in self._first:
            return self._most
        return tuple(other for other in self._first if other != name)


def ties(storages: Iterable[tuple[Any, str]]) -> dict[Any, Tied]:
    """Return the names of tensors by storage, for storages with several tensors. Takes pairs of storage and name."""
    over = defaultdict(list)
    for storage, name in storages:
        over[storage].append(name)
    return {storage: Tied(names) for storage, names in over.items() if len(names) > 1}


def info_of(name: str, tensor: torch.Tensor) -> TensorInfo:
    """Return the facts about a tensor that is not made of one storage, without loading it."""
    return TensorInfo(
        name,
        shape_of(tensor),
        tensor.dtype,
        (),
        tensor.numel() * _torch.element_size(tensor.dtype),
        None,
        "",
        tensor.device,
        tensor.requires_grad,
        (),
    )


def shape_of(tensor: torch.Tensor) -> torch.Size:
    """Return the shape of a tensor. A nested tensor has -1 for each dimension."""
    try:
        return tensor.shape
    except RuntimeError:  # nested
        return torch.Size([-1] * tensor.dim())


@lru_cache(64)
def device_of(location: str) -> torch.device | None:
    """Return the device that a storage was saved from; None if this PyTorch knows no such device."""
    try:
        return torch.device(location)
    except RuntimeError:
        return None
