"""The part of a tensor that one rank has; ``load_shard`` reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from zerocopy import display
from zerocopy._typing import Device, File
from zerocopy.errors import UnsupportedError
from zerocopy.lazy import opening
from zerocopy.lazy.checkpoint import Checkpoint
from zerocopy.lazy.tensor_info import TensorInfo
from zerocopy.loading.extents import Box


def shard_range(length: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return where a rank's part of a dimension begins and how long it is, as ``torch.chunk`` splits it.

    The last ranks have shorter parts, or none. ``Shard`` of ``torch.distributed.tensor`` splits alike.
    """
    each = -(-length // ranks)
    begin = min(rank * each, length)
    return begin, min(each, length - begin)


def box_of(
    shape: tuple[int, ...], split: tuple[int | None, ...], place: tuple[int, ...], sizes: tuple[int, ...]
) -> Box:
    """Return the part of a tensor that the rank at a place in a mesh has."""
    begin, size = [0] * len(shape), list(shape)
    for dim, mine, ranks in zip(split, place, sizes, strict=True):
        if dim is not None:
            first, size[dim] = shard_range(size[dim], mine, ranks)
            begin[dim] += first
    return tuple(begin), tuple(size)


def load_shard(
    path: File | Checkpoint, name: str, dim: int, rank: int, world_size: int, *, device: Device = None
) -> torch.Tensor:
    """Read one rank's part of a tensor, and no other bytes.

    Parameters
    ----------
    path : path, buffer or Checkpoint
        A checkpoint, or any argument that ``zerocopy.open`` takes.
    name : str
        Dotted name of the tensor.
    dim : int
        The dimension that is split.
    rank, world_size : int
        The index of the part, and the number of parts.
    device : optional
        Where the result goes.

    Returns
    -------
    torch.Tensor
        ``torch.chunk(tensor, world_size, dim)[rank]``. Ranks beyond the last chunk get a tensor without elements, as
        the local tensor of a DTensor.

    Raises
    ------
    ValueError
        No such rank.
    IndexError
        The tensor has no such dimension.
    KeyError, OSError, zerocopy.FormatError, zerocopy.UnsupportedError, pickle.UnpicklingError
        As ``zerocopy.open`` and ``Checkpoint.read``.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> from zerocopy.distributed import load_shard
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save({"weight": torch.arange(5)}, file.name)
    ...     [load_shard(file.name, "weight", 0, rank, 2).tolist() for rank in range(2)]
    [[0, 1, 2], [3, 4]]
    """
    if isinstance(path, Checkpoint):
        return _read(path, name, dim, rank, world_size, device)
    with opening.open(path) as checkpoint:
        return _read(checkpoint, name, dim, rank, world_size, device)


def _read(
    checkpoint: Checkpoint, name: str, dim: int, rank: int, world_size: int, device: Device
) -> torch.Tensor:
    index = shard_index(tuple(checkpoint.info(name).shape), dim, rank, world_size)
    return checkpoint.read({name: index}, device=device)[name]


def shard_index(shape: tuple[int, ...], dim: int, rank: int, ranks: int) -> tuple[slice, ...]:
    """Return the index of a rank's part of a tensor."""
    if not 0 <= rank < ranks:
        raise ValueError(f"expected a rank from 0 to {ranks - 1} of {ranks}, got {rank}")
    if not -len(shape) <= dim < len(shape):
        raise IndexError(f"expected a dimension of a tensor of shape {shape}, got {dim}")
    dim %= len(shape)
    begin, length = shard_range(shape[dim], rank, ranks)
    return (*[slice(None)] * dim, slice(begin, begin + length))


def split_of(info: TensorInfo, placements: Any, dims: int) -> tuple[int | None, ...] | None:
    """Return the dimension of a tensor that is split over each dimension of a mesh; None if no rank reads it.

    `placements` are those of ``shard_plan``.
    """
    if callable(placements):
        found = placements(info)
    elif isinstance(placements, Mapping):
        found = placements.get(info.name)
    else:
        found = placements
    if found is None:
        return None
    if not isinstance(found, Sequence):
        raise TypeError(
            f"expected a sequence of placements for {display.shown(info.name)}, one for each mesh dimension, or None, "
            f"got {found!r}"
        )
    if len(found) != dims:
        raise ValueError(
            f"expected {dims} placements for {display.shown(info.name)}, one for each mesh dimension, got {len(found)}"
        )
    return tuple(_dim_of(info, placement) for placement in found)


def _dim_of(info: TensorInfo, placement: Any) -> int | None:
    if placement is None or type(placement).__name__ == "Replicate":
        return None
    dim = getattr(placement, "dim", placement)
    if not hasattr(dim, "__index__"):
        raise TypeError(
            f"expected a placement of {display.shown(info.name)} to be Shard, Replicate, an int or None, "
            f"got {placement!r}"
        )
    if getattr(placement, "split_factor", 1) != 1:  # _StridedShard, of FSDP2 over tensor parallelism
        raise UnsupportedError(
            f"{display.shown(info.name)}: shard_plan cannot plan the placement {placement!r}"
        )
    if not -len(info.shape) <= dim < len(info.shape):
        raise IndexError(
            f"expected a dimension of {display.shown(info.name)}, of shape {tuple(info.shape)}, got {dim}"
        )
    return int(dim) % len(info.shape)
