"""Checked twins of torch's rebuild functions, for what the native builder does not make itself.

The common cases (dense tensors, parameters) are native; see csrc/pickle/rebuild.cpp. Here are the rest of
``torch/_utils.py``: sparse, quantized, nested, meta and subclassed tensors. torch trusts their arguments to degrees
that differ by release, so each is checked here, for this load alone.
"""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from zerocopy import _C, _torch
from zerocopy.errors import Error, FormatError, UnsupportedError

Function = Callable[..., Any]

#: By the path that a file names.
SAFE: dict[str, Function] = {}

_TORCH_RAISES = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError, OverflowError)
_MAX_ECHO = 200
MAX_DIMENSIONS = 64
_MANY = 2**59  # elements: of the widest dtype their bytes no longer fit 64 bits


def _twin_of(path: str) -> Callable[[Function], Function]:
    """Register the twin of torch's function `path`. What torch raises on its arguments is the file's fault."""

    def register(function: Function) -> Function:
        @functools.wraps(function)
        def checked(*args: Any) -> Any:
            try:
                return function(*args)
            except Error:
                raise
            except _TORCH_RAISES as error:
                raise FormatError(f"checkpoint: {path}: {str(error)[:_MAX_ECHO]}") from error

        SAFE[path] = checked
        return checked

    return register


def require(condition: bool, what: str) -> None:
    """Raise ``FormatError`` unless `condition` holds."""
    if not condition:
        raise FormatError(f"checkpoint: {what}")


def set_attributes(target: Any, state: Any) -> None:
    """Set the attributes of a tensor or an ``OrderedDict``, as ``torch._utils._set_obj_state`` does.

    A name that the class gives a meaning to (``__class__``, ``items``) is refused: the file must not be able to
    change what the object is.
    """
    from zerocopy import allowlist

    for attributes in state if isinstance(state, tuple) and len(state) == 2 else (state,):
        if attributes is None:
            continue
        require(isinstance(attributes, dict), f"the state of {type(target).__name__} is no dict")
        for name, value in attributes.items():
            if not isinstance(name, str) or not allowlist.may_be_set(type(target), name):
                shown = repr(name[:_MAX_ECHO]) if isinstance(name, str) else f"of type {type(name).__name__}"
                raise pickle.UnpicklingError(f"checkpoint: attribute {shown} of {type(target).__name__}")
            setattr(target, name, value)


def _within_storage(*tensors: Any) -> None:
    """Require tensors that are no larger than what they lie on.

    A view repeated by a stride of 0 is a fine tensor, and terabytes as soon as a function copies or walks it.
    """
    for tensor in tensors:
        require(isinstance(tensor, torch.Tensor), f"a tensor that is a {type(tensor).__name__}")
        if tensor.layout is torch.strided and tensor.device.type == "cpu":
            require(tensor.numel() <= _torch.storage_numel(tensor), "a tensor that repeats its storage")


def _require_inside(elements: int, offset: int, size: Sequence[int], stride: Sequence[int]) -> None:
    """Require that a view lies inside as many elements. Python's integers do not overflow."""
    require(len(size) == len(stride) and min((0, offset, *size, *stride)) == 0, "a tensor's negative shape")
    require(math.prod(n or 1 for n in size) < _MANY, "a tensor's shape")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    require(0 in size or last < elements, f"a tensor needs element {last} of {elements}")


# ----------------------------------------------------------------------------------------- dense


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
        tensor = torch._neg_view(tensor)
    return tensor.requires_grad_() if requires_grad else tensor


