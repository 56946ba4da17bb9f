"""Compares the elements of two tensors of files, block by block."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from zerocopy import _torch
from zerocopy.cli import elements
from zerocopy.cli.comparison import Comparison
from zerocopy.cli.elements import Tolerance, ValueDifference
from zerocopy.lazy.checkpoint import Checkpoint
from zerocopy.lazy.layer import FileLayer, Layer
from zerocopy.lazy.tensor_info import TensorInfo

_BLOCK = 1 << 20  # elements of a block that is converted
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_READ_DIRECTLY = ("zip", "legacy", "safetensors", "hdf5")


class Side:
    """One of two checkpoints, and descriptors of its files."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._layers = {name: layer for layer in checkpoint.layers for name in layer.names()}
        self._descriptors: dict[str, int] = {}
        self._inflated: tuple[str | None, Any] = (None, None)  # the last compressed tensor that was read

    def close(self) -> None:
        """Close the files, after a check that they are still those that were opened."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def require_unchanged(self) -> None:
        """Raise ``OSError`` if a file was replaced while it was compared."""
        for layer in self.checkpoint.layers:
            if isinstance(layer, FileLayer) and layer.path in self._descriptors:
                layer.require_there()

    def place(self, info: TensorInfo) -> elements.Place | None:
        """Return a descriptor and the offset of a tensor's bytes, where they lie in the file in order."""
        layer = self._layers[info.name]
        in_order = info.stride == elements.row_major(info.shape) or not info.nbytes
        if info.offset is None or not in_order or layer.container not in _READ_DIRECTLY:
            return None
        if not isinstance(layer, FileLayer):
            return None
        entry = layer.entry(info.name)
        if entry.is_conjugate or entry.is_negative:
            return None
        if layer.path not in self._descriptors:
            self._descriptors[layer.path] = os.open(layer.path, os.O_RDONLY | os.O_CLOEXEC)
            layer.require_there()
        return elements.Place(self._descriptors[layer.path], info.offset)

    def names(self) -> Mapping[str, Any]:
        """Return the names of the tensors, in the order of the file."""
        return self.checkpoint

    def info(self, name: str) -> TensorInfo:
        """Return what the file states of a tensor."""
        return self.checkpoint.info(name)

    def containers(self) -> set[str]:
        """Return the formats of the files."""
        return {layer.container for layer in self.checkpoint.layers}

    def values(self) -> dict[str, Any]:
        """Return the values that are not tensors."""
        return dict(self.checkpoint.metadata())

    def value_difference(self, one: Any, other: Any) -> str:
        """Return how two values differ, or an empty string."""
        return Comparison().difference(one, other)

    def layer(self, name: str) -> Layer:
        """Return the file that a tensor comes from."""
        return self._layers[name]

    def is_dense(self, info: TensorInfo) -> bool:
        """Return whether a tensor is made of one storage, so that parts of it can be read."""
        return bool(info.stride) or (not info.shape and bool(info.storage))

    def ties(self, names: Iterable[str]) -> dict[str, str]:
        """Return the names that show the same elements as an earlier one of `names`, with the first such name."""
        first: dict[tuple[Any, ...], str] = {}
        found = {}
        for name in names:
            info = self.checkpoint.info(name)
            layer = self._layers[name]
            if not info.storage or not info.nbytes or not isinstance(layer, FileLayer):
                continue
            entry = layer.entry(name)
            flags = entry.is_conjugate, entry.is_negative
            view = entry.storage_offset, info.dtype, tuple(info.shape), tuple(info.stride)
            key = (layer.path, info.storage, view, flags)
            other = first.setdefault(key, name)
            if other != name:
                found[name] = other
        return found

    def block(self, name: str, index: tuple[Any, ...]) -> torch.Tensor:
        """Return a part of a tensor."""
        if self.info(name).offset is None:  # compressed: each part would inflate the whole again
            if self._inflated[0] != name:
                self._inflated = name, self.checkpoint.get_tensor(name)
            found = self._inflated[1][index]
        else:
            found = self.checkpoint.get_slice(name)[index]
        return found.detach().resolve_conj().resolve_neg().cpu()


