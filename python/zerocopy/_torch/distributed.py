"""Names of ``torch.distributed`` that not every release has, or that are private."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterable
from typing import Any

import torch

FIRST_RELEASE = "PyTorch 2.3"


def checkpoint_module() -> Any | None:
    """Return ``torch.distributed.checkpoint`` if its ``save`` takes a path (2.3 and later); else None."""
    if not torch.distributed.is_available():
        return None
    try:
        found = importlib.import_module("torch.distributed.checkpoint")
    except ImportError:
        return None
    if not hasattr(found, "save"):
        return None
    return found if "checkpoint_id" in inspect.signature(found.save).parameters else None


@functools.cache
def dtensor_class() -> Any | None:
    """Return DTensor, which has been public since 2.5; None if this release does not have the class."""
    for name in ("torch.distributed.tensor", "torch.distributed._tensor"):
        try:
            return importlib.import_module(name).DTensor
        except (ImportError, AttributeError):
            continue
    return None


def local_type(tensor: Any) -> type:
    """Return the class of the local tensor of a DTensor, without a call that autograd would see."""
    return type(tensor._local_tensor)


def flattened(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[str | int, ...]]]:
    """Return a nested state as ``torch.distributed.checkpoint`` flattens it, and the path of each name."""
    nested = importlib.import_module("torch.distributed.checkpoint._nested_dict")
    found: tuple[dict[str, Any], dict[str, tuple[str | int, ...]]] = nested.flatten_state_dict(state)
    return found


def set_element(state: dict[str, Any], path: tuple[str | int, ...], value: Any) -> None:
    """Set a value in nested dicts and lists. Missing containers are made."""
    traverse = importlib.import_module("torch.distributed.checkpoint._traverse")
    traverse.set_element(state, path, value)


def note_writes(tensors: Iterable[torch.Tensor]) -> None:
    """Increase the versions of tensors that were written to without torch, so that autograd notices."""
    graph: Any = torch.autograd.graph
    if hasattr(graph, "increment_version"):
        for tensor in tensors:  # some releases take neither a list nor a tensor without a version
            if not tensor.is_inference():
                graph.increment_version(tensor)
        return
    for tensor in tensors:
        if tensor.layout is torch.strided and not tensor.is_quantized:
            # The view has no elements: nothing is written, but the version of the tensor increases.
            with torch.no_grad():
                tensor.detach().as_strided((0,), (1,)).zero_()