@_twin_of("torch._utils._rebuild_tensor")
def rebuild_tensor(storage: Any, offset: int, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """Return a tensor over a ``TypedStorage``."""
    return rebuild_tensor_v2(storage, offset, size, stride, False, None)


@_twin_of("torch._utils._rebuild_tensor_v2")
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


@_twin_of("torch._utils._rebuild_tensor_v3")
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
    require(isinstance(dtype, torch.dtype) and dtype not in _QUANTIZED, "a dense tensor's dtype")
    require(type(offset) is int and _are_integers(size) and _are_integers(stride), "a tensor's shape")
    flags = metadata or {}
    require(set(flags) <= {"conj", "neg"}, "metadata other than conj and neg")
    require(all(type(flag) is bool for flag in (requires_grad, *flags.values())), "a flag that is no bool")
    conjugate, negative = flags.get("conj", False), flags.get("neg", False)
    require(not conjugate or dtype.is_complex, f"the conjugate of {dtype}")
    untyped = _torch.untyped(storage)
    return tensor_over(untyped, dtype, offset, size, stride, requires_grad, conjugate, negative)


def _are_integers(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(value) is int for value in values)


@_twin_of("torch._utils._rebuild_parameter")
def rebuild_parameter(data: torch.Tensor, requires_grad: bool, backward_hooks: Any) -> torch.nn.Parameter:
    """Return a parameter."""
    require(not backward_hooks, "backward hooks")
    require(isinstance(data, torch.Tensor), "a parameter of something that is no tensor")
    return torch.nn.Parameter(data, requires_grad)


@_twin_of("torch._utils._rebuild_parameter_with_state")
def rebuild_parameter_with_state(
    data: torch.Tensor, requires_grad: bool, backward_hooks: Any, state: Any
) -> torch.nn.Parameter:
    """Return a parameter with Python attributes."""
    parameter: torch.nn.Parameter = rebuild_parameter(data, requires_grad, backward_hooks)
    set_attributes(parameter, state)
    return parameter


# ---------------------------------------------------------------------------------------- sparse


@_twin_of("torch.serialization._get_layout")
def get_layout(name: str) -> torch.layout:
    """Return the layout called ``"torch.sparse_coo"`` and the like."""
    layout = vars(torch).get(name.removeprefix("torch."))  # getattr would import some submodules
    require(isinstance(layout, torch.layout), f"layout {name[:64]!r}")
    return cast(torch.layout, layout)


@_twin_of("torch._utils._rebuild_sparse_tensor")
def rebuild_sparse_tensor(layout: torch.layout, data: tuple[Any, ...]) -> torch.Tensor:
    """Return a sparse tensor whose indices have been checked: out of range, they write out of bounds later."""
    # 1.13 has no such argument and always checks.
    always = not hasattr(torch.sparse, "check_sparse_tensor_invariants")
    checks: dict[str, Any] = {} if always else {"check_invariants": True}
    if layout is not torch.sparse_coo:
        compressed, plain, values, size = data
        _within_storage(compressed, plain, values)
        return torch.sparse_compressed_tensor(compressed, plain, values, size, layout=layout, **checks)
    indices, values, size, *flag = data
    require([type(coalesced) for coalesced in flag] in ([], [bool]), "whether a sparse tensor is coalesced")
    _within_storage(indices, values)
    tensor = torch.sparse_coo_tensor(indices, values, size, **checks)
    if flag == [True]:
        require(
            torch.equal(tensor.coalesce()._indices(), indices), "a sparse tensor that claims to be coalesced"
        )
    # Said or not: what has fewer than two elements is taken for coalesced otherwise.
    return tensor._coalesced_(flag[0]) if flag else tensor


# What 1.13 wrote, and later releases no longer have.
SAFE["torch._utils._rebuild_sparse_csr_tensor"] = rebuild_sparse_tensor


# ------------------------------------------------------------------------------------- quantized


@_twin_of("torch._utils._rebuild_qtensor")
def rebuild_qtensor(
    storage: Any,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int],
    quantizer: tuple[Any, ...],
    requires_grad: bool,
    backward_hooks: Any,
) -> torch.Tensor:
    """Return a quantized tensor whose scales and zero points suit it."""
    require(not backward_hooks, "backward hooks")
    lowest, highest, bytes_each, packed = _QUANTIZED[storage.dtype]
    require(
        type(offset) is int and _are_integers(size) and _are_integers(stride), "a quantized tensor's shape"
    )
    elements = _torch.untyped(storage).nbytes() // bytes_each * packed
    _require_inside(elements, offset, size, stride)
    require(math.prod(size) <= elements, "a tensor that repeats its storage")
    scheme = quantizer[0]
    if scheme is torch.per_tensor_affine:
        _, scale, zero_point = quantizer
        scales, zero_points = [scale], [zero_point]
    else:
        require(
            scheme in (torch.per_channel_affine, torch.per_channel_affine_float_qparams), "a quantizer scheme"
        )
        _, scales, zero_points, axis = quantizer
        scales, zero_points = _numbers(scales), _numbers(zero_points)
        require(isinstance(axis, int) and 0 <= axis < len(size), "a quantizer axis")
        require(len(scales) == len(zero_points) == size[axis], "scales for another number of channels")
    require(all(math.isfinite(s) and s > 0 for s in scales), "a quantizer scale that is not positive")
    if scheme is not torch.per_channel_affine_float_qparams:  # whose zero points are floats
        require(all(lowest <= z <= highest for z in zero_points), "a zero point out of range")
    return torch._utils._rebuild_qtensor(storage, offset, size, stride, quantizer, requires_grad, {})


def _numbers(values: Any) -> list[float]:
    """Return the numbers of a tensor of one dimension, or of a list. A list of lists may be endless."""
    if isinstance(values, torch.Tensor):
        _within_storage(values)
        require(values.dim() == 1, "scales of another shape")
        return cast(list[float], values.tolist())
    require(isinstance(values, (list, tuple)) and {*map(type, values)} <= {int, float}, "scales of another kind")
    return list(values)


