"""Pickle objects that do not pickle as they should.

========================================  =========================================================================
tensors with hooks, flags, attributes,
gradients                                 keep them: no release pickles all of these
tensors that autograd computed            are refused: their graph belongs to its process
views of NumPy's arrays                   keep their base: pickle copies those that are not contiguous
parameters of a class of their own        keep it: ``torch.nn.Parameter`` forgets the class (bitsandbytes)
modules with hooks of accelerate          are rebuilt with them: the forward that calls a hook is a nested function
TorchScript modules                       go through a buffer, which :func:`zerocopy.jit.load` maps
programs of torch.export                  are rebuilt from their graph's text: pickle forgets the shapes in a graph
modules of the Hugging Face hub           are imported from the folder where transformers or diffusers keeps them
optimizers                                keep hooks and replaced methods, which ``Optimizer.__getstate__`` forgets
bound methods that are attributes         are bound again: pickle would look up the method of the class
weak references                           refer to what they referred to: pickle refuses them, and copies for proxies
reentrant locks                           are new ones: dill makes one that nobody can acquire
what ``torch.compile`` has made           is refused: it is code of the process that has compiled it
========================================  =========================================================================
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from zerocopy import jit
from zerocopy._torch import programs, sparse, tensor_extras
from zerocopy.errors import UnsupportedError
from zerocopy.share.objects import by_value

_RLOCK = type(threading.RLock())
_ACCELERATE = "_hf_hook"
# Attributes that accelerate sets in a module beside the hook: nested functions that belong to the module.
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
    if type(obj) in _REFERENCES:  # first: a proxy passes for an object of the class that it refers to
        return _REFERENCES[type(obj)](obj)
    if isinstance(obj, torch.Tensor):
        return _of_tensor(obj)
    if _is_compiled(obj):
        raise UnsupportedError(
            f"{type(obj).__qualname__}: the result of torch.compile belongs to its process; "
            "share the module, and compile it where it is used"
        )
    if isinstance(obj, torch.jit.ScriptModule):
        return _of_script(obj)
    if programs.is_exported(obj):
        return programs.exported_program, programs.parts_of(obj)
    if isinstance(obj, torch.nn.Module):
        return _of_module(obj)
    if isinstance(obj, torch.optim.Optimizer):
        return _of_optimizer(obj)
    if type(obj) is _RLOCK:
        return threading.RLock, ()
    return _of_array(obj)


def _of_method(method: types.MethodType) -> Any:
    owner, name = method.__self__, method.__func__.__name__
    is_replaced = name in getattr(owner, "__dict__", ()) and not isinstance(owner, type)
    with contextlib.suppress(Exception):  # whatever an attribute raises
        if not is_replaced and getattr(owner, name) == method:
            return NotImplemented
    return _bound, (method.__func__, owner)


def _bound(function: Any, owner: Any) -> Any:
    return types.MethodType(function, owner)


def _of_weak_reference(reference: weakref.ref[Any]) -> Any:
    referent = reference()
    return (_dead_reference, ()) if referent is None else (weakref.ref, (referent,))


def _dead_reference() -> weakref.ref[Any]:
    return weakref.ref(set())


def _of_proxy(proxy: Any) -> Any:
    try:
        referent = proxy.__reduce_ex__.__self__
    except ReferenceError:
        raise UnsupportedError("a weak proxy whose object is gone cannot be shared") from None
    return weakref.proxy, (referent,)


def _of_weak_dict(items: Any) -> Any:
    """Return how a weak dict is pickled: its references are new ones, which call the dict when their object is gone."""
    return type(items), (), None, None, iter(list(items.items()))


_REFERENCES: dict[type, Callable[[Any], Any]] = {
    types.MethodType: _of_method,
    weakref.ref: _of_weak_reference,
    weakref.ProxyType: _of_proxy,
    weakref.CallableProxyType: _of_proxy,
    weakref.WeakKeyDictionary: _of_weak_dict,
    weakref.WeakValueDictionary: _of_weak_dict,
    weakref.WeakSet: lambda items: (weakref.WeakSet, (list(items),)),
}


def _of_optimizer(optimizer: torch.optim.Optimizer) -> Any:
    if type(optimizer).__getstate__ is not torch.optim.Optimizer.__getstate__:
        return NotImplemented
    return *optimizer.__reduce_ex__(4)[:2], dict(vars(optimizer))


def _is_compiled(obj: Any) -> bool:
    """Return whether ``torch.compile`` has made a module or function, or has been told to compile a module in place."""
    names = getattr(obj, "__dict__", ())
    if isinstance(obj, types.FunctionType) and by_value.is_found(obj):
        return False  # by its name: torch wraps functions of its own, too
    return (
        "_torchdynamo_orig_callable" in names
        or type(obj).__module__ == "torch._dynamo.eval_frame"
        or ("_compiled_call_impl" in names and obj._compiled_call_impl is not None)
    )


def _of_tensor(tensor: torch.Tensor) -> Any:
    extras = tensor_extras.extras_of_subclass(tensor)
    if extras is not None and extras.is_computed:
        raise UnsupportedError(
            f"a tensor that autograd computed ({tensor.grad_fn}) belongs to its process: detach() it, "
            "or compute it under torch.no_grad()"
        )
    if type(tensor) not in tensor_extras.TENSORS:
        return _of_subclass(tensor, extras)
    if extras is None:
        return _of_coalesced(tensor) if is_coalesced(tensor) else NotImplemented
    flags = tensor.requires_grad, extras.is_conj, extras.is_neg, extras.is_inference
    made_of = tensor_extras.without_extras(tensor), type(tensor), *flags
    return tensor_extras.with_flags, made_of, _state_of(extras), None, None, _set_extras


def _state_of(extras: tensor_extras.TensorExtras | None) -> tuple[Any, ...]:
    if extras is None:
        return {}, None, None, None
    return extras.attributes, extras.hooks, extras.accumulated_hooks, extras.grad


def _set_extras(tensor: torch.Tensor, state: tuple[Any, ...]) -> None:
    tensor_extras.set_extras(tensor, *state)


def _of_subclass(tensor: Any, extras: tensor_extras.TensorExtras | None) -> Any:
    cls: Any = type(tensor)
    if tensor_extras.is_elements(cls):
        made_of = cls, tensor_extras.data_of_subclass(tensor), tensor.requires_grad
        return tensor_extras.subclass_of, made_of, _state_of(extras), None, None, _set_extras
    if extras is None or not (extras.hooks or extras.accumulated_hooks or extras.grad is not None):
        return NotImplemented
    reduced = tensor.__reduce_ex__(2)
    if len(reduced) != 2:
        return NotImplemented
    return *reduced, _state_of(extras._replace(attributes={})), None, None, _set_extras


def is_coalesced(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a sparse one that is marked as coalesced, which not all releases pickle."""
    return tensor.layout is torch.sparse_coo and tensor.is_coalesced()


