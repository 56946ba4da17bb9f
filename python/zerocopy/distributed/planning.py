"""``shard_plan``: works out what each rank of a job would read of a checkpoint, without reading it."""

from __future__ import annotations

import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from zerocopy import display
from zerocopy.distributed.shards import box_of, split_of
from zerocopy.lazy import opening
from zerocopy.lazy.checkpoint import Checkpoint
from zerocopy.lazy.reading.parts import CheckpointSource, Part, box, plan_of
from zerocopy.lazy.reading.read_plan import ReadPlan
from zerocopy.lazy.tensor_info import TensorInfo
from zerocopy.loading.extents import FileVersion, TensorExtents, contiguous_strides

#: For each dimension of a mesh: the tensor dimension that is split over it, or None if all ranks have the whole tensor.
Placements = Sequence[Any]


class RankReads(NamedTuple):
    """The reads of one rank.

    Attributes
    ----------
    rank : int
        Number in the mesh, row by row.
    nbytes : int
        The bytes of its tensors.
    bytes_read, requests : int
        The bytes and the number of the requests. Small gaps are read too, so there may be more bytes than `nbytes`.
    """

    rank: int
    nbytes: int
    bytes_read: int
    requests: int


class HostReads(NamedTuple):
    """The reads of all ranks of one host.

    Attributes
    ----------
    host : int
        Its number. Consecutive ranks are on one host.
    bytes_read, requests : int
        Of all its ranks.
    bytes_once : int
        Each byte of the file counted once. So many bytes come over the network if the host caches pages that it has
        read.
    """

    host: int
    bytes_read: int
    requests: int
    bytes_once: int


class _Planned(NamedTuple):
    """A tensor of a plan: its name, its bytes, where it lies, and how it is split."""

    name: str
    nbytes: int
    extents: TensorExtents | None
    split: tuple[int | None, ...]


class _Intervals(NamedTuple):
    """Requests to one file: where each begins and ends, in bytes. Both are one-dimensional tensors of integers."""

    begin: torch.Tensor
    end: torch.Tensor


