"""Values in containers in containers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch


def replaced(value: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    """Return a value with all in it that are of a class replaced; the same object where there are none."""
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
