"""Statistics of a tensor, computed piece by piece so that memory stays small."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from zerocopy.cli.elements import require_few_repeats

_PIECE = 1 << 20  # elements
_BINS = 16


class Statistics(NamedTuple):
    """Statistics of the elements of a tensor; of complex elements, of their absolute values.

    Attributes
    ----------
    elements, nan, positive_infinity, negative_infinity, zero : int
        Numbers of elements.
    minimum, maximum, mean, std : float or int, or None
        Of the finite elements; None if there are none. `std` divides by the number of elements.
    edges : list of float
        Borders of the bins of the histogram; empty where all finite elements are equal.
    bins : list of int
        Finite elements in each bin.
    """

    elements: int
    nan: int
    positive_infinity: int
    negative_infinity: int
    zero: int
    minimum: float | int | None
    maximum: float | int | None
    mean: float | None
    std: float | None
    edges: list[float]
    bins: list[int]


def statistics_of(tensor: torch.Tensor) -> Statistics:
    """Return the statistics of a dense tensor of numbers, or of the stored values of a sparse one.

    Raises
    ------
    Trouble
        If the tensor repeats few bytes very often.
    """
    flat = _stored(tensor)
    require_few_repeats("the tensor", flat.shape, flat.stride(), flat.element_size())
    nan = positive = negative = zero = finite_count = 0
    mean = squares = 0.0
    minimum: float | int | None = None
    maximum: float | int | None = None
    for piece in _pieces(flat):
        numbers = piece.double()
        nan += int(numbers.isnan().sum())
        positive += int((numbers == math.inf).sum())
        negative += int((numbers == -math.inf).sum())
        zero += int((numbers == 0).sum())
        finite = numbers[numbers.isfinite()]
        if not finite.numel():
            continue
        low, high = _ends(piece, finite)
        minimum = low if minimum is None else min(minimum, low)
        maximum = high if maximum is None else max(maximum, high)
        # Two pieces are joined by their means, so that large means do not drown small deviations.
        size, center = finite.numel(), float(finite.mean())
        squares += float((finite - center).square().sum())
        squares += (center - mean) ** 2 * finite_count * size / (finite_count + size)
        mean += (center - mean) * size / (finite_count + size)
        finite_count += size
    edges, bins = _histogram(flat, minimum, maximum)
    return Statistics(
        flat.numel(), nan, positive, negative, zero, minimum, maximum,
        mean if finite_count else None,
        math.sqrt(squares / finite_count) if finite_count else None,
        edges, bins,
    )  # fmt: skip


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    elif tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce().values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.values()
    return tensor


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield all elements in pieces of one dimension; only a piece is ever copied."""
    if tensor.numel() <= _PIECE or tensor.is_contiguous():
        for piece in tensor.reshape(-1).split(_PIECE):
            yield piece.abs() if piece.is_complex() else piece
    else:
        rows = max(1, _PIECE * len(tensor) // tensor.numel())
        for part in tensor.split(rows):
            yield from _pieces(part[0] if rows == 1 else part)


def _ends(piece: torch.Tensor, finite: torch.Tensor) -> tuple[float | int, float | int]:
    """Return the smallest and the largest finite element, integers exactly."""
    if piece.is_floating_point():
        return float(finite.min()), float(finite.max())
    try:
        return int(piece.min()), int(piece.max())
    except RuntimeError:  # This release lacks the function for bool, or for unsigned integers.
        return int(finite.min()), int(finite.max())


def _histogram(
    flat: torch.Tensor, minimum: float | int | None, maximum: float | int | None
) -> tuple[list[float], list[int]]:
    if minimum is None or maximum is None:
        return [], []
    low, width = float(minimum), (float(maximum) - float(minimum)) / _BINS
    if not width or not math.isfinite(width):
        return [], []
    bins = torch.zeros(_BINS, dtype=torch.int64)
    for piece in _pieces(flat):
        numbers = piece.double()
        places = ((numbers[numbers.isfinite()] - low) / width).long().clamp_(0, _BINS - 1)
        bins += torch.bincount(places, minlength=_BINS)
    return [low + width * i for i in range(_BINS + 1)], bins.tolist()


def as_json(statistics: Statistics) -> dict[str, Any]:
    """Return statistics for programs."""
    said = statistics._asdict()
    histogram = {"edges": said.pop("edges"), "counts": said.pop("bins")}
    return said | {"histogram": histogram}
