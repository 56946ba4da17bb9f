"""Dense tensors and parameters, meta tensors, tensors of other devices, subclasses of Tensor.

The native builder makes most dense ones itself: here are those over storages that were moved.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import torch

from zerocopy import _torch
from zerocopy._native import _C
from zerocopy._torch.private_names import private
from zerocopy.loading.objects.rebuild.registry import (
    MANY,
    MAX_DIMENSIONS,
    QUANTIZED,
    Function,
    are_integers,
    callee,
    checked_version_of,
    require,
    set_attributes,
    within_storage,
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


@checked_version_of("torch._utils._rebuild_meta_tensor_no_storage")
def rebuild_meta_tensor(
    dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], requires_grad: bool
) -> torch.Tensor:
    """Return a tensor that has a shape and no data."""
    require(
        are_integers(size) and are_integers(stride) and min((0, *size, *stride)) >= 0,
        "a meta tensor's shape",
    )
    require(len(size) == len(stride) <= MAX_DIMENSIONS, "a meta tensor's dimensions")
    require(math.prod(n or 1 for n in size) < MANY, "a meta tensor's shape")
    reach = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    require((0 in size or reach < MANY) and max((0, *stride)) < 2**63, "a meta tensor's strides")
    return torch.empty_strided(size, stride, dtype=dtype, device="meta", requires_grad=requires_grad)


@checked_version_of("torch._utils._rebuild_device_tensor_from_numpy")
def rebuild_from_numpy(data: Any, dtype: torch.dtype, device: str, requires_grad: bool) -> torch.Tensor:
    """Return a tensor of a device whose data was written as a NumPy array."""
    return private("torch._utils._rebuild_device_tensor_from_numpy")(data, dtype, device, requires_grad)


@checked_version_of("torch._utils._rebuild_device_tensor_from_cpu_tensor")
def rebuild_from_cpu_tensor(
    data: torch.Tensor, dtype: torch.dtype, device: str, requires_grad: bool
) -> torch.Tensor:
    """Return a tensor of a device whose data was written as a CPU tensor."""
    within_storage(data)
    kind = torch.device(device).type
    # For a device that it lacks, torch would import a module of that name.
    here = kind in ("cpu", "meta") or kind in vars(torch) or f"torch_{kind}" in sys.modules
    require(here, f"device {kind!r} is not there")
    return data.to(device=device, dtype=dtype).requires_grad_(requires_grad)


@checked_version_of("torch._utils._rebuild_wrapper_subclass")
def rebuild_wrapper_subclass(cls: Any, *arguments: Any) -> torch.Tensor:
    """Return a wrapper subclass: a tensor with a shape, and with no data but what the file gives it."""
    require(
        isinstance(cls, type) and issubclass(cls, torch.Tensor), "a wrapper subclass that is not a tensor"
    )
    return private("torch._utils._rebuild_wrapper_subclass")(cls, *arguments)


@checked_version_of("torch._tensor._rebuild_from_type_v2")
def rebuild_from_type_v2(
    function: Function, cls: Any, arguments: tuple[Any, ...], state: Any
) -> torch.Tensor:
    """Return an instance of a tensor subclass, or a tensor with Python attributes."""
    require(
        isinstance(cls, type) and issubclass(cls, torch.Tensor), "a tensor of a class that is not a tensor's"
    )
    made: torch.Tensor = callee(function)(*arguments)
    if type(made) is not cls:
        made = made.as_subclass(cls)
    if cls.__setstate__ is not torch.Tensor.__setstate__:
        made.__setstate__(state)
    else:
        set_attributes(made, _new_attributes(made, state))
    return made


def _new_attributes(made: torch.Tensor, state: Any) -> Any:
    """Return a state without the attributes that the call has set already: all that define a jagged tensor."""
    if not isinstance(state, dict) or made.layout is not getattr(torch, "jagged", None):
        return state
    there = vars(made)
    return {
        name: value for name, value in state.items() if name not in there or not _is_same(there[name], value)
    }


def _is_same(here: Any, value: Any) -> bool:
    if isinstance(here, dict) and isinstance(value, dict):
        return here.keys() == value.keys() and all(_is_same(here[name], value[name]) for name in here)
    if isinstance(here, torch.Tensor) and isinstance(value, torch.Tensor):  # of lazy_load, a placeholder
        is_alike = (here.shape, here.dtype) == (value.shape, value.dtype)
        return is_alike and (here.numel() == 0 or here.data_ptr() == value.data_ptr())
    return here is value or (type(here) is type(value) is int and here == value)
