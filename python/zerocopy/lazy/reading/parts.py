"""``Checkpoint.read`` and ``Checkpoint.plan``: parts of many tensors in one planned, parallel read."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import torch

from zerocopy import _torch
from zerocopy._torch import distributed
from zerocopy.display import shown
from zerocopy.lazy.indexing import Geometry, is_basic
from zerocopy.lazy.reading import engine
from zerocopy.lazy.reading.extents import ChunkExtent, FileVersion, TensorExtents, contiguous_strides
from zerocopy.lazy.reading.read_plan import FileReads, ReadPlan, requests_of
from zerocopy.lazy.reading.segments import MAX_REQUEST, Segment, segments_of
from zerocopy.remote.file import THREADS as FAR_THREADS

# Tensors that are converted, or moved to a device, pass through memory of this size.
_CONVERTED_AT_ONCE = 256 << 20
_WHOLE: Any = (..., ())


class Part(NamedTuple):
    """A part of a tensor, as it lies in files.

    Attributes
    ----------
    dtype : torch.dtype
        In the file.
    shape : tuple of int
        Of what is read.
    chunks : list of ChunkExtent
        Each ``begin`` is a position in the part.
    rest : index
        The part is indexed by this once it is read; ``...`` if it is what was asked for.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: list[ChunkExtent]
    rest: Any

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return _torch.element_size(self.dtype)

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return math.prod(self.shape) * self.itemsize

    def segments(self, number: int, strides: Sequence[int]) -> Iterable[tuple[str, Segment]]:
        """Yield its segments, each with its file, for a target of that number and strides."""
        steps = tuple(strides)
        if len(self.chunks) == 1 and self.chunks[0].stride == steps == contiguous_strides(self.shape):
            only = self.chunks[0]  # most tensors: one run
            for done in range(0, self.nbytes, MAX_REQUEST):
                count = min(MAX_REQUEST, self.nbytes - done)
                yield only.file, Segment(only.offset + done, count, number, done, ())
            return
        for chunk in self.chunks:
            at = sum(i * step for i, step in zip(chunk.begin, steps, strict=True)) * self.itemsize
            for segment in segments_of(
                chunk.offset, chunk.size, chunk.stride, steps, self.itemsize, number, at
            ):
                yield chunk.file, segment


def box(extents: TensorExtents, begin: tuple[int, ...], size: tuple[int, ...]) -> Part:
    """Return a box of a tensor as a part."""
    if size == extents.shape:
        return Part(extents.dtype, size, list(extents.chunks), ...)
    chunks = []
    for chunk in extents.within(begin, size):
        inside = tuple(mine - first for mine, first in zip(chunk.begin, begin, strict=True))
        chunks.append(chunk._replace(begin=inside))
    return Part(extents.dtype, size, chunks, ...)


def part_of(extents: TensorExtents, index: Any) -> Part:
    """Return the part of a tensor that a basic index selects. IndexError and TypeError are those of torch."""
    if any(index is whole for whole in _WHOLE) or (index == slice(None) and extents.shape):
        return Part(extents.dtype, extents.shape, list(extents.chunks), ...)
    if len(extents.chunks) == 1:
        only = extents.chunks[0]
        geometry = Geometry(0, only.size, only.stride).at(index)
        offset = only.offset + geometry.offset * extents.itemsize
        begin = (0,) * len(geometry.size)
        chunk = ChunkExtent(only.file, offset, begin, tuple(geometry.size), tuple(geometry.stride))
        return Part(extents.dtype, tuple(geometry.size), [chunk], ...)
    return _of_chunks(extents, index)