def _of_coalesced(tensor: torch.Tensor) -> Any:
    facts = tuple(tensor.shape), tensor.requires_grad, type(tensor)
    return _coalesced, (*sparse.parts(tensor), *facts)


def _coalesced(indices: Any, values: Any, shape: Any, requires_grad: bool, cls: type) -> Any:
    made = torch.sparse_coo_tensor(indices, values, shape, **sparse.checks(False))
    made = sparse.as_coalesced(made, True)
    return (
        torch.nn.Parameter(made, requires_grad)
        if cls is torch.nn.Parameter
        else made.requires_grad_(requires_grad)
    )


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


def _of_array(obj: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(obj, numpy.ndarray):
        return NotImplemented
    if type(obj) is numpy.ma.MaskedArray:
        mask = None if obj.mask is numpy.ma.nomask else obj.mask
        return _masked, (obj.data, mask, obj.fill_value, obj.hardmask)
    if type(obj) not in (numpy.ndarray, numpy.memmap, numpy.recarray) or obj.size == 0 or obj.dtype.hasobject:
        return NotImplemented
    if type(obj) is numpy.ndarray and (obj.flags.c_contiguous or obj.flags.f_contiguous):
        return NotImplemented
    extents = [(size - 1) * stride for size, stride in zip(obj.shape, obj.strides, strict=True)]
    before = sum(extent for extent in extents if extent < 0)
    size = sum(abs(extent) for extent in extents) + obj.itemsize
    # All bytes between the first and the last element: memory that overlaps other buffers stays one with them.
    memory = (ctypes.c_ubyte * size).from_address(obj.ctypes.data + before)
    layout = obj.dtype, obj.shape, obj.strides, -before, obj.flags.writeable
    return _array, (type(obj), pickle.PickleBuffer(memory), *layout)


def _array(
    cls: Any,
    buffer: Any,
    dtype: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    is_writeable: bool,
) -> Any:
    import numpy as np

    made: Any = np.ndarray(shape, dtype, buffer, offset, strides).view(cls)
    made.flags.writeable = is_writeable and made.flags.writeable
    return made


def _masked(data: Any, mask: Any, fill_value: Any, is_hard: bool) -> Any:
    import numpy as np

    return np.ma.MaskedArray(
        data, np.ma.nomask if mask is None else mask, fill_value=fill_value, hard_mask=is_hard, copy=False
    )


def make_importable(module: str) -> None:
    """Prepare the import of a module that a library has downloaded."""
    package = module.partition(".")[0]
    if package not in _DYNAMIC or module in sys.modules:
        return
    library = importlib.import_module(_DYNAMIC[package])
    init: Callable[[], None] = library.init_hf_modules
    init()
    importlib.invalidate_caches()  # it may have been written since