class ShardPlan:
    """The reads of each rank and host: the result of :func:`shard_plan`.

    Attributes
    ----------
    path : str
        The checkpoint.
    file_bytes : int
        The bytes of all its tensors.
    ranks : list of RankReads
        One for each rank.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> from zerocopy.distributed import shard_plan
    >>> file = tempfile.NamedTemporaryFile(suffix=".pt")
    >>> torch.save({"weight": torch.ones(1000, 1000)}, file.name)
    >>> plan = shard_plan(file.name, (2, 4), (None, 0))  # rows over the second dimension of the mesh
    >>> plan.reads_of(5).bytes_read
    1000000
    >>> plan.hosts(ranks_per_host=4)
    [HostReads(host=0, bytes_read=4000000, requests=4, bytes_once=4000000),
     HostReads(host=1, bytes_read=4000000, requests=4, bytes_once=4000000)]
    """

    def __init__(
        self, path: str, tensors: list[_Planned], sizes: tuple[int, ...], versions: dict[str, FileVersion]
    ) -> None:
        self.path, self.file_bytes = path, sum(tensor.nbytes for tensor in tensors)
        self._tensors, self._sizes, self._versions = tensors, sizes, versions
        # Tensors that differ in their offsets alone are split once for all of them.
        alike: dict[tuple[TensorExtents, tuple[int | None, ...]], list[int]] = defaultdict(list)
        for tensor in tensors:
            if tensor.extents is not None:
                first, extents = _from_zero(tensor.extents)
                alike[extents, tensor.split].append(first)
        self._alike = {key: torch.tensor(offsets, device="cpu") for key, offsets in alike.items()}
        used = [any(split[dim] is not None for _, split in self._alike) for dim in range(len(sizes))]
        # The place of each rank in the mesh, with 0 for the dimensions over which nothing is split.
        self._places = [
            tuple(n if splits else 0 for n, splits in zip(place, used, strict=True))
            for place in itertools.product(*map(range, sizes))
        ]
        known = {place: _counts_of(*self._reads_at(place)) for place in dict.fromkeys(self._places)}
        self.ranks = [RankReads(rank, *known[place]) for rank, place in enumerate(self._places)]

    def reads_of(self, rank: int) -> ReadPlan:
        """Return the requests of a rank.

        Parameters
        ----------
        rank : int
            Number in the mesh, row by row.

        Returns
        -------
        ReadPlan
            It has ``nbytes``, ``bytes_read`` and ``requests``. ``describe()`` shows it.

        Raises
        ------
        IndexError
            The mesh does not have this rank.
        """
        parts: list[Part] = []
        whole: list[str] = []
        for name, _, extents, split in self._tensors:
            if extents is None:
                whole.append(name)
            else:
                mine = box_of(extents.shape, split, self._places[rank], self._sizes)
                parts.append(box(extents, *mine))
        return plan_of(parts, self._versions.__getitem__, whole)

    def hosts(self, ranks_per_host: int) -> list[HostReads]:
        """Return the reads of each host.

        Parameters
        ----------
        ranks_per_host : int
            The number of ranks on a host. Ranks that follow each other share a host; the last may have fewer.

        Returns
        -------
        list of HostReads
            One for each host.

        Raises
        ------
        ValueError
            The number is below 1.
        """
        if ranks_per_host < 1:
            raise ValueError(f"expected at least 1 rank per host, got {ranks_per_host}")
        found = []
        once: dict[frozenset[tuple[int, ...]], int] = {}
        for host, first in enumerate(range(0, len(self.ranks), ranks_per_host)):
            inside = self.ranks[first : first + ranks_per_host]
            places = frozenset(self._places[first : first + ranks_per_host])
            if places not in once:
                once[places] = self._bytes_once(places)
            read = sum(rank.bytes_read for rank in inside)
            found.append(HostReads(host, read, sum(rank.requests for rank in inside), once[places]))
        return found

    def _reads_at(self, place: tuple[int, ...]) -> tuple[int, dict[str, list[_Intervals]]]:
        """Return the bytes and the requests of the ranks at a place of the mesh, as :meth:`reads_of` plans them."""
        nbytes = 0
        found: dict[str, list[_Intervals]] = defaultdict(list)
        for (extents, split), offsets in self._alike.items():
            part = box(extents, *box_of(extents.shape, split, place, self._sizes))
            nbytes += part.nbytes * len(offsets)
            for file, segment in part.segments(0, contiguous_strides(part.shape)):
                rows = segment.step * torch.arange(segment.rows, device="cpu")
                begin = (offsets[:, None] + segment.offset + rows).flatten()
                found[file].append(_Intervals(begin, begin + segment.nbytes))
        return nbytes, found

    def _bytes_once(self, places: frozenset[tuple[int, ...]]) -> int:
        by_file: dict[str, list[_Intervals]] = defaultdict(list)
        for place in places:
            for file, intervals in self._reads_at(place)[1].items():
                by_file[file] += intervals
        return sum(map(_length_of_union, by_file.values()))

    def describe(self) -> str:
        """Return a line with the bytes of the file, and the least and most that a rank reads."""
        return (
            f"{display.shown(self.path)}: {display.size(self.file_bytes)} of tensors, "
            f"{display.count(len(self.ranks), 'rank')}; a rank reads "
            f"{display.spread([rank.bytes_read for rank in self.ranks], display.size)} in "
            f"{display.spread([rank.requests for rank in self.ranks], str)} requests"
        )

    def __repr__(self) -> str:
        return f"<ShardPlan {self.describe()}>"


