"""Functions of torch as placeholders see them: those that need no data, those that only read, and their arguments."""

from __future__ import annotations

import copy
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


_COPIES = frozenset([torch.Tensor.copy_, torch.ops.aten.copy_, torch.ops.aten.copy_.default])
_MODULE_LOAD = getattr(torch.Tensor, "module_load", None)  # 2.3 and later


def lent_argument(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the argument that the function only reads, and does not keep; None if there is none.

    It is the source of a copy. The destination is changed, so a lazy tensor there keeps its data.
    """
    if func in _COPIES:
        copied = args[1] if len(args) > 1 else None
    elif func is _MODULE_LOAD and func is not None:
        copied = None if kwargs.get("assign") or args[2:3] == (True,) else args[1]
    else:
        return None
    if copied is None or copied is args[0]:
        return None
    is_for_autograd = torch.is_grad_enabled() and getattr(copied, "requires_grad", False)
    return None if is_for_autograd else copied


def replaced(value: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    """Return a value with all objects of a class in it replaced; the same value if there are none."""
    if isinstance(value, kind):
        return by(value)
    if isinstance(value, (list, tuple)) and type(value) is not torch.Size:
        items = [replaced(item, kind, by) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        changed = {key: new for key, old in value.items() if (new := replaced(old, kind, by)) is not old}
        if not changed:
            return value
        copied = copy.copy(value)
        copied.update(changed)
        return copied
    if isinstance(value, slice):
        return slice(*replaced((value.start, value.stop, value.step), kind, by))
    return value
