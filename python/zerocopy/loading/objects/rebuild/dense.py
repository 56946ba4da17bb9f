"""Dense tensors and parameters, where the native builder does not make them: over storages that were moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy.loading.objects.rebuild.registry import (
    QUANTIZED,
    are_integers,
    checked_version_of,
    require,
    set_attributes,
)


def tensor_over(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int],
    requires_grad: bool = False,
    conjugate: bool = False,
    negative: bool = False,
) -> torch.Tensor:
    """Return a tensor over any storage: checked natively on the CPU, by torch elsewhere."""
    if storage.device.type == "cpu":
        tensor = _C.view(storage, dtype, offset, tuple(size), tuple(stride))
    else:
        tensor = torch.empty((0,), dtype=dtype, device=storage.device)
        tensor.set_(storage, offset, tuple(size), tuple(stride))
    if conjugate:
        tensor = tensor.conj()
    if negative:
        tensor = _torch.negated(tensor)
    return tensor.requires_grad_() if requires_grad else tensor


@checked_version_of("torch._utils._rebuild_tensor")
def rebuild_tensor(storage: Any, offset: int, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """Return a tensor over a ``TypedStorage``."""
    return rebuild_tensor_v2(storage, offset, size, stride, False, None)


@checked_version_of("torch._utils._rebuild_tensor_v2")
def rebuild_tensor_v2(
    storage: Any,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int],
    requires_grad: bool,
    backward_hooks: Any,
    metadata: Any = None,
) -> torch.Tensor:
    """Return a tensor over a ``TypedStorage``, with its flags."""
    return rebuild_tensor_v3(
        storage, offset, size, stride, requires_grad, backward_hooks, storage.dtype, metadata
    )


@checked_version_of("torch._utils._rebuild_tensor_v3")
def rebuild_tensor_v3(
    storage: Any,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int],
    requires_grad: bool,
    backward_hooks: Any,
    dtype: torch.dtype,
    metadata: Any = None,
) -> torch.Tensor:
    """Return a tensor of `dtype` over a storage of bytes."""
    require(not backward_hooks, "backward hooks")
    require(isinstance(dtype, torch.dtype) and dtype not in QUANTIZED, "a dense tensor's dtype")
    require(type(offset) is int and are_integers(size) and are_integers(stride), "a tensor's shape")
    flags = metadata or {}
    require(set(flags) <= {"conj", "neg"}, "metadata other than conj and neg")
    require(all(type(flag) is bool for flag in (requires_grad, *flags.values())), "a flag that is not a bool")
    conjugate, negative = flags.get("conj", False), flags.get("neg", False)
    require(not conjugate or dtype.is_complex, f"the conjugate of {dtype}")
    untyped = _torch.untyped(storage)
    return tensor_over(untyped, dtype, offset, size, stride, requires_grad, conjugate, negative)


@checked_version_of("torch._utils._rebuild_parameter")
def rebuild_parameter(data: torch.Tensor, requires_grad: bool, backward_hooks: Any) -> torch.nn.Parameter:
    """Return a parameter."""
    require(not backward_hooks, "backward hooks")
    require(isinstance(data, torch.Tensor), "a parameter of something that is not a tensor")
    return torch.nn.Parameter(data, requires_grad)


@checked_version_of("torch._utils._rebuild_parameter_with_state")
def rebuild_parameter_with_state(
    data: torch.Tensor, requires_grad: bool, backward_hooks: Any, state: Any
) -> torch.nn.Parameter:
    """Return a parameter with Python attributes."""
    parameter: torch.nn.Parameter = rebuild_parameter(data, requires_grad, backward_hooks)
    set_attributes(parameter, state)
    return parameter