def _of_chunks(extents: TensorExtents, index: Any) -> Part:
    """Return the smallest box that has what an index selects, and the index of that within the box."""
    torch.empty(extents.shape, device="meta")[index]  # raises what torch raises
    entries = list(index if isinstance(index, tuple) else (index,))
    named = sum(entry is not None and entry is not ... for entry in entries)
    filler = [slice(None)] * (len(extents.shape) - named)
    place = next((i for i, entry in enumerate(entries) if entry is ...), len(entries))
    entries[place : place + 1] = filler
    begin: list[int] = []
    size: list[int] = []
    rest: list[Any] = []
    dim = 0
    for entry in entries:
        if entry is None:
            rest.append(None)
            continue
        length = extents.shape[dim]
        if isinstance(entry, slice):
            selected = range(length)[entry]
            begin.append(selected.start if selected else 0)
            size.append(selected[-1] + 1 - selected.start if selected else 0)
            rest.append(slice(None, None, selected.step))
        else:
            begin.append(int(entry) % length)
            size.append(1)
            rest.append(0)
        dim += 1
    part = box(extents, tuple(begin), tuple(size))
    return part._replace(rest=tuple(rest))


class Job:
    """Parts to be read, the tensors that they go to, and the plan.

    Parameters
    ----------
    versions : callable
        Returns the version that a file, given by its path, must have; None for any.
    """

    def __init__(self, versions: Callable[[str], FileVersion | None]) -> None:
        self._versions = versions
        self._parts: list[tuple[Part, torch.Tensor | None]] = []

    def add(self, part: Part, target: torch.Tensor | None) -> int:
        """Add a part, to be read into a tensor of its shape and dtype; None to plan only. Return its number."""
        self._parts.append((part, target))
        return len(self._parts) - 1

    def files(self) -> list[FileReads]:
        """Return the requests to each file."""
        by_file: dict[str, list[Segment]] = defaultdict(list)
        for number, (part, target) in enumerate(self._parts):
            strides = contiguous_strides(part.shape) if target is None else target.stride()
            for file, segment in part.segments(number, strides):
                by_file[file].append(segment)
        return [FileReads(file, self._versions(file), requests_of(found)) for file, found in by_file.items()]

    def plan(self, whole: Iterable[str] = ()) -> ReadPlan:
        """Return the plan."""
        return ReadPlan(sum(part.nbytes for part, _ in self._parts), self.files(), list(whole))

    def run(self) -> None:
        """Read all parts into their tensors."""
        targets = [engine.Target(target) for _, target in self._parts if target is not None]
        engine.run(self.files(), targets)


class Copied(NamedTuple):
    """A part that is read into memory of its own, and then copied to its tensor: another dtype or device."""

    part: Part
    target: torch.Tensor


def read_all(
    direct: Iterable[tuple[Part, torch.Tensor]],
    copied: Iterable[Copied],
    versions: Callable[[str], FileVersion | None],
) -> None:
    """Read parts into tensors: straight where they can be, and else in turns through memory of their own."""
    job = Job(versions)
    for part, target in direct:
        job.add(part, target)
    job.run()
    turn: list[Copied] = []
    for one in copied:
        if turn and sum(each.part.nbytes for each in turn) + one.part.nbytes > _CONVERTED_AT_ONCE:
            _copy(turn, versions)
            turn = []
        turn.append(one)
    _copy(turn, versions)


def _copy(turn: list[Copied], versions: Callable[[str], FileVersion | None]) -> None:
    job, read = Job(versions), []
    for part, _ in turn:
        fresh = torch.empty(part.shape, dtype=part.dtype, device="cpu")
        job.add(part, fresh)
        read.append(fresh)
    job.run()
    for (part, target), fresh in zip(turn, read, strict=True):
        with torch.no_grad():
            target.copy_(fresh[part.rest])


class Source(Protocol):
    """The interface that reading by parts needs from a checkpoint."""

    def extents(self, name: str) -> TensorExtents | None:
        """Return where a tensor lies; None if it cannot be read by requests."""

    def shape(self, name: str) -> Sequence[int]:
        """Return the shape of a tensor."""

    def version(self, file: str) -> FileVersion | None:
        """Return the version that a file must have."""

    def wanted(self, dtype: torch.dtype) -> tuple[torch.dtype, torch.device]:
        """Return the dtype and device that tensors of that dtype get when they are read."""

    def indexed(self, name: str, index: Any) -> torch.Tensor:
        """Return a part of a tensor in another way."""

    def is_far(self) -> bool:
        """Return whether files are on other machines."""


