"""Facts of a tensor that its storage does not hold, and that no release of torch pickles completely."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from zerocopy import _torch
from zerocopy._torch.private_names import private

#: The classes of tensors that are nothing but tensors.
TENSORS = (torch.Tensor, torch.nn.Parameter)


class TensorExtras(NamedTuple):
    """Facts of a tensor beside the elements of its storage."""

    is_conj: bool
    is_neg: bool
    attributes: dict[str, Any]
    hooks: dict[int, Any] | None
    accumulated_hooks: dict[int, Any] | None  # of releases that have them
    grad: torch.Tensor | None
    is_inference: bool
    is_computed: bool  # by autograd: it has a grad_fn


def extras_of(tensor: torch.Tensor) -> TensorExtras | None:
    """Return the extras of a tensor; None of most."""
    is_leaf = tensor.is_leaf
    found = TensorExtras(
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.__dict__,
        tensor._backward_hooks,
        getattr(tensor, "_post_accumulate_grad_hooks", None),
        tensor.grad if is_leaf else None,  # torch warns about the others
        tensor.is_inference(),
        not is_leaf,
    )
    flags = found.is_conj or found.is_neg or found.is_inference or found.is_computed
    hooks = found.hooks or found.accumulated_hooks
    return found if flags or hooks or found.attributes or found.grad is not None else None


def is_simple(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is elements of a storage and nothing else."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not tensor.is_quantized
        and not tensor.is_nested
        and not is_named(tensor)
        and extras_of(tensor) is None
    )


def extras_of_subclass(tensor: torch.Tensor) -> TensorExtras | None:
    """Return the extras of a tensor whose class may have a ``__torch_function__``: it is not asked."""
    with _torch.without_torch_function():
        return extras_of(tensor)


def data_of_subclass(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain, detached tensor over the same elements."""
    with _torch.without_torch_function():
        return tensor.data.as_subclass(torch.Tensor)


def subclass_of(cls: Any, data: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """Return a tensor of a class without calling its constructor, which may convert, and would do so again."""
    if issubclass(cls, torch.nn.Parameter):
        made: torch.Tensor = torch.nn.Parameter.__new__(cls, data, requires_grad)
        return made
    plain: torch.Tensor = private("torch.Tensor._make_subclass")(cls, data, requires_grad)
    return plain


def is_named(tensor: torch.Tensor) -> bool:
    """Return whether a dimension has a name, which no release pickles; torch 2.13 has no names any more."""
    return any(name is not None for name in getattr(tensor, "names", ()))


def is_elements(cls: Any) -> bool:
    """Return whether tensors of a class are elements of a storage, and are pickled as torch pickles tensors."""
    if issubclass(cls, torch.nn.Parameter):
        return bool(cls.__reduce_ex__ is torch.nn.Parameter.__reduce_ex__)
    own = [base for base in cls.__mro__ if base not in torch.Tensor.__mro__]
    names = ("__getstate__", "__setstate__", "__slots__", "__torch_dispatch__")
    if any(name in vars(base) for base in own for name in names):
        return False
    return bool(cls.__reduce_ex__ is torch.Tensor.__reduce_ex__)


def without_extras(tensor: torch.Tensor) -> torch.Tensor:
    """Return another tensor over the same elements that has no extras."""
    bare = tensor.detach()
    bare = bare.conj() if bare.is_conj() else bare
    bare = _torch.negated(bare) if bare.is_neg() else bare
    return _made_anew(bare, is_inference=False) if bare.is_inference() else bare


def with_flags(
    bare: torch.Tensor, cls: type, requires_grad: bool, is_conj: bool, is_neg: bool, is_inference: bool
) -> torch.Tensor:
    """Return a tensor or parameter that has these flags, and the elements of a tensor that has none."""
    with torch.inference_mode(is_inference):
        data = _made_anew(bare, is_inference) if is_inference else bare
        data = _torch.negated(data) if is_neg else data
        data = data.conj() if is_conj else data
        if cls is torch.nn.Parameter:
            return torch.nn.Parameter(data, requires_grad)
        return data.requires_grad_(requires_grad)


def _made_anew(tensor: torch.Tensor, is_inference: bool) -> torch.Tensor:
    """Return a tensor over the same elements, made inside or outside of inference mode."""
    with torch.inference_mode(is_inference):
        if tensor.layout is not torch.strided or tensor.is_quantized:
            return tensor.clone()
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        storage = _torch.untyped_of(tensor)
        return made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def set_extras(
    tensor: torch.Tensor, attributes: dict[str, Any], hooks: Any, accumulated: Any, grad: torch.Tensor | None
) -> None:
    """Set attributes, hooks and gradient of a tensor, as another tensor has them."""
    vars(tensor).update(attributes)
    if hooks:
        tensor._backward_hooks = hooks
    if accumulated:
        tensor._post_accumulate_grad_hooks = accumulated
    if grad is not None:
        tensor.grad = grad
