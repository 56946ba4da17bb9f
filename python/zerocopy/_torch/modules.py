"""The private or release-dependent names of torch about modules; those about loading are in ``_torch``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from zerocopy import _torch
from zerocopy._torch.private_names import private, private_or_none

if TYPE_CHECKING:
    from torch.nn.modules.module import _IncompatibleKeys  # a type only

IncompatibleKeys: TypeAlias = "_IncompatibleKeys"

EXTRA_STATE = private_or_none("torch.nn.modules.module._EXTRA_STATE_KEY_SUFFIX")


def own_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a module's own parameters and buffers by name, not its children's; a tied one under each name."""
    own = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in own.items() if tensor is not None}


def saved_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return those of :func:`own_tensors` that are entries of the module's state dict."""
    passing = module._non_persistent_buffers_set
    return {name: tensor for name, tensor in own_tensors(module).items() if name not in passing}


def named_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a module and its children, each by its first name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def is_elements(tensor: torch.Tensor) -> bool:
    """Return whether torch's own operators handle a tensor. They do not handle wrapper subclasses."""
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor consists of elements of a storage, also for torch's own operators."""
    return (
        is_elements(tensor)
        and not torch.nn.parameter.is_lazy(tensor)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
    )


def is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether dense tensors of the same shape differ in their elements only."""
    return _look(one) == _look(other)


def _look(tensor: torch.Tensor) -> tuple[Any, ...]:
    flags = tensor.is_conj(), tensor.is_neg(), tensor.is_inference()
    return tensor.device, tensor.dtype, tensor.stride(), *flags


def owns_memory(tensor: torch.Tensor) -> bool:
    """Return whether a dense tensor covers all of its storage, and no other process has that storage."""
    size = tensor.numel() * tensor.element_size()
    return _torch.untyped_of(tensor).nbytes() == size and not tensor.is_shared()


def parameter_flag(attribute: str) -> property:
    """Return the property ``_is_param`` of a class of tensors: tensors whose `attribute` is true are parameters.

    In older releases ``isinstance`` reads the property for subclasses of ``nn.Parameter`` too. The property is False
    for them, or each such tensor would be an instance of every subclass.
    """
    probe: Any = torch.empty(0, device="cpu")
    probe._is_param = True
    check: Any = type(torch.nn.Parameter).__instancecheck__
    subclasses_ask = isinstance(probe, torch.nn.UninitializedParameter)

    def flag(tensor: Any) -> bool:
        frame = sys._getframe(1)
        if subclasses_ask and frame.f_code is check.__code__:
            asking = frame.f_locals[check.__code__.co_varnames[0]]
            return getattr(tensor, attribute) and asking is torch.nn.Parameter
        return bool(getattr(tensor, attribute))

    return property(flag)


def before_loading(module: torch.nn.Module, hook: Callable[..., None]) -> Any:
    """Register ``hook(module, state_dict, prefix, ...)``. It runs right before a module takes its own entries.

    It runs after existing hooks, which may rename keys, and not for the module's children. Returns a context manager
    that removes it.
    """
    # The method of the base class: scripted modules hide their own, and run such hooks nevertheless.
    register = private("torch.nn.Module._register_load_state_dict_pre_hook")
    return register(module, hook, with_module=True)


def place_of(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return the address of a tensor's elements, then its shape and further geometry; None for other classes."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return None
    return tensor.data_ptr(), tensor.shape, *_look(tensor)
