"""What does not pickle as it should, and how the model server has it pickled all the same.

========================================  =========================================================================
tensors with hooks, bits, attributes      keep them: no release pickles all of these
parameters of a class of their own        keep it: ``torch.nn.Parameter`` forgets the class (bitsandbytes)
modules with hooks of accelerate          are rebuilt with them: the forward that calls a hook is a nested function
TorchScript modules                       go through a buffer, which :func:`zerocopy.jit.load` maps
modules of the Hugging Face hub           are imported from the folder where transformers or diffusers keeps them
what ``torch.compile`` has made           is refused: it is code of the process that has compiled it
========================================  =========================================================================
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable
from typing import Any

import torch

from zerocopy import _torch_dress, jit
from zerocopy.errors import UnsupportedError

_ACCELERATE = "_hf_hook"
# What accelerate puts in a module beside the hook itself: all of it nested functions that belong to the module.
_WRAPPED = ("forward", "_old_forward", "to", "cuda", "npu", "xpu", "mlu", "sdaa", "musa", "neuron")

# A function that makes the package of downloaded modules importable, by the package's name.
_DYNAMIC = {
    "transformers_modules": "transformers.dynamic_module_utils",
    "diffusers_modules": "diffusers.utils.dynamic_modules_utils",
}


def reduced(obj: Any) -> Any:
    """Return how an odd object is pickled, as ``__reduce__`` says it; ``NotImplemented`` for all others.

    Raises
    ------
    zerocopy.UnsupportedError
        For what another process cannot have.
    """
    if type(obj) in _torch_dress.TENSORS:
        return _of_tensor(obj)
    if isinstance(obj, torch.nn.Parameter):
        return _of_parameter(obj)
    if _is_compiled(obj):
        raise UnsupportedError(
            f"{type(obj).__qualname__}: what torch.compile has made belongs to the process that has compiled it; "
            "share the module, and compile it where it is used"
        )
    if isinstance(obj, torch.jit.ScriptModule):
        return _of_script(obj)
    if isinstance(obj, torch.nn.Module):
        return _of_module(obj)
    return NotImplemented


def _is_compiled(obj: Any) -> bool:
    """Whether ``torch.compile`` has made a module or function, or has been told to compile a module in place."""
    names = getattr(obj, "__dict__", ())
    return (
        "_torchdynamo_orig_callable" in names
        or type(obj).__module__.startswith("torch._dynamo")
        or ("_compiled_call_impl" in names and obj._compiled_call_impl is not None)
    )


def _of_tensor(tensor: torch.Tensor) -> Any:
    dress = _torch_dress.dress_of(tensor)
    if dress is None:
        return NotImplemented
    about = type(tensor), _torch_dress.undressed(tensor), tensor.requires_grad, dress.is_conj, dress.is_neg
    state = dress.attributes, dress.hooks, dress.accumulated_hooks
    return _tensor_of, about, state, None, None, _dress


def _tensor_of(cls: Any, bare: torch.Tensor, requires_grad: bool, is_conj: bool, is_neg: bool) -> Any:
    data = _torch_dress.with_bits(bare, is_conj, is_neg)
    if cls is torch.nn.Parameter:
        return torch.nn.Parameter(data, requires_grad)
    return data.requires_grad_(requires_grad)


def _dress(tensor: torch.Tensor, state: tuple[dict[str, Any], Any, Any]) -> None:
    attributes, hooks, accumulated = state
    vars(tensor).update(attributes)
    _torch_dress.set_hooks(tensor, hooks, accumulated)


def _of_parameter(parameter: Any) -> Any:
    cls: Any = type(parameter)
    if cls.__reduce_ex__ is not torch.nn.Parameter.__reduce_ex__:
        return NotImplemented
    data = parameter.data.as_subclass(torch.Tensor)  # detached, over the same storage
    return _parameter_of, (cls, data, parameter.requires_grad), vars(parameter), None, None, _set_dict


def _parameter_of(cls: Any, data: torch.Tensor, requires_grad: bool) -> Any:
    # Not by the class's own constructor, which may convert, and would do so again.
    return torch.nn.Parameter.__new__(cls, data, requires_grad)


def _set_dict(obj: Any, state: dict[str, Any]) -> None:
    vars(obj).update(state)  # a __setstate__ of the class's own expects what its __getstate__ returns


def _of_script(module: Any) -> Any:
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return jit.load, (buffer.getbuffer(),)


def _of_module(module: Any) -> Any:
    own = getattr(vars(module).get("_old_forward"), "__func__", None)
    if _ACCELERATE not in vars(module) or own is not type(module).forward:
        return NotImplemented
    function, args, state = module.__reduce_ex__(4)[:3]
    state = {name: value for name, value in state.items() if name not in _WRAPPED}
    return function, args, state, None, None, _set_hooked


def _set_hooked(module: Any, state: dict[str, Any]) -> None:
    hooks = importlib.import_module("accelerate.hooks")
    module.__setstate__(state)
    hook = vars(module).pop(_ACCELERATE)
    hooks.add_hook_to_module(module, hooks.ModelHook())  # its own was initialized where the module was made
    setattr(module, _ACCELERATE, hook)


def make_importable(module: str) -> None:
    """See to it that a module that a library has downloaded can be imported."""
    package = module.partition(".")[0]
    if package not in _DYNAMIC or module in sys.modules:
        return
    library = importlib.import_module(_DYNAMIC[package])
    init: Callable[[], None] = library.init_hf_modules
    init()
    importlib.invalidate_caches()  # it may have been written since
