"""Converts tensors when they are loaded: to another dtype, to another device."""

from __future__ import annotations

import torch

from zerocopy import _core, _torch
from zerocopy.errors import FormatError, UnsupportedError


def cast_dtype(dtype: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    """Return what becomes of a dtype where floating-point tensors are cast."""
    if wanted is None or not (dtype.is_floating_point or (dtype.is_complex and wanted.is_complex)):
        return dtype
    return wanted


def converted(tensor: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor with another dtype, on another device. Raises ``UnsupportedError`` where torch cannot."""
    if device.type == "meta" and tensor.layout is torch.strided and not tensor.is_quantized:
        # Laid out as it is, as torch.load(map_location="meta") does; some releases' to() would not.
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtype, device=device)
    if (reach := _reach(tensor, dtype)) is not None:
        elements = converted(tensor.as_strided((reach,), (1,)), dtype, device)
        return elements.as_strided(tensor.size(), tensor.stride(), 0)
    try:
        return tensor.to(device=device, dtype=dtype)
    except NotImplementedError:  # float4 in torch 2.13
        what = f"a conversion from {tensor.dtype} to {dtype}"
        raise UnsupportedError(f"PyTorch {torch.__version__} does not have {what}") from None


def _reach(tensor: torch.Tensor, dtype: torch.dtype) -> int | None:
    """Return how many elements a tensor lies on if it repeats them out of all proportion, else None.

    Such a tensor is converted with its strides. ``to()`` spreads the elements out, over terabytes if need be.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.numel() == 0:
        return None
    reach = 1 + sum((n - 1) * step for n, step in zip(tensor.size(), tensor.stride(), strict=True))
    budget = _core.Budget(reach * tensor.element_size(), "spread out")
    try:
        budget.charge(tensor.numel() * _torch.element_size(dtype))
    except FormatError:
        return reach
    return None
