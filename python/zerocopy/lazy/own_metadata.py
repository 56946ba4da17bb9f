"""The attributes and methods that a placeholder answers without its data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def getter(name: str) -> Callable[..., Any]:
    """Return the function that torch passes to ``__torch_function__`` when an attribute is read."""
    getter: Callable[..., Any] = getattr(torch.Tensor, name).__get__
    return getter


#: Attributes of a dense tensor that need no loading. All others ask the real tensor.
METADATA: frozenset[Any] = frozenset(
    [getter(name) for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf")]
    + [getter(name) for name in ("itemsize", "nbytes") if hasattr(torch.Tensor, name)]
    + [
        torch.Tensor.size,
        torch.Tensor.stride,
        torch.Tensor.dim,
        torch.Tensor.ndimension,
        torch.Tensor.numel,
        torch.Tensor.nelement,
        torch.Tensor.element_size,
        torch.Tensor.storage_offset,
        torch.Tensor.is_contiguous,
        torch.Tensor.is_floating_point,
        torch.Tensor.is_complex,
        torch.Tensor.__len__,
        torch.numel,
        torch.is_floating_point,
        torch.is_complex,
    ]
)
#: The same for sparse, quantized and other tensors, whose strides and layout are known only after loading.
LITTLE_METADATA: frozenset[Any] = frozenset(
    [getter(name) for name in ("shape", "dtype", "device", "ndim", "requires_grad")]
    + [torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.__len__]
)
