"""What a tensor has besides the elements of its storage, which no release of torch pickles all of."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

#: The classes of tensors that are nothing but tensors.
TENSORS = (torch.Tensor, torch.nn.Parameter)


class Dress(NamedTuple):
    """What a tensor has besides the elements of its storage."""

    is_conj: bool
    is_neg: bool
    attributes: dict[str, Any]
    hooks: dict[int, Any] | None
    accumulated_hooks: dict[int, Any] | None  # of releases that have them


def dress_of(tensor: torch.Tensor) -> Dress | None:
    """Return what a tensor has besides its elements; None of most. No release pickles its hooks."""
    accumulated = getattr(tensor, "_post_accumulate_grad_hooks", None)
    found = Dress(tensor.is_conj(), tensor.is_neg(), tensor.__dict__, tensor._backward_hooks, accumulated)
    return found if any(found) else None


def undressed(tensor: torch.Tensor) -> torch.Tensor:
    """Return another tensor over the same elements, which has nothing else."""
    bare = tensor.detach()
    bare = bare.conj() if bare.is_conj() else bare
    return torch._neg_view(bare) if bare.is_neg() else bare


def with_bits(bare: torch.Tensor, is_conj: bool, is_neg: bool) -> torch.Tensor:
    """Return a tensor that has these bits and the elements of one that has none."""
    negated = torch._neg_view(bare) if is_neg else bare
    return negated.conj() if is_conj else negated


def set_hooks(tensor: torch.Tensor, hooks: Any, accumulated: Any) -> None:
    """Give a tensor the hooks of another."""
    if hooks:
        tensor._backward_hooks = hooks
    if accumulated:
        tensor._post_accumulate_grad_hooks = accumulated
