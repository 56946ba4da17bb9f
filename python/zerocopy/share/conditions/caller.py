"""The state of the calling process and thread that decides what a call returns.

State that another process can have goes into the key and to the loader. Where there is state that stays here,
`why_here` says so, and the call is not the server's.

======================================================  =============================================
default dtype and device, gradient and inference mode,
deterministic algorithms, autocast, matmul precision,
denormal numbers, engines                               `state`, set by `apply`
allowed globals, registered packages of torch           `extensions`, within `extended`
dispatch and function modes, skip_data, replaced torch
functions, a default byte order or shared mmap          `why_here`
======================================================  =============================================
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from zerocopy import _torch
from zerocopy._torch import context, safe_globals
from zerocopy.loading.objects import user_globals

State = dict[str, Any]

# Functions that libraries replace to make modules without memory.
_OF_MODULES = ("register_parameter", "register_buffer")
_OF_TORCH = ("empty", "zeros", "ones", "full")
_DENORMAL = 5e-324  # one flag of the processor decides for torch and for Python whether it counts as zero


def why_here() -> str:
    """Return why a call made now cannot be another process's, or an empty string."""
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
    if sys.flags.optimize:
        return "Python runs with -O"
    if not context.maps_privately():
        return "torch.load maps files shared"
    return context.why_load_is_special(None)


def _function_modes() -> list[Any]:
    """Return the active modes but those of torch.set_default_device, which `state` has."""
    return [mode for mode in context.function_modes() if type(mode).__name__ != "DeviceContext"]


def state() -> State:
    """Return settings of torch and Python that change results."""
    found: State = {
        "dtype": str(torch.get_default_dtype()).rpartition(".")[2],
        "device": "cpu",
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "deterministic": [
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ],
        "matmul": torch.get_float32_matmul_precision(),
        "flush denormal": _DENORMAL * 1.0 == 0.0,
        "quantized engine": torch.backends.quantized.engine,
        "mkldnn": context.uses_mkldnn(),
        "autocast": _autocast(),
        "hash seed": os.environ.get("PYTHONHASHSEED"),  # the order of a set
    }
    # To ask for the device imports the module that setting it has imported.
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


def apply(found: State) -> None:
    """Set torch as it is set in the process that `found` is from. For good: this process has no other call."""
    here = state()
    dtype = _torch.dtype(found["dtype"])
    if dtype is not None:
        torch.set_default_dtype(dtype)
    if found["device"] != here["device"]:
        torch.set_default_device(found["device"])
    if found["deterministic"] != here["deterministic"]:  # to set it takes torch 2.13 two seconds of imports
        enabled, only_warns = found["deterministic"]
        torch.use_deterministic_algorithms(enabled, warn_only=only_warns)
    if found["flush denormal"] != here["flush denormal"]:
        torch.set_flush_denormal(found["flush denormal"])
    if found["quantized engine"] != here["quantized engine"]:
        torch.backends.quantized.engine = found["quantized engine"]
    if found["mkldnn"] != here["mkldnn"]:
        torch.backends.mkldnn.set_flags(found["mkldnn"])
    if found["matmul"] != here["matmul"]:
        torch.set_float32_matmul_precision(found["matmul"])
    torch.set_grad_enabled(found["grad"])


@contextlib.contextmanager
def applied(found: State) -> Iterator[None]:
    """Have the modes within a block that only a block can have."""
    with contextlib.ExitStack() as stack:
        if found["inference"]:
            stack.enter_context(torch.inference_mode())
        if found["autocast"] is not None:
            stack.enter_context(torch.autocast("cpu", dtype=_torch.dtype(found["autocast"])))
        yield


class Extensions(NamedTuple):
    """Functions and classes that the program has added to torch's loading and zerocopy's."""

    torch_globals: list[Any]
    zerocopy_globals: list[Any]
    packages: list[Any]  # as torch.serialization.register_package takes them


def extensions() -> Extensions | None:
    """Return what the program has added to loading; None if nothing."""
    ours = [entry for entry in safe_globals.registered() if not _is_torchs(entry)]
    packages = [
        entry for entry in _torch.registered_packages() if not all(_is_torchs(item) for item in entry[1:])
    ]
    found = Extensions(sorted(ours, key=_name_of), list(user_globals.given()), packages)
    return found if any(found) else None


def torchs_globals() -> list[tuple[str, str]]:
    """Return the names of the globals that torch's own modules have allowed, which depends on which are imported."""
    return sorted(
        (entry.__module__, entry.__qualname__)
        for entry in safe_globals.registered()
        if _is_torchs(entry) and hasattr(entry, "__qualname__")
    )


@contextlib.contextmanager
def extended(added: Extensions | None, torchs: Iterable[tuple[str, str]]) -> Iterator[None]:
    """Load within a block as a process does that has added `added`."""
    safe_globals.expect(torchs)
    if added is None:
        yield
        return
    safe_globals.add(added.torch_globals)
    for entry in added.packages:
        torch.serialization.register_package(*entry)
    with user_globals.safe_globals(added.zerocopy_globals):
        yield


@functools.lru_cache(maxsize=1024)
def _is_torchs(entry: Any) -> bool:
    """Return whether torch itself added an entry: its public classes are for programs to add."""
    function = getattr(entry, "func", entry)
    module = str(getattr(function, "__module__", ""))
    return module.startswith(("torch._", "torch.distributed.", "torch.nested.", "torch.serialization"))


def _name_of(entry: Any) -> str:
    thing = entry[0] if isinstance(entry, tuple) else entry
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')} {entry!r:.200}"