def plan(source: Source, wanted: Mapping[str, Any]) -> ReadPlan:
    """Return the requests that read parts of tensors."""
    job, whole = Job(source.version), []
    for name, index in _checked(wanted).items():
        if (part := _part(source, name, index)) is None:
            stand_in = torch.zeros((), dtype=torch.bool, device="cpu").expand(source.shape(name))
            stand_in[index]  # raises what torch raises
            whole.append(name)
        else:
            job.add(part, None)
    return job.plan(whole)


def read(
    source: Source, wanted: Mapping[str, Any], device: Any, into: Mapping[str, torch.Tensor] | None
) -> dict[str, torch.Tensor]:
    """Read parts of tensors. Arguments as for ``Checkpoint.read``."""
    into = _checked_into(into, wanted)
    device = None if device is None else torch.device(device)
    results: dict[str, Any] = {}
    apart: list[str] = []  # that no request of a plan reads
    direct: list[tuple[Part, torch.Tensor]] = []
    copied: list[Copied] = []
    for name, index in _checked(wanted).items():
        target = into.get(name)
        part = _part(source, name, index)
        if part is None:
            results[name] = None
            apart.append(name)
            continue
        shape = part.shape if part.rest is ... else torch.empty(part.shape, device="meta")[part.rest].shape
        if target is None:
            dtype, place = source.wanted(part.dtype)
            target = torch.empty(shape, dtype=dtype, device=device or place)
        else:
            _require_shape(name, target, shape)
        results[name] = target
        if part.rest is ... and engine.is_direct(target, part.dtype):
            direct.append((part, target))
        else:
            copied.append(Copied(part, target))
    read_all(direct, copied, source.version)
    _read_apart(source, apart, wanted, results, into, device)
    distributed.note_writes(into.values())
    return results


def _read_apart(
    source: Source,
    names: list[str],
    wanted: Mapping[str, Any],
    results: dict[str, Any],
    into: Mapping[str, torch.Tensor],
    device: torch.device | None,
) -> None:
    """Read tensors one by one, or of a file on another machine neighbours in turn and several at once."""
    threads = min(FAR_THREADS, len(names)) if source.is_far() else 1

    def read(some: list[str]) -> None:
        for name in some:
            results[name] = _taken(source.indexed(name, wanted[name]), into.get(name), device)

    if threads <= 1:
        read(names)
        return
    shares = [names[len(names) * i // threads : len(names) * (i + 1) // threads] for i in range(threads)]
    with ThreadPoolExecutor(threads, "zerocopy-read") as pool:
        for _ in pool.map(read, shares):
            pass


def _part(source: Source, name: str, index: Any) -> Part | None:
    extents = source.extents(name)
    return None if extents is None or not is_basic(index) else part_of(extents, index)


def _taken(found: torch.Tensor, target: torch.Tensor | None, device: torch.device | None) -> torch.Tensor:
    if target is None:
        return found.to(device or found.device, copy=True)
    _require_shape("", target, found.shape)
    with torch.no_grad():
        return target.copy_(found)


def _checked(wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(wanted, Mapping):
        raise TypeError(
            f"expected a dict of names to indices, got {type(wanted).__name__}; ... means all of a tensor"
        )
    return wanted


def _checked_into(
    into: Mapping[str, torch.Tensor] | None, wanted: Mapping[str, Any]
) -> Mapping[str, torch.Tensor]:
    into = {} if into is None else into
    if not isinstance(into, Mapping):
        raise TypeError(f"expected into to be a dict of names to tensors, got {type(into).__name__}")
    for name, tensor in into.items():
        if name not in wanted:
            raise ValueError(
                f"unexpected tensor in into: {shown(str(name))} is not read; name it in the first argument"
            )
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"expected a tensor for {shown(name)} in into, got {type(tensor).__name__}")
    return into


def _require_shape(name: str, target: torch.Tensor, shape: Sequence[int]) -> None:
    if tuple(target.shape) != tuple(shape):
        raise ValueError(
            f"expected a tensor of shape {tuple(shape)} for {shown(name) or 'a part'}, got {tuple(target.shape)}"
        )
