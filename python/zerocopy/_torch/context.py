"""Asks which modes and defaults of torch change what a load does: private or release-dependent names."""

from __future__ import annotations

import _io
import builtins
import contextlib
import functools
import importlib.util
import mmap
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
import torch.serialization as _serialization

from zerocopy._torch.private_names import private, private_or_none

Argument = TypeVar("Argument")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_META = ("meta", torch.device("meta"))

# Asking for these defaults imports their module, which takes milliseconds. If one was set, the module is imported.
_CONFIG = "torch.utils.serialization.config"
_HAS_CONFIG = importlib.util.find_spec(_CONFIG.rpartition(".")[0]) is not None  # from 2.7 on


def _default_of_loading(name: str) -> Any:
    """Return a default of loads from a function of ``torch.serialization``; None if nobody has set it."""
    if _HAS_CONFIG and _CONFIG not in sys.modules:
        return None
    function = getattr(_serialization, name, None)
    return None if function is None else function()


def maps_privately() -> bool:
    """Return whether ``mmap=True`` means copy-on-write, which ``set_default_mmap_options`` can change."""
    return _default_of_loading("get_default_mmap_options") in (None, mmap.MAP_PRIVATE)


def maps_by_default() -> bool:
    """Return whether ``torch.utils.serialization.config`` makes ``mmap=True`` the default of ``torch.load``."""
    return bool(getattr(getattr(sys.modules.get(_CONFIG), "load", None), "mmap", False))


def why_load_is_special(map_location: Any) -> str:
    """Return the state of torch that changes what a load does, or an empty string."""
    state = private_or_none("torch.serialization._serialization_tls")
    if getattr(state, "skip_data", False):
        return "skip_data is set"
    if _dispatch_modes():
        return "a dispatch mode (fake tensors, ...) is active"
    if map_location in _META:
        return "meta tensors are wanted"
    if _default_of_loading("get_default_load_endianness") is not None:
        return "a default byte order is set"
    if builtins.open is not _io.open or hasattr(_serialization, "open"):
        return "open() is replaced"
    return ""


def uses_mkldnn() -> bool:
    """Return whether torch computes by oneDNN where it can."""
    is_enabled = private_or_none("torch._C._get_mkldnn_enabled")
    return is_enabled is None or bool(is_enabled())


def has_registration_hooks() -> bool:
    """Return whether modules, parameters or buffers are given to hooks when they are registered (2.0 and later)."""
    names = ("module", "parameter", "buffer")
    found = (getattr(torch.nn.modules.module, f"_global_{name}_registration_hooks", ()) for name in names)
    return any(found)


def why_script_is_special() -> str:
    """Return the state of torch that changes what torch.jit.load does, or an empty string."""
    return "a dispatch mode (fake tensors, ...) is active" if _dispatch_modes() else ""


def function_modes() -> list[Any]:
    """Return the active modes of ``__torch_function__``, the innermost last."""
    stack = private_or_none("torch.overrides._get_current_function_mode_stack")
    return [] if stack is None else list(stack())


def _dispatch_modes() -> int:
    number = private_or_none("torch._C._len_torch_dispatch_stack")
    return 0 if number is None else int(number())


def outside_inference_mode(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return a function that runs outside of inference mode."""

    @functools.wraps(function)
    def outside(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        # Not torch.inference_mode, which is Python: an exception of a signal handler could leave it half entered.
        guard = private("torch._C._InferenceMode")(False)
        if hasattr(guard, "__enter__"):
            with guard:
                return function(*args, **kwargs)
        try:  # 1.13: as long as it lives
            return function(*args, **kwargs)
        finally:
            del guard

    return outside


def outside_dispatch_modes(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return a function that runs outside of fake tensors, and of other modes of ``__torch_dispatch__``."""

    @functools.wraps(function)
    def outside(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if not _dispatch_modes():
            return function(*args, **kwargs)
        with without_dispatch_modes():
            return function(*args, **kwargs)

    return outside


@outside_inference_mode
def ordinarily(function: Callable[[Argument], Result], argument: Argument) -> Result:
    """Call a function outside of all modes and transforms of ``torch.func``, and return its result."""
    modes = function_modes()
    if not (modes or _has_transforms() or _dispatch_modes()):
        return function(argument)
    with contextlib.ExitStack() as stack:
        while _has_transforms():
            transforms = private("torch._C._functorch")
            stack.callback(transforms.push_dynamic_layer_stack, transforms.pop_dynamic_layer_stack())
        for _ in modes:
            stack.enter_context(private("torch.overrides._pop_mode_temporarily")())
        stack.enter_context(without_dispatch_modes())
        return function(argument)


def _has_transforms() -> bool:
    innermost = getattr(private_or_none("torch._C._functorch"), "peek_interpreter_stack", None)  # from 2.0 on
    return innermost is not None and innermost() is not None


@contextlib.contextmanager
def without_dispatch_modes() -> Iterator[None]:
    """Turn off dispatch modes (fake tensors, ...) within a block, so that functions return real tensors."""
    guard = private("torch._C._DisableTorchDispatch")()
    if hasattr(guard, "__enter__"):
        with guard:
            yield
        return
    try:  # 1.13: as long as it lives
        yield
    finally:
        del guard


@contextlib.contextmanager
def advising_device() -> Iterator[None]:
    """Name the argument `device` in errors of torch that advise to use ``torch.load`` with ``map_location``."""
    try:
        yield
    except RuntimeError as error:
        advice = re.sub(r"torch\.load with map_location(=\S+)?", 'device="cpu"', str(error))
        if error.args == (str(error),):
            error.args = (advice,)
        raise
