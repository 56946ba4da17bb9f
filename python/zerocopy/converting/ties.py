"""Finds tensors with several names, and tensors that overlap. Formats without storages need to know both."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from zerocopy import _torch
from zerocopy.converting.inputs import Sources, SourceTensor
from zerocopy.lazy.tensor_info import TensorInfo

# Beyond these tensors are said to overlap without a look: of a storage, and of ways to come from one to the other.
_MAX_COMPARED = 1 << 16
_MAX_LEFT = 64


def names_by_tensor(sources: Sources) -> dict[SourceTensor, list[str]]:
    """Return the names of each tensor. Metadata can give one tensor a hundred thousand: look at it once."""
    found: dict[SourceTensor, list[str]] = defaultdict(list)
    for name, tensor in sources.tensors.items():
        found[tensor].append(name)
    return found


def tied_names(sources: Sources, always_kept: Collection[str] = ()) -> dict[str, str]:
    """Return names that another stands for, and that one: the first in the alphabet, as safetensors chooses.

    Tied are tensors that show the same bytes of one storage in the same way. Names in `always_kept` stand for
    themselves, and for the others.
    """
    groups: dict[Any, list[str]] = defaultdict(list)
    for tensor, names in names_by_tensor(sources).items():
        facts = tensor.facts()
        info, entry = facts.info, facts.entry
        if facts.storage is not None and info.nbytes:
            flags = entry.is_conjugate, entry.is_negative
            groups[facts.storage, facts.begin, flags, info.shape, info.stride, info.dtype] += names
    ties: dict[str, str] = {}
    for names in groups.values():
        kept, *others = sorted(names, key=lambda name: (name not in always_kept, name))
        ties |= dict.fromkeys((name for name in others if name not in always_kept), kept)
    return ties


class _Span(NamedTuple):
    """Between which bytes of a storage a tensor's elements are."""

    begin: int
    end: int
    name: str
    info: TensorInfo


def overlapping(sources: Sources, names: Iterable[str]) -> list[str]:
    """Return those names whose tensors show some element twice, or one that another of the names shows."""
    found: dict[str, None] = {}
    spans: dict[Any, list[_Span]] = defaultdict(list)
    for name in names:
        facts = sources.tensors[name].facts()
        info = facts.info
        if facts.storage is None or info.nbytes == 0:
            continue
        if _shows_one_twice(info):
            found[name] = None
        begin = facts.begin
        spans[facts.storage].append(_Span(begin, begin + _reach(info), name, info))
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

    Those have the same strides. An element of both is where, in each dimension, so many steps more in the one than in
    the other come together to what lies between their first elements.
    """
    size = _torch.element_size(one.info.dtype)
    if (one.info.stride, one.info.dtype) != (other.info.stride, other.info.dtype):
        return True
    between, rest = divmod(other.begin - one.begin, size)
    if rest:
        return True
    shapes = zip(one.info.stride, one.info.shape, other.info.shape, strict=True)
    dimensions = sorted(dimension for dimension in shapes if max(dimension[1:]) > 1)
    reaches = [0, *itertools.accumulate((max(m, n) - 1) * stride for stride, m, n in dimensions)]
    left = {between}  # what the dimensions of smaller strides have to come to
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


def _reach(info: TensorInfo) -> int:
    """Return the bytes from a tensor's first element to behind its last."""
    steps = sum((size - 1) * stride for size, stride in zip(info.shape, info.stride, strict=True))
    return (steps + 1) * _torch.element_size(info.dtype)


def _shows_one_twice(info: TensorInfo) -> bool:
    """Return whether it may: a step along one dimension does not lead past all that those of smaller steps show."""
    reach = 0
    for stride, size in sorted(zip(info.stride, info.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False
