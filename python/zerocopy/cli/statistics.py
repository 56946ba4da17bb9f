"""Statistics of a tensor, computed piece by piece so that memory stays small."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from zerocopy.cli.elements import blocks, require_few_repeats

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
    flat = _stored(tensor.detach())
    require_few_repeats("the tensor", flat.shape, flat.stride(), flat.element_size())
    found = summary_of(_pieces(flat))
    edges, bins = _histogram(flat, found.minimum, found.maximum)
    return found._replace(edges=edges, bins=bins)


def summary_of(pieces: Iterable[torch.Tensor]) -> Statistics:
    """Return the statistics of dense pieces of a tensor, without a histogram."""
    elements = nan = positive = negative = zero = count = total = 0
    mean = squares = 0.0  # divided by the scale, and by its square
    scale = sys.float_info.min
    minimum: float | int | None = None
    maximum: float | int | None = None
    for piece in pieces:
        numbers = _numbers(piece)
        elements += numbers.numel()
        nan += int(numbers.isnan().sum())
        positive += int((numbers == math.inf).sum())
        negative += int((numbers == -math.inf).sum())
        zero += int((numbers == 0).sum())
        finite = numbers[numbers.isfinite()]
        if not finite.numel():
            continue
        low, high = _ends(piece, finite)
        if isinstance(low, int):
            total += _sum(piece)
        minimum = low if minimum is None else min(minimum, low)
        maximum = high if maximum is None else max(maximum, high)
        # Scaled numbers are smaller than 2, so their squares do not overflow. Division by a power of two is exact.
        before, scale = scale, math.ldexp(0.5, math.frexp(max(-low, high, scale))[1])
        mean *= before / scale
        squares *= (before / scale) * (before / scale)
        # Two pieces are joined by their means, so that large means do not drown small deviations.
        scaled = finite / scale
        size, center = scaled.numel(), float(scaled.mean())
        gap, both = center - mean, count + size
        squares += float((scaled - center).square().sum()) + gap * gap * count * size / both
        mean += gap * size / both
        count = both
    std = None
    if minimum is not None and maximum is not None:
        # Rounding must not carry a result over the largest float.
        least, most = minimum / scale, maximum / scale
        mean = min(max(mean, least), most) * scale
        std = min(math.sqrt(squares / count), (most - least) / 2) * scale
        mean = total / count if isinstance(minimum, int) else mean
    return Statistics(
        elements, nan, positive, negative, zero, minimum, maximum, mean if count else None, std, [], []
    )


def _numbers(piece: torch.Tensor) -> torch.Tensor:
    """Return the elements as float64; of complex ones the absolute values, which may be too large for their dtype."""
    if not piece.is_complex():
        return piece.double()
    parts = torch.view_as_real(piece.resolve_conj()).double()
    return torch.hypot(parts[..., 0], parts[..., 1])


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    elif tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce().values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.values()
    return tensor


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    return (tensor[index] for _, index in blocks(tuple(tensor.shape)))


def _ends(piece: torch.Tensor, finite: torch.Tensor) -> tuple[float | int, float | int]:
    """Return the smallest and the largest finite element, integers exactly."""
    if piece.is_floating_point() or piece.is_complex():
        return float(finite.min()), float(finite.max())
    wide, shift = _signed(piece)
    return int(wide.min()) + shift, int(wide.max()) + shift


def _sum(integers: torch.Tensor) -> int:
    """Return the sum of a piece exactly: the sums of the upper and of the lower halves do not overflow."""
    wide, shift = _signed(integers)
    return (int((wide >> 32).sum()) << 32) + int((wide & 0xFFFFFFFF).sum()) + shift * wide.numel()


def _signed(integers: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return integers as int64, less a number that is returned as well.

    torch has no arithmetic of uint64. Without their highest bit, as signed numbers, these keep their order.
    """
    shift = 1 << 63 if integers.dtype == getattr(torch, "uint64", None) else 0
    return (integers.view(torch.int64) ^ -shift if shift else integers.long()), shift


def _histogram(
    flat: torch.Tensor, minimum: float | int | None, maximum: float | int | None
) -> tuple[list[float], list[int]]:
    if minimum is None or maximum is None:
        return [], []
    # The distance of two finite numbers may be infinite; that of their halves is not.
    low, width = minimum / 2, (maximum / 2 - minimum / 2) / _BINS
    if not width:
        return [], []
    bins = torch.zeros(_BINS, dtype=torch.int64, device="cpu")
    for piece in _pieces(flat):
        numbers = _numbers(piece)
        places = ((numbers[numbers.isfinite()] / 2 - low) / width).long().clamp_(0, _BINS - 1)
        bins += torch.bincount(places, minlength=_BINS)
    return [*(2 * (low + width * i) for i in range(_BINS)), float(maximum)], bins.tolist()


def as_json(statistics: Statistics) -> dict[str, Any]:
    """Return statistics as ``--json`` prints them."""
    said = statistics._asdict()
    histogram = {"edges": said.pop("edges"), "counts": said.pop("bins")}
    return said | {"histogram": histogram}