def compare(
    a: Side, b: Side, one: TensorInfo, other: TensorInfo, tolerance: Tolerance | None, *, brief: bool
) -> ValueDifference | None:
    """Compare two tensors of the same shape, and return how they differ. `brief` stops at the first difference."""
    if not (a.is_dense(one) and b.is_dense(other)):
        pair: Any = a.checkpoint.get_tensor(one.name), b.checkpoint.get_tensor(other.name)
        both = None if tolerance is None else _values_of(*pair)
        if both is not None:
            for each in both:
                elements.require_few_repeats(one.name, each.shape, each.stride(), each.element_size())
            tally = _Tally(one._replace(shape=both[0].shape, dtype=both[0].dtype), tolerance, brief)
            tally.add(0, *both)
            if (found := tally.difference()) is not None:
                return found
            pair = tuple((type(each), vars(each)) for each in pair)
        text = Comparison().difference(*pair)
        return ValueDifference(1, 1, None, 0, (), "", "", text) if text else None
    if one.dtype != other.dtype and not (_has_numbers(one.dtype) and _has_numbers(other.dtype)):
        text = f"{one.dtype} and {other.dtype} cannot be compared by value"
        return ValueDifference(1, 1, None, 0, (), "", "", text)
    width = _torch.element_size(one.dtype)
    for info in (one, other):
        elements.require_few_repeats(info.name, info.shape, info.stride, width)
    tally = _Tally(one, tolerance, brief)
    places = (a.place(one), b.place(other)) if one.dtype == other.dtype else (None, None)
    if places[0] is not None and places[1] is not None:
        for done, *pieces in elements.unequal_pieces(places[0], places[1], one.nbytes, one.name):
            values = (torch.frombuffer(piece, dtype=one.dtype, count=len(piece) // width) for piece in pieces)
            if tally.add(done // width, *values):
                break
    else:
        for start, index in blocks(tuple(one.shape)):
            if tally.add(start, a.block(one.name, index), b.block(other.name, index)):
                break
    return tally.difference()


def _values_of(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the values of two tensors that have them at the same places; None if they have not."""
    if any(each.is_nested or each.is_meta for each in (a, b)):
        return None
    *places, values = _places_and_values(a)
    *others, other_values = _places_and_values(b)
    same = a.layout == b.layout and len(places) == len(others) and all(map(torch.equal, places, others))
    return (values, other_values) if same and values.shape == other_values.shape else None


def _places_and_values(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.is_quantized:
        return (tensor.dequantize(),)
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return tensor.indices(), tensor.values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor.as_subclass(torch.Tensor),)


class _Tally:
    """Counts the differences of one pair of tensors."""

    def __init__(self, info: TensorInfo, tolerance: Tolerance | None, brief: bool) -> None:
        self._shape, self._total = tuple(info.shape), math.prod(info.shape)
        self._has_numbers, self._brief = _has_numbers(info.dtype), brief
        self._tolerance = tolerance if self._has_numbers else None
        self._count, self._not_finite, self._largest = 0, 0, -1.0
        self._first: tuple[int, str, str] | None = None

    def add(self, start: int, a: torch.Tensor, b: torch.Tensor) -> bool:
        """Compare two blocks, of which the first element has a number. Return whether enough is known."""
        a, b = a.reshape(-1), b.reshape(-1)
        if not self._has_numbers:
            a, b = (each.contiguous().view(_BITS[_torch.element_size(each.dtype)]) for each in (a, b))
        unequal = self._unequal(a, b)
        count = int(unequal.sum())
        if count:
            place = int(unequal.to(torch.uint8).argmax())
            if self._first is None:
                self._first = start + place, _text_of(a[place]), _text_of(b[place])
            self._count += count
            if self._has_numbers and not self._brief:
                gaps = _gap(_elements(a, unequal), _elements(b, unequal))
                finite = gaps[torch.isfinite(gaps)]
                self._not_finite += len(gaps) - len(finite)
                self._largest = max(self._largest, float(finite.max()) if len(finite) else -1.0)
        return bool(self._brief and self._count)

    def _unequal(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if self._tolerance is not None:
            if _are_integers(a, b):
                return _integers_unequal(a, b, self._tolerance)
            wide_a, wide_b = _comparable(a, b)
            return ~torch.isclose(wide_a, wide_b, self._tolerance.rtol, self._tolerance.atol, equal_nan=True)
        if a.dtype != b.dtype:
            if _are_integers(a, b):
                return _gap(a, b) != 0
            wide_a, wide_b = _comparable(a, b)
            return (wide_a != wide_b) & ~((wide_a != wide_a) & (wide_b != wide_b))
        width = _torch.element_size(a.dtype)
        bits = _BITS.get(width, torch.int64)
        pieces = width // _torch.element_size(bits)
        different = a.contiguous().view(bits) != b.contiguous().view(bits)
        return different.view(-1, pieces).any(1)

    def difference(self) -> ValueDifference | None:
        """Return what was found."""
        if self._first is None:
            return None
        number, a, b = self._first
        largest = self._largest if self._largest >= 0 else None
        where = elements.position(number, self._shape)
        return ValueDifference(self._count, self._total, largest, self._not_finite, where, a, b)


@functools.cache
def _has_numbers(dtype: torch.dtype) -> bool:
    """Return whether torch converts elements of a dtype. Of float4_e2m1fn_x2 and bits8, only bytes are compared."""
    try:
        torch.zeros(_torch.element_size(dtype), dtype=torch.uint8, device="cpu").view(dtype).to(
            torch.complex128
        )
    except (RuntimeError, TypeError):
        return False
    return True


def _elements(tensor: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return the chosen elements; of integers through a signed view, since releases exist that choose no uint64."""
    if tensor.dtype.is_complex or tensor.dtype.is_floating_point:
        return tensor[chosen]
    return tensor.contiguous().view(_BITS[_torch.element_size(tensor.dtype)])[chosen].view(tensor.dtype)


def _are_integers(a: torch.Tensor, b: torch.Tensor) -> bool:
    return not any(each.dtype.is_complex or each.dtype.is_floating_point for each in (a, b))


def _comparable(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two tensors, not both of integers, in one dtype that holds the values of both, as far as torch has one."""
    wide = torch.complex128 if a.dtype.is_complex or b.dtype.is_complex else torch.float64
    return a.to(wide), b.to(wide)


def _halves(integers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the upper and the lower 32 bits of integers: no dtype of torch holds both int64 and uint64."""
    wide = integers.to(torch.int64)  # This wraps uint64.
    upper = wide >> 32
    return upper & 0xFFFFFFFF if str(integers.dtype) == "torch.uint64" else upper, wide & 0xFFFFFFFF


def _gap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the absolute differences as float64. Those of integers are rounded only at the end."""
    if _are_integers(a, b):
        (upper_a, lower_a), (upper_b, lower_b) = _halves(a), _halves(b)
        return ((upper_a - upper_b).double() * 2.0**32 + (lower_a - lower_b).double()).abs()
    wide_a, wide_b = _comparable(a, b)
    return (wide_a - wide_b).abs()


def _integers_unequal(a: torch.Tensor, b: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    gap = _gap(a, b)
    limit = tolerance.atol + tolerance.rtol * b.double().abs()
    unequal = gap > limit
    # A gap is exact up to here. Beyond, rounding may decide where it is close to the limit: Python is exact.
    close = (gap >= 2.0**53) & ((gap - limit).abs() <= 1e-12 * gap)
    for place in close.nonzero().flatten().tolist():
        unequal[place] = not tolerance.holds(a[place].item(), b[place].item())
    return unequal


def _text_of(value: torch.Tensor) -> str:
    try:
        return repr(value.item())
    except (RuntimeError, TypeError):
        return str(value.reshape(1).view(_BITS[_torch.element_size(value.dtype)]).item())


def blocks(shape: tuple[int, ...]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield the parts of a shape in row-major order: the number of the first element, and an index."""
    if not math.prod(shape):
        return
    depth = 0  # leading dimensions of which each place is a block of its own, or several
    while depth < len(shape) - 1 and math.prod(shape[depth + 1 :]) > _BLOCK:
        depth += 1
    inner = math.prod(shape[depth + 1 :])
    step = max(1, _BLOCK // max(inner, 1))
    start = 0
    for leading in itertools.product(*map(range, shape[:depth])):
        length = shape[depth] if shape else 1
        for begin in range(0, length, step):
            yield start, (*leading, slice(begin, begin + step)) if shape else ()
            start += min(step, length - begin) * inner
