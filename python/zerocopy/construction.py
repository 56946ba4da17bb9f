"""What the native builder asks of Python: the objects that only torch's Python side can make.

Everything here is called with values from the file. Plain types are made as asked; a global of the allow-list is
called only if :mod:`zerocopy.allowlist` says that a file may call it.
"""

from __future__ import annotations

import collections
import importlib
import pickle
from typing import Any

import torch

from zerocopy import _torch, allowlist, rebuild
from zerocopy.errors import FormatError, UnsupportedError

Counter = collections.Counter
Parameter = torch.nn.Parameter
Size = torch.Size
set_attributes = rebuild.set_attributes
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


def native_global(module: str, name: str) -> Any:
    """Return a global of the machine's own table (``collections.OrderedDict``, ...) that is a value of the file."""
    twin = rebuild.SAFE.get(f"{module}.{name}")
    if twin is not None:
        return twin
    return getattr(importlib.import_module(module.replace("__builtin__", "builtins")), name)


def call(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Return ``function(*arguments)`` if files may call it (REDUCE)."""
    return allowlist.callee(function)(*arguments)


def create(cls: Any, arguments: tuple[Any, ...]) -> Any:
    """Return ``cls.__new__(cls, *arguments)`` if files may call it (NEWOBJ)."""
    allowed: Any = allowlist.callee(cls)
    return allowed.__new__(allowed, *arguments)


def set_state(target: Any, state: Any) -> None:
    """Give an object of an allowed class its state (BUILD), as pickle does."""
    if hasattr(target, "__setstate__"):
        target.__setstate__(state)
        return
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if attributes:
        target.__dict__.update(attributes)
    for name, value in (slots or {}).items():
        setattr(target, name, value)


def append(target: Any, item: Any) -> None:
    """Append to an object of an allowed class (APPEND): a subclass of list."""
    if not isinstance(target, list):
        raise pickle.UnpicklingError(f"checkpoint: items appended to a {type(target).__name__}")
    target.append(item)


def set_item(target: Any, key: Any, value: Any) -> None:
    """Set an item of an object of an allowed class (SETITEM): a subclass of dict."""
    if not isinstance(target, dict):
        raise pickle.UnpicklingError(f"checkpoint: items set on a {type(target).__name__}")
    target[key] = value
