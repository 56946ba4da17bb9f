"""Makes objects that the native builder cannot make, because they need torch's Python side.

Everything here is called with values from the file. Plain types are made as asked; a global of the allow-list is
called only if :mod:`zerocopy.loading.objects.allowlist` says that a file may call it.
"""

from __future__ import annotations

import collections
import importlib
import pickle
from typing import Any

import torch

from zerocopy import _torch
from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.loading.objects import rebuild, user_globals

Counter = collections.Counter
Size = torch.Size
set_attributes = rebuild.set_attributes
makes_stubs = False
tensor_over = rebuild.tensor_over
typed_storage = _torch.typed_storage


def dtype(name: str) -> torch.dtype:
    """Return ``torch.<name>``."""
    found = _torch.dtype(name)
    if found is None:
        raise UnsupportedError(f"dtype {name} is not in PyTorch {torch.__version__}; a later release has it")
    return found


def device(kind: str, index: int | None) -> torch.device:
    """Return ``torch.device(kind[, index])``."""
    try:
        return torch.device(kind) if index is None else torch.device(kind, index)
    except RuntimeError as error:
        raise FormatError(f"checkpoint: device {kind[:64]!r}: {str(error)[:200]}") from None


def parameter(data: Any, requires_grad: bool) -> torch.nn.Parameter:
    """Return ``torch.nn.Parameter(data, requires_grad)``."""
    try:
        if type(data) is torch.Tensor:
            return torch.nn.Parameter(data, requires_grad)
    except (RuntimeError, TypeError):  # which the checked version explains
        pass
    made: torch.nn.Parameter = rebuild.rebuild_parameter(data, requires_grad, None)
    return made


def native_global(module: str, name: str) -> Any:
    """Return a global of the machine's own table (``collections.OrderedDict``, ...) that is a value of the file."""
    try:
        return getattr(importlib.import_module(module.replace("__builtin__", "builtins")), name)
    except AttributeError:
        checked = rebuild.SAFE.get(f"{module}.{name}")
        if checked is not None:
            return checked
        raise UnsupportedError(f"checkpoint: {module}.{name} is not in PyTorch {torch.__version__}") from None


def call(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Return ``function(*arguments)`` if files may call it (REDUCE)."""
    return rebuild.callee(function)(*arguments)


def create(cls: Any, arguments: tuple[Any, ...]) -> Any:
    """Return ``cls.__new__(cls, *arguments)`` if files may call it (NEWOBJ)."""
    allowed: Any = rebuild.callee(cls)
    if not isinstance(allowed, type):
        raise pickle.UnpicklingError("checkpoint: a new object of a value that is not a class")
    return allowed.__new__(allowed, *arguments)


def set_state(target: Any, state: Any) -> None:
    """Set the state of an object of one of the user's classes (BUILD), as pickle does."""
    _require_own(target, "state set on")
    if hasattr(target, "__setstate__"):
        target.__setstate__(state)
        return
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if attributes:
        target.__dict__.update(attributes)
    for name, value in (slots or {}).items():
        setattr(target, name, value)


def append(target: Any, item: Any) -> None:
    """Append to an object of one of the user's classes (APPEND): a subclass of list. Pickle in C calls `extend`."""
    _require_own(target, "items appended to", list)
    target.extend([item])


def set_item(target: Any, key: Any, value: Any) -> None:
    """Set an item of an object of one of the user's classes (SETITEM): a subclass of dict."""
    _require_own(target, "items set on", dict)
    target[key] = value


def _require_own(target: Any, what: str, base: type = object) -> None:
    """Refuse to change what torch's own functions have made: tensors, layouts, ..."""
    if not isinstance(target, base) or not user_globals.is_users(type(target)):
        raise pickle.UnpicklingError(f"checkpoint: {what} a {type(target).__name__}")