def shard_plan(
    path: Any,
    mesh: Any,
    placements: Placements | Mapping[str, Placements] | Callable[[TensorInfo], Placements | None],
) -> ShardPlan:
    """Work out which bytes of a checkpoint each rank of a mesh reads, in how many requests. No tensor is read.

    Parameters
    ----------
    path : path, buffer or Checkpoint
        A checkpoint, or any argument that ``zerocopy.open`` takes.
    mesh : sequence of int or DeviceMesh
        The sizes of its dimensions. Ranks count row by row.
    placements : sequence, mapping or callable
        One entry for each dimension of the mesh: the dimension of the tensor that is split over it, or None if all
        ranks have the whole tensor. ``Shard`` and ``Replicate`` of ``torch.distributed.tensor`` work too. Give one
        sequence for all tensors, a mapping by name, or a function of a ``TensorInfo``. Give None in place of a sequence
        for a tensor that no rank reads.

    Returns
    -------
    ShardPlan
        Bytes and requests by rank and host.

    Raises
    ------
    TypeError
        The mesh is not a sequence of int, or a placement is none of those above.
    ValueError
        The mesh has another number of dimensions than the placements.
    IndexError
        A tensor does not have the dimension that is split.
    zerocopy.UnsupportedError
        A placement is a strided shard, as FSDP2 over tensor parallelism has it. Also where
        ``zerocopy.open`` raises it.
    KeyError
        The mapping has a name that the checkpoint lacks.
    OSError, zerocopy.FormatError, pickle.UnpicklingError
        Where ``zerocopy.open`` raises it.

    Examples
    --------
    >>> import tempfile, torch, zerocopy
    >>> from zerocopy.distributed import shard_plan
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save({"weight": torch.ones(1000, 1000)}, file.name)
    ...     plan = shard_plan(file.name, (2, 4), (None, 0))
    >>> plan.ranks[7]
    RankReads(rank=7, nbytes=1000000, bytes_read=1000000, requests=1)
    >>> [host.bytes_once for host in plan.hosts(ranks_per_host=8)]
    [4000000]
    """
    if isinstance(path, Checkpoint):
        return _planned(path, _sizes_of(mesh), placements)
    with opening.open(path) as checkpoint:
        return _planned(checkpoint, _sizes_of(mesh), placements)


def _sizes_of(mesh: Any) -> tuple[int, ...]:
    shape = mesh.mesh.shape if hasattr(mesh, "mesh") else mesh
    try:
        sizes = tuple(operator.index(n) for n in shape)
    except TypeError:
        raise TypeError(f"expected mesh to be a DeviceMesh or a sequence of int, got {mesh!r}") from None
    if not sizes or min(sizes) < 1:
        raise ValueError(f"expected a mesh with at least one rank, got {sizes}")
    return sizes


def _planned(checkpoint: Checkpoint, sizes: tuple[int, ...], placements: Any) -> ShardPlan:
    source = CheckpointSource(checkpoint)
    for name in placements if isinstance(placements, Mapping) else ():
        checkpoint.info(name)  # raises KeyError for an unknown name
    tensors = []
    for info in checkpoint.tensors():
        split = split_of(info, placements, len(sizes))
        if split is not None:
            tensors.append(_Planned(info.name, info.nbytes, source.extents(info.name), split))
    files = {chunk.file for tensor in tensors if tensor.extents for chunk in tensor.extents.chunks}
    return ShardPlan(checkpoint.path, tensors, sizes, {file: source.version(file) for file in files})


def _from_zero(extents: TensorExtents) -> tuple[int, TensorExtents]:
    """Return the offset of a tensor's first chunk, and the tensor as it would be if that were 0."""
    first = extents.chunks[0].offset if extents.chunks else 0
    chunks = tuple(chunk._replace(offset=chunk.offset - first) for chunk in extents.chunks)
    return first, extents._replace(chunks=chunks)


def _counts_of(nbytes: int, files: dict[str, list[_Intervals]]) -> tuple[int, int, int]:
    each = [intervals for found in files.values() for intervals in found]
    return nbytes, sum(int((end - begin).sum()) for begin, end in each), sum(len(begin) for begin, _ in each)


def _length_of_union(intervals: list[_Intervals]) -> int:
    """Return how many bytes of one file lie in at least one of the intervals."""
    begin, end = map(torch.cat, zip(*intervals, strict=True))
    begin, order = torch.sort(begin)
    end = end[order].cummax(0).values
    return int((end[1:] - torch.maximum(begin[1:], end[:-1])).clamp(min=0).sum() + end[0] - begin[0])