#: dtype: range of a zero point, bytes of one item of the storage, and how many elements that holds.
_QUANTIZED = {
    torch.quint8: (0, 255, 1, 1),
    torch.qint8: (-128, 127, 1, 1),
    torch.qint32: (-(2**31), 2**31 - 1, 4, 1),
    torch.quint4x2: (0, 15, 1, 2),
    torch.quint2x4: (0, 3, 1, 4),
}


# ---------------------------------------------------------------- nested, meta, other devices, subclasses


@_twin_of("torch._utils._rebuild_nested_tensor")
def rebuild_nested_tensor(
    buffer: torch.Tensor, sizes: torch.Tensor, strides: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """Return a nested tensor whose parts lie inside its buffer."""
    # torch reads these three as memory, whatever their strides.
    plain = [sizes, strides, *(offsets,) * isinstance(offsets, torch.Tensor)]
    _within_storage(buffer, *plain)
    require(all(part.dtype is torch.int64 and part.is_contiguous() for part in plain), "a nested tensor's shapes")
    starts = offsets.tolist() if isinstance(offsets, torch.Tensor) else list(offsets)
    require(
        len(starts) == len(sizes) == len(strides) and sizes.shape == strides.shape, "a nested tensor's shapes"
    )
    for size, stride, start in zip(sizes.tolist(), strides.tolist(), starts, strict=True):
        _require_inside(buffer.numel(), start, size, stride)
    return torch._utils._rebuild_nested_tensor(buffer, sizes, strides, offsets)


@_twin_of("torch._utils._rebuild_meta_tensor_no_storage")
def rebuild_meta_tensor(
    dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], requires_grad: bool
) -> torch.Tensor:
    """Return a tensor that has a shape and no data."""
    require(
        _are_integers(size) and _are_integers(stride) and min((0, *size, *stride)) >= 0,
        "a meta tensor's shape",
    )
    require(len(size) == len(stride) <= MAX_DIMENSIONS, "a meta tensor's dimensions")
    require(math.prod(n or 1 for n in size) < _MANY, "a meta tensor's shape")
    require(sum(n * step for n, step in zip(size, stride, strict=True)) < _MANY, "a meta tensor's strides")
    return torch.empty_strided(size, stride, dtype=dtype, device="meta", requires_grad=requires_grad)


@_twin_of("torch._utils._rebuild_device_tensor_from_numpy")
def rebuild_from_numpy(data: Any, dtype: torch.dtype, device: str, requires_grad: bool) -> torch.Tensor:
    """Return a tensor of a device whose data was written as a NumPy array."""
    return torch._utils._rebuild_device_tensor_from_numpy(data, dtype, device, requires_grad)


@_twin_of("torch._utils._rebuild_device_tensor_from_cpu_tensor")
def rebuild_from_cpu_tensor(
    data: torch.Tensor, dtype: torch.dtype, device: str, requires_grad: bool
) -> torch.Tensor:
    """Return a tensor of a device whose data was written as a CPU tensor."""
    _within_storage(data)
    try:
        return data.to(device=device, dtype=dtype).requires_grad_(requires_grad)
    except (AssertionError, ImportError) as error:  # how torch says that it was built without, or looks for a package
        raise UnsupportedError(f"checkpoint: device {str(device)[:64]!r}: {str(error)[:200]}") from None


@_twin_of("torch._utils._rebuild_wrapper_subclass")
def rebuild_wrapper_subclass(cls: Any, *arguments: Any) -> torch.Tensor:
    """Return a wrapper subclass, which has a shape and, outside of what the file says, no data."""
    require(isinstance(cls, type) and issubclass(cls, torch.Tensor), "a wrapper subclass that is no tensor")
    return torch._utils._rebuild_wrapper_subclass(cls, *arguments)


@_twin_of("torch._tensor._rebuild_from_type_v2")
def rebuild_from_type_v2(
    function: Function, cls: Any, arguments: tuple[Any, ...], state: Any
) -> torch.Tensor:
    """Return an instance of a tensor subclass, or a tensor with Python attributes."""
    from zerocopy import allowlist

    require(isinstance(cls, type) and issubclass(cls, torch.Tensor), "a tensor of a class that is no tensor")
    made: torch.Tensor = allowlist.callee(function)(*arguments)
    if type(made) is not cls:
        made = made.as_subclass(cls)
    if cls.__setstate__ is not torch.Tensor.__setstate__:
        made.__setstate__(state)
    else:
        set_attributes(made, state)
    return made
