"""Finds tensors with several names, and tensors that overlap. Formats without storages need to know both."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from zerocopy import _core
from zerocopy.converting.sources import Sources

if TYPE_CHECKING:
    from zerocopy import _C
    from zerocopy.converting.plain import PlainEntry

    Entry = _C.TensorEntry | PlainEntry

# Beyond these numbers, tensors count as overlapping without a check: pairs of tensors that are compared in a storage,
# and distances that are left to explain between two of them.
_MAX_COMPARED = 1 << 16
_MAX_LEFT = 64


def tied_names(sources: Sources, always_kept: Collection[str] = ()) -> dict[str, str]:
    """Return a dict from tied names to the name that replaces them: the first in the alphabet, as safetensors chooses.

    Tensors are tied if they view the same bytes of one storage in the same way. Names in `always_kept` are not
    replaced, and the first of them replaces the others.
    """
    order = {name: place for place, name in enumerate(always_kept)}
    groups: dict[Any, list[str]] = defaultdict(list)
    for tensor, names in sources.tied().items():
        entry = tensor.entry()
        if entry.is_dense and entry.nbytes:
            flags = entry.is_conjugate, entry.is_negative
            storage = tensor.layer.path, entry.storage
            groups[storage, _begin(entry), flags, entry.shape, entry.stride, entry.dtype] += names
    ties: dict[str, str] = {}
    for names in groups.values():
        kept, *others = sorted(names, key=lambda name: (order.get(name, len(order)), name))
        ties |= dict.fromkeys((name for name in others if name not in order), kept)
    return ties


def _begin(entry: Entry) -> int:
    """Return the byte at which a tensor begins in its file, or in its storage where no file has it as it is."""
    in_storage = entry.storage_offset * _core.itemsize(entry.dtype)
    return in_storage if entry.offset is None else entry.offset


class _Span(NamedTuple):
    """The range of bytes of a storage in which a tensor's elements lie."""

    begin: int
    end: int
    name: str
    entry: Entry


def overlapping(sources: Sources, names: Iterable[str]) -> list[str]:
    """Return the names whose tensors have an element twice, or share an element with another of these tensors."""
    found: dict[str, None] = {}
    spans: dict[Any, list[_Span]] = defaultdict(list)
    for name in names:
        tensor = sources.tensors[name]
        entry = tensor.entry()
        if not entry.is_dense or entry.nbytes == 0:
            continue
        if _shows_one_twice(entry):
            found[name] = None
        begin = _begin(entry)
        spans[tensor.layer.path, entry.storage].append(_Span(begin, begin + _reach(entry), name, entry))
    for over_one_storage in spans.values():
        compared, before = 0, list[_Span]()
        for span in sorted(over_one_storage, key=lambda span: span[:2]):
            before = [other for other in before if other.end > span.begin]
            for other in before:
                compared += 1
                if compared > _MAX_COMPARED or _may_meet(other, span):
                    found |= {other.name: None, span.name: None}
            before.append(span)
    return list(found)


def _may_meet(one: _Span, other: _Span) -> bool:
    """Return whether two tensors, whose spans overlap, may share a byte; exact for parts of one tensor, as of chunk().

    Parts of one tensor have the same strides. They share an element if, for some difference of their indices,
    differences times strides add up to the distance of their first elements.
    """
    size = _core.itemsize(one.entry.dtype)
    if (one.entry.stride, one.entry.dtype) != (other.entry.stride, other.entry.dtype):
        return True
    between, rest = divmod(other.begin - one.begin, size)
    if rest:
        return True
    shapes = zip(one.entry.stride, one.entry.shape, other.entry.shape, strict=True)
    dimensions = sorted(dimension for dimension in shapes if max(dimension[1:]) > 1)
    reaches = [0, *itertools.accumulate((max(m, n) - 1) * stride for stride, m, n in dimensions)]
    left = {between}  # distances that the dimensions with smaller strides have to add up to
    for (stride, m, n), reach in reversed(list(zip(dimensions, reaches, strict=False))):
        if reach >= 2 * stride:  # then one of the two shows some element twice
            return True
        left = {
            distance - steps * stride
            for distance in left
            for steps in range(
                max(1 - n, -((reach - distance) // stride)), min(m - 1, (reach + distance) // stride) + 1
            )
        }
        if len(left) > _MAX_LEFT:
            return True
    return 0 in left


def _reach(entry: Entry) -> int:
    """Return the bytes from a tensor's first element to behind its last."""
    steps = sum((size - 1) * stride for size, stride in zip(entry.shape, entry.stride, strict=True))
    return (steps + 1) * _core.itemsize(entry.dtype)


def _shows_one_twice(entry: Entry) -> bool:
    """Return whether a tensor may have an element twice: a stride does not exceed the reach of all smaller strides."""
    reach = 0
    for stride, size in sorted(zip(entry.stride, entry.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False
