"""``Checkpoint.read`` and ``Checkpoint.plan``: parts of many tensors in one planned, parallel read."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from zerocopy import _torch, remote
from zerocopy._torch import distributed
from zerocopy.display import shown
from zerocopy.lazy.reading import engine
from zerocopy.lazy.reading.read_plan import FileReads, ReadPlan
from zerocopy.lazy.reading.segments import MAX_REQUEST, Segment, segments_of
from zerocopy.loading.extents import (
    Box,
    ChunkExtent,
    FileVersion,
    Geometry,
    TensorExtents,
    contiguous_strides,
    is_basic,
)
from zerocopy.remote.file import THREADS as FAR_THREADS

if TYPE_CHECKING:
    from zerocopy.lazy.checkpoint import Checkpoint

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
        Applied to the part after it is read; ``...`` if the part is exactly what was asked for.
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
        """Yield the part's segments, each with its file. `number` and `strides` are those of the target."""
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
    """Return the smallest box that holds the selected elements. Its `rest` selects them within the box."""
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


def requests_for(
    parts: Iterable[tuple[Part, Sequence[int]]], versions: Callable[[str], FileVersion | None]
) -> list[FileReads]:
    """Return for each file the requests that read these parts. Each part has the strides of its target.

    `versions` takes a file's path and returns the version that the file must have; None for any version.
    """
    by_file: dict[str, list[Segment]] = defaultdict(list)
    for number, (part, strides) in enumerate(parts):
        for file, segment in part.segments(number, strides):
            by_file[file].append(segment)
    return [FileReads(file, versions(file), sorted(found)) for file, found in by_file.items()]


def plan_of(
    parts: Sequence[Part], versions: Callable[[str], FileVersion | None], whole: Iterable[str]
) -> ReadPlan:
    """Return the plan that reads parts; `whole` are names of tensors that no request reads."""
    files = requests_for(((part, contiguous_strides(part.shape)) for part in parts), versions)
    return ReadPlan(sum(part.nbytes for part in parts), files, list(whole))


def read_all(
    direct: Sequence[tuple[Part, torch.Tensor]],
    copied: Iterable[tuple[Part, torch.Tensor]],
    versions: Callable[[str], FileVersion | None],
) -> None:
    """Read parts into tensors: directly, or through buffers if the tensor has another dtype or device."""
    _read(direct, versions)
    turn: list[tuple[Part, torch.Tensor]] = []
    nbytes = 0
    for part, target in copied:
        if turn and nbytes + part.nbytes > _CONVERTED_AT_ONCE:
            _copy(turn, versions)
            turn, nbytes = [], 0
        turn.append((part, target))
        nbytes += part.nbytes
    _copy(turn, versions)


def _read(parts: Sequence[tuple[Part, torch.Tensor]], versions: Callable[[str], FileVersion | None]) -> None:
    files = requests_for(((part, target.stride()) for part, target in parts), versions)
    engine.run(files, [target for _, target in parts])


def _copy(turn: list[tuple[Part, torch.Tensor]], versions: Callable[[str], FileVersion | None]) -> None:
    fresh = [torch.empty(part.shape, dtype=part.dtype, device="cpu") for part, _ in turn]
    _read([(part, memory) for (part, _), memory in zip(turn, fresh, strict=True)], versions)
    for (part, target), memory in zip(turn, fresh, strict=True):
        with torch.no_grad():
            target.copy_(memory[part.rest])


class CheckpointSource:
    """The tensors of an open checkpoint for one read, and the files that they are in."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._there: set[int] = set()
        self._versions: dict[str, FileVersion] = {}
        self._layer: Any = None

    def extents(self, name: str, box: Box | None = None) -> TensorExtents | None:
        """Return where a tensor lies, in files that are still those that were opened.

        With `box`, a position and a shape in the tensor, only chunks that overlap it have to be there.
        """
        layer = self._layer = self._checkpoint.layer_of(name)
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
        """Return the dtype and device that the last tensor given to :meth:`extents` gets when it is loaded."""
        found: tuple[torch.dtype, torch.device] = self._layer.wanted(dtype)
        return found

    def is_far(self) -> bool:
        """Return whether any file is on another machine."""
        return any(remote.is_url(layer.path) for layer in self._checkpoint.layers)

    def indexed(self, name: str, index: Any) -> torch.Tensor:
        """Return a part of a tensor through the mapping of its file."""
        return self._checkpoint.get_slice(name)[index]


def plan(source: CheckpointSource, wanted: Mapping[str, Any]) -> ReadPlan:
    """Return the requests that read parts of tensors."""
    parts: list[Part] = []
    whole: list[str] = []
    for name, index in _checked(wanted).items():
        if (part := _part(source, name, index)) is None:
            stand_in = torch.zeros((), dtype=torch.bool, device="cpu").expand(source.shape(name))
            stand_in[index]  # raises what torch raises
            whole.append(name)
        else:
            parts.append(part)
    return plan_of(parts, source.version, whole)


def read(
    source: CheckpointSource, wanted: Mapping[str, Any], device: Any, into: Mapping[str, torch.Tensor] | None
) -> dict[str, torch.Tensor]:
    """Read parts of tensors. Arguments as for ``Checkpoint.read``."""
    into = _checked_into(into, wanted)
    device = None if device is None else torch.device(device)
    results: dict[str, Any] = {}
    apart: list[str] = []  # names of tensors that no request of a plan reads
    direct: list[tuple[Part, torch.Tensor]] = []
    copied: list[tuple[Part, torch.Tensor]] = []
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
        is_direct = part.rest is ... and engine.is_direct(target, part.dtype)
        (direct if is_direct else copied).append((part, target))
    read_all(direct, copied, source.version)
    _read_apart(source, apart, wanted, results, into, device)
    distributed.note_writes(into.values())
    return results


def _read_apart(
    source: CheckpointSource,
    names: list[str],
    wanted: Mapping[str, Any],
    results: dict[str, Any],
    into: Mapping[str, torch.Tensor],
    device: torch.device | None,
) -> None:
    """Read tensors one by one. If a file is on another machine, read several at once, each thread neighbouring ones."""
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


def _part(source: CheckpointSource, name: str, index: Any) -> Part | None:
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
