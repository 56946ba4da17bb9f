"""Which tensors are one under several names, and which overlap: what a format without storages has to be told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from zerocopy import _torch
from zerocopy.layer import TensorInfo
from zerocopy.sources import Sources


def tied_names(sources: Sources) -> dict[str, str]:
    """Return names that another stands for, and that one: the first in the alphabet, as safetensors chooses.

    Tied are tensors that show the same bytes of one storage in the same way.
    """
    groups: dict[Any, list[str]] = defaultdict(list)
    for name in sources.tensors:
        storage, info = sources.storage_of(name), sources.info(name)
        if storage is not None and info.nbytes:
            groups[storage, sources.begin(name), info.shape, info.stride, info.dtype].append(name)
    ties: dict[str, str] = {}
    for names in groups.values():
        kept, *dropped = sorted(names)
        ties |= dict.fromkeys(dropped, kept)
    return ties


def overlapping(sources: Sources, names: Iterable[str]) -> list[str]:
    """Return those names whose tensors show some element twice, or reach into what another of the names shows."""
    found: dict[str, None] = {}
    spans: dict[Any, list[tuple[int, int, str]]] = defaultdict(list)
    for name in names:
        storage, info = sources.storage_of(name), sources.info(name)
        if storage is None or info.nbytes == 0:
            continue
        if _shows_one_twice(info):
            found[name] = None
        begin = sources.begin(name)
        spans[storage].append((begin, begin + _reach(info), name))
    for over_one_storage in spans.values():
        over_one_storage.sort()
        furthest, owner = -1, ""
        for begin, end, name in over_one_storage:
            if begin < furthest:
                found |= {owner: None, name: None}
            if end > furthest:
                furthest, owner = end, name
    return list(found)


def _reach(info: TensorInfo) -> int:
    """Return the bytes from a tensor's first element to behind its last."""
    steps = sum((size - 1) * stride for size, stride in zip(info.shape, info.stride, strict=True))
    return (steps + 1) * _torch.element_size(info.dtype)


def _shows_one_twice(info: TensorInfo) -> bool:
    """Whether it may: a step along one dimension does not lead past all that those of smaller steps show."""
    reach = 0
    for stride, size in sorted(zip(info.stride, info.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False
