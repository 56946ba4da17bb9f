"""The table of checked functions, and the parts of their checks."""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from zerocopy import _torch
from zerocopy.errors import Error, FormatError, UnsupportedError
from zerocopy.loading.objects import user_globals

Function = Callable[..., Any]

#: By the path that a file names.
SAFE: dict[str, Function] = {}

_TORCH_RAISES = (
    RuntimeError,
    TypeError,
    ValueError,
    IndexError,
    KeyError,
    AttributeError,
    OverflowError,
    AssertionError,  # torch was built without the device
)
_MAX_ECHO = 200
_OF_META = ("Meta' backend", "meta tensor")
MAX_DIMENSIONS = 64
MANY = 2**59  # so many elements of the widest dtype have more bytes than 64 bits can count

#: dtype: range of a zero point, bytes of one item of the storage, and how many elements that holds.
QUANTIZED = {
    torch.quint8: (0, 255, 1, 1),
    torch.qint8: (-128, 127, 1, 1),
    torch.qint32: (-(2**31), 2**31 - 1, 4, 1),
    torch.quint4x2: (0, 15, 1, 2),
    torch.quint2x4: (0, 3, 1, 4),
}


def checked_version_of(path: str) -> Callable[[Function], Function]:
    """Register a checked version of a function of torch. Its errors become FormatError, or UnsupportedError."""

    def register(function: Function) -> Function:
        @functools.wraps(function)
        def checked(*args: Any) -> Any:
            try:
                return function(*args)
            except Error:
                raise
            except _TORCH_RAISES as error:
                if _is_about_meta(error):
                    raise UnsupportedError(f"checkpoint: {path}: {str(error)[:_MAX_ECHO]}") from error
                raise FormatError(f"checkpoint: {path}: {str(error)[:_MAX_ECHO]}") from error

        SAFE[path] = checked
        return checked

    return register


def _is_about_meta(error: Exception) -> bool:
    """Return whether torch failed because ``map_location="meta"`` leaves out data. Then the file may be good."""
    return isinstance(error, NotImplementedError) and any(words in str(error) for words in _OF_META)


def callee(allowed: Any) -> Callable[..., Any]:
    """Return the function to call for a global: the user's own function, or the checked version of torch's.

    A file may not call the other globals of torch's list: ``torch.Tensor(2**38)`` would allocate memory, and
    ``torch.Tensor(64)`` would return uninitialised memory.
    """
    found = _callee_or_none(allowed)
    if found is None:
        # The repr of an object may be endless.
        name = getattr(allowed, "__qualname__", None) or f"a {type(allowed).__name__}"
        raise pickle.UnpicklingError(f"checkpoint: {name} may not be called by a file")
    return found


def may_be_called(allowed: Any) -> bool:
    """Return whether :func:`callee` has something for a file to call."""
    return _callee_or_none(allowed) is not None


def _callee_or_none(allowed: Any) -> Function | None:
    if user_globals.is_users(allowed):
        return cast(Function, allowed)
    checked = checked_version(allowed)
    return cast(Function, checked) if any(checked is known for known in SAFE.values()) else None


def checked_version(function: Any) -> Any:
    """Return the checked version of a function of torch, and any other object itself.

    If a file holds such a function as a value, the value stays torch's own function.
    """
    path = f"{getattr(function, '__module__', None)}.{getattr(function, '__qualname__', None)}"
    return SAFE.get(path, function)


def require(condition: bool, what: str) -> None:
    """Raise ``FormatError`` unless `condition` holds."""
    if not condition:
        raise FormatError(f"checkpoint: {what}")


def set_attributes(target: Any, state: Any) -> None:
    """Set the attributes of a tensor or an ``OrderedDict``, as ``torch._utils._set_obj_state`` does.

    A name that the class gives a meaning to (``__class__``, ``items``) is refused: the file must not be able to
    change what the object is.
    """
    for attributes in state if isinstance(state, tuple) and len(state) == 2 else (state,):
        if attributes is None:
            continue
        require(isinstance(attributes, dict), f"the state of {type(target).__name__} is no dict")
        for name, value in attributes.items():
            if not isinstance(name, str) or not user_globals.may_be_set(type(target), name):
                shown = repr(name[:_MAX_ECHO]) if isinstance(name, str) else f"of type {type(name).__name__}"
                raise pickle.UnpicklingError(f"checkpoint: attribute {shown} of {type(target).__name__}")
            setattr(target, name, value)


def within_storage(*tensors: Any) -> None:
    """Require tensors that are not larger than their storages.

    A view repeated by a stride of 0 is a fine tensor, and terabytes as soon as a function copies or walks it.
    """
    for tensor in tensors:
        require(isinstance(tensor, torch.Tensor), f"a tensor that is a {type(tensor).__name__}")
        if tensor.layout is torch.strided and tensor.device.type == "cpu":
            require(tensor.numel() <= _torch.storage_numel(tensor), "a tensor that repeats its storage")


def require_inside(elements: int, offset: int, size: Sequence[int], stride: Sequence[int]) -> None:
    """Require that a view lies inside as many elements. Python's integers do not overflow."""
    require(len(size) == len(stride) and min((0, offset, *size, *stride)) == 0, "a tensor's negative shape")
    require(math.prod(n or 1 for n in size) < MANY, "a tensor's shape")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    require(0 in size or last < elements, f"a tensor needs element {last} of {elements}")


def are_integers(values: Any) -> bool:
    """Return whether this is a tuple of true integers."""
    return isinstance(values, tuple) and all(type(value) is int for value in values)
