"""One object in every container that zerocopy loads, and its leaves by the names that a checkpoint gives them."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from typing import Any

import torch
from archives import rezip
from conftest import saved_bytes

CONTAINERS: dict[str, Callable[[Any], bytes]] = {
    "zip": saved_bytes,
    "unaligned": lambda obj: rezip(saved_bytes(obj)),
    "deflated": lambda obj: rezip(saved_bytes(obj), zipfile.ZIP_DEFLATED),
    "legacy": lambda obj: saved_bytes(obj, _use_new_zipfile_serialization=False),
}


def leaves(obj: Any) -> dict[str, Any]:
    """Return the leaves of an object by their dotted names."""
    found: dict[str, Any] = {}

    def walk(value: Any, name: str, inside: list[Any]) -> None:
        if not isinstance(value, (dict, list, tuple)) or (inside and not value):
            found[_free(name, found)] = value
        elif not any(value is outer for outer in inside):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                walk(item, f"{name}.{key}" if inside else str(key), [*inside, value])

    walk(obj, "", [])
    return found


def _free(name: str, found: dict[str, Any]) -> str:
    numbers = iter(range(2, len(found) + 3))
    free = name
    while free in found:
        free = f"{name}~{next(numbers)}"
    return free


def tensors(obj: Any) -> dict[str, torch.Tensor]:
    """Return those leaves that are tensors."""
    return {name: leaf for name, leaf in leaves(obj).items() if isinstance(leaf, torch.Tensor)}
