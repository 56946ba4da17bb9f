"""Compares the elements of two tensors of files, block by block."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch

from zerocopy import _torch
from zerocopy.catalogue.contents import Entry
from zerocopy.cli import elements
from zerocopy.cli.comparison import Comparison
from zerocopy.cli.elements import Tolerance, ValueDifference
from zerocopy.cli.sides import Side
from zerocopy.lazy.checkpoint import Checkpoint
from zerocopy.lazy.layer import FileLayer, Layer
from zerocopy.loading.objects import builder

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_READ_DIRECTLY = ("zip", "legacy", "safetensors", "hdf5", "pt2")


class TorchSide(Side):
    """One of two checkpoints that torch reads."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        rows = {entry.name: entry for layer in checkpoint.layers for entry in _rows(layer)}
        containers = {layer.container for layer in checkpoint.layers}
        super().__init__(rows.values(), containers, lambda: dict(checkpoint.metadata()))
        self._inflated: tuple[str | None, Any] = (None, None)  # the last compressed tensor that was read
        TorchSide.require_unchanged(self)

    def require_unchanged(self) -> None:
        """Raise ``OSError`` if a file was replaced while it was compared."""
        for layer in self.checkpoint.layers:
            layer.require_there()

    def value_difference(self, one: Any, other: Any) -> str:
        """Return how two values differ, or an empty string."""
        return Comparison().difference(one, other)

    def block(self, entry: Entry, index: tuple[Any, ...]) -> torch.Tensor:
        """Return a part of a tensor."""
        if entry.offset is None:  # compressed: each part would inflate the whole again
            if self._inflated[0] != entry.name:
                self._inflated = entry.name, self.checkpoint.get_tensor(entry.name)
            found = self._inflated[1][index]
        else:
            found = self.checkpoint.get_slice(entry.name)[index]
        return found.detach().resolve_conj().resolve_neg().cpu()

    def compare(
        self, side: Any, one: Entry, other: Entry, tolerance: Tolerance | None, *, brief: bool
    ) -> ValueDifference | None:
        """Compare two tensors of the same shape, and return how they differ. `brief` stops at the first difference."""
        if one.stride is None or other.stride is None:
            return _compare_whole(self, side, one, other, tolerance, brief)
        dtype = builder.dtype(one.dtype)
        if one.dtype != other.dtype and not (
            _has_numbers(dtype) and _has_numbers(builder.dtype(other.dtype))
        ):
            text = f"torch.{one.dtype} and torch.{other.dtype} cannot be compared by value"
            return ValueDifference(1, 1, None, 0, (), "", "", text)
        for entry in (one, other):
            require_few_repeats(entry)
        tally = _Tally(one.shape or (), dtype, tolerance, brief)
        places = (self.place(one), side.place(other)) if one.dtype == other.dtype else (None, None)
        if places[0] is not None and places[1] is not None:
            width = _torch.element_size(dtype)
            for done, *pieces in elements.unequal_pieces(places[0], places[1], one.nbytes, one.name):
                values = (torch.frombuffer(piece, dtype=dtype, count=len(piece) // width) for piece in pieces)
                if tally.add(done // width, *values):
                    break
        else:
            for start, index in elements.blocks(one.shape or ()):
                if tally.add(start, self.block(one, index), side.block(other, index)):
                    break
        return tally.difference()


def _rows(layer: Layer) -> Iterator[Entry]:
    """Yield the rows of a layer's tensors. Those that are not made of one storage have no stride."""
    for info in layer.infos():
        dtype, shape, stride = str(info.dtype).removeprefix("torch."), tuple(info.shape), tuple(info.stride)
        is_dense = bool(stride) or (not shape and bool(info.storage))
        geometry: tuple[Any, ...] = ()
        if is_dense and isinstance(layer, FileLayer):
            facts = layer.entry(info.name)
            view = facts.storage_offset, dtype, shape, stride
            geometry = (layer.path, info.storage, *view, facts.is_conjugate, facts.is_negative)
        # Other bytes are not elements: they are compressed, in another order, or of a folder's archives.
        is_plain = layer.container in _READ_DIRECTLY and layer.extents(info.name) is not None
        offset = info.offset if is_plain else None
        yield Entry(
            info.name, dtype, shape, info.nbytes, layer.path, offset, info.storage, geometry,
            stride=stride if is_dense else None, requires_grad=info.requires_grad,
        )  # fmt: skip


def require_few_repeats(entry: Entry) -> None:
    """Raise Trouble if a dense tensor repeats its bytes so often that reading its elements would take too long."""
    width = _torch.element_size(builder.dtype(entry.dtype))
    elements.require_few_repeats(entry.name, entry.shape or (), entry.stride or (), width)


def _compare_whole(
    a: TorchSide, b: TorchSide, one: Entry, other: Entry, tolerance: Tolerance | None, brief: bool
) -> ValueDifference | None:
    pair: Any = a.checkpoint.get_tensor(one.name), b.checkpoint.get_tensor(other.name)
    both = None if tolerance is None else _values_of(*pair)
    if both is not None:
        for each in both:
            elements.require_few_repeats(one.name, each.shape, each.stride(), each.element_size())
        tally = _Tally(tuple(both[0].shape), both[0].dtype, tolerance, brief)
        tally.add(0, *both)
        if (found := tally.difference()) is not None:
            return found
        pair = tuple((type(each), vars(each)) for each in pair)
    text = Comparison().difference(*pair)
    return ValueDifference(1, 1, None, 0, (), "", "", text) if text else None


def _values_of(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the values of two tensors whose indices are equal; None if layouts, indices or shapes differ."""
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

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, tolerance: Tolerance | None, brief: bool
    ) -> None:
        self._shape, self._total = shape, math.prod(shape)
        self._has_numbers, self._brief = _has_numbers(dtype), brief
        self._tolerance = tolerance if self._has_numbers else None
        self._count, self._not_finite, self._largest = 0, 0, -1.0
        self._first: tuple[int, str, str] | None = None

    def add(self, start: int, a: torch.Tensor, b: torch.Tensor) -> bool:
        """Compare two blocks that begin at element `start`. Return True if no further block is needed."""
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
        """Return the difference that was counted."""
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
