"""Digests of tensors, to the bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch


def digest(thing: Any) -> str:
    """Return a hash of the tensors in a tensor, module, or nest of dicts and sequences, and of all other leaves."""
    found = hashlib.sha256()
    for part in _parts(thing):
        found.update(part)
    return found.hexdigest()[:16]


def _parts(thing: Any) -> Iterable[bytes]:
    if isinstance(thing, torch.nn.Module):
        yield from _parts(thing.state_dict())
    elif isinstance(thing, torch.Tensor):
        yield f"{thing.dtype}{tuple(thing.shape)}".encode()
        yield thing.detach().contiguous().numpy().tobytes()
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield repr(key).encode()
            yield from _parts(value)
    elif isinstance(thing, (list, tuple)):
        yield str(len(thing)).encode()
        for value in thing:
            yield from _parts(value)
    else:
        yield repr(thing).encode()
