"""The elements of tensors, converted and row by row, a few megabytes at once."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from zerocopy import _torch
from zerocopy.lazy.conversion import converted
from zerocopy.loading.objects import builder

_PIECE = 1 << 20  # elements
_CPU = torch.device("cpu")


def pieces(tensor: torch.Tensor, dtype: str) -> Iterator[memoryview]:
    """Yield the bytes of a tensor in a dtype."""
    wanted = builder.dtype(dtype)
    for block in _blocks(tensor.detach().cpu()):
        piece = converted(block.resolve_conj().resolve_neg().contiguous(), wanted, _CPU)
        yield elements_of(piece)


def _blocks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield parts of a tensor in row order. Each part has as many rows as fit into `_PIECE` elements."""
    if tensor.numel() <= _PIECE:
        yield tensor
    elif (rows := _PIECE * len(tensor) // tensor.numel()) > 0:
        for first in range(0, len(tensor), rows):
            yield tensor[first : first + rows]
    else:
        for row in tensor:
            yield from _blocks(row)


def elements_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor. The caller keeps the tensor alive."""
    size = _torch.element_size(tensor.dtype)
    first = int(tensor.storage_offset()) * size
    return _torch.bytes_of(_torch.untyped_of(tensor))[first : first + tensor.numel() * size]


def why_not(tensor: torch.Tensor) -> str:
    """Return why a tensor cannot be stored as just its elements in row order, or an empty string."""
    if tensor.is_quantized:
        return "quantized"
    if getattr(tensor, "is_nested", False):
        return "nested"
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    if tensor.device.type == "meta":
        return "without data"
    return "" if type(tensor) in (torch.Tensor, torch.nn.Parameter) else f"a {type(tensor).__name__}"
