"""The settings of torch and Python that decide what a call returns: conditions of its result.

Under some modes (fake tensors, skipped data, ...) results are neither stored nor reused; `why_plain` says which mode
is active.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import torch

from zerocopy import _torch
from zerocopy._torch import context, safe_globals
from zerocopy.loading.objects import user_globals
from zerocopy.share.conditions import namespaces

# Functions that libraries replace to make modules without memory.
_OF_MODULES = ("register_parameter", "register_buffer")
_OF_TORCH = ("empty", "zeros", "ones", "full")
_DENORMAL = 5e-324  # one flag of the processor decides for torch and for Python whether it counts as zero


def why_plain() -> str:
    """Return which state of this thread keeps calls from being shared, or an empty string."""
    modes = _function_modes()
    if modes:
        return f"a torch function mode is active ({type(modes[-1]).__name__})"
    for name in _OF_MODULES:
        if getattr(torch.nn.Module, name).__module__ != "torch.nn.modules.module":
            return f"torch.nn.Module.{name} is replaced"
    for name in _OF_TORCH:
        if type(getattr(torch, name)) is not types.BuiltinFunctionType:
            return f"torch.{name} is replaced"
    if context.has_registration_hooks():
        return "torch has global hooks for what modules register"
    if not context.maps_privately():
        return "torch.load maps files shared"
    return context.why_load_is_special(None)


def _function_modes() -> list[Any]:
    """Return the active modes, except those of torch.set_default_device: `state` already records the device."""
    return [mode for mode in context.function_modes() if type(mode).__name__ != "DeviceContext"]


def state() -> dict[str, Any]:
    """Return settings of torch and Python that change results."""
    found: dict[str, Any] = {
        "dtype": str(torch.get_default_dtype()).rpartition(".")[2],
        "device": "cpu",
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "flush denormal": _DENORMAL * 1.0 == 0.0,
        "quantized engine": torch.backends.quantized.engine,
        "mkldnn": context.uses_mkldnn(),
        "autocast": _autocast(),
        "optimize": sys.flags.optimize,
    }
    # Asking for the default device imports torch.utils._device. Setting a device has imported that module already,
    # so ask only then.
    if "torch.utils._device" in sys.modules and hasattr(torch, "get_default_device"):
        found["device"] = str(torch.get_default_device())
    return found


def _autocast() -> str | None:
    """Return the dtype that autocast converts to on the CPU; None where it is off."""
    if hasattr(torch, "get_autocast_dtype"):
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    else:  # before 2.4
        dtype = torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return None if dtype is None else str(dtype).rpartition(".")[2]


def extensions() -> list[Any]:
    """Return what the program has registered for loading.

    That is: safe globals of torch, safe globals of zerocopy, and handlers given to torch's ``register_package``.
    """
    ours = [entry for entry in safe_globals.registered() if not _is_torchs(entry)]
    packages = [
        entry for entry in _torch.registered_packages() if not all(_is_torchs(item) for item in entry[1:])
    ]
    return [sorted(ours, key=_name_of), list(user_globals.given()), packages]


def description() -> str:
    """Return a text that is the same for equal states."""
    added = extensions()
    return repr((state(), namespaces.digest_of(added) if any(added) else None))


@functools.lru_cache(maxsize=1024)
def _is_torchs(entry: Any) -> bool:
    """Return whether torch itself added an entry. Entries for torch's public classes count as the program's."""
    function = getattr(entry, "func", entry)
    module = str(getattr(function, "__module__", ""))
    return module.startswith(("torch._", "torch.distributed.", "torch.nested.", "torch.serialization"))


def _name_of(entry: Any) -> str:
    thing = entry[0] if isinstance(entry, tuple) else entry
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')} {entry!r:.200}"
