"""The globals that ``torch.serialization.add_safe_globals`` was given, by torch itself or by the program."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import serialization

from zerocopy._torch.private_names import private

#: Globals that ``import torch`` itself registers as safe.
REGISTERED_BY_TORCH = frozenset(
    {
        "torch.nested._internal.nested_tensor.NestedTensor",
        "torch.nested._internal.nested_tensor._rebuild_njt",
    }
)
_DTENSOR = "torch.distributed.tensor"
# The layouts of a device mesh are useful once the program has imported DTensor.
_OF_DTENSOR = frozenset(
    {"torch.distributed._mesh_layout._FlatLayout", "torch.distributed._mesh_layout._MeshLayout"}
)

# Paths of globals that torch registers when it imports certain modules, which have not been imported here.
_awaited: dict[str, tuple[str, str]] = {}

_STACK = "traceback.StackSummary"


def registered() -> list[Any]:
    """Return torch's list: classes and functions, or pairs of these and a path; nothing before 2.4."""
    get = getattr(serialization, "get_safe_globals", None)
    return list(get()) if get else []


def named(entries: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the path that a file may use, and the object, of each entry of such a list."""
    for entry in entries:
        if isinstance(entry, tuple):
            yield entry[1], entry[0]
        else:
            yield f"{entry.__module__}.{entry.__qualname__}", entry


def of_program() -> Iterator[tuple[str, Any]]:
    """Yield the path and the object of globals that the program gave to ``torch.serialization.add_safe_globals``."""
    own = REGISTERED_BY_TORCH
    if _DTENSOR not in sys.modules:
        own |= _OF_DTENSOR
    entries = dict(named(registered()))
    if _STACK in entries:
        own |= {path for path, allowed in entries.items() if _is_of_object_collectives(path, allowed)}
    return ((path, allowed) for path, allowed in entries.items() if path not in own)


def _is_of_object_collectives(path: str, allowed: Any) -> bool:
    """Return whether torch 2.14 and later register this global, to send exceptions between ranks."""
    is_exception = isinstance(allowed, type) and issubclass(allowed, BaseException)
    return path.startswith("traceback.") or (is_exception and path.startswith("builtins."))


def of_torch() -> dict[str, Any]:
    """Return the path and the object of what torch has registered itself."""
    return {path: allowed for path, allowed in named(registered()) if path in REGISTERED_BY_TORCH}


def awaited_import(path: str) -> str | None:
    """Return the module of torch that allows a global as soon as the program imports it; None if there is none."""
    is_of_dtensor = path.startswith(f"{_DTENSOR}.") or path == "torch.distributed.device_mesh.DeviceMesh"
    return _DTENSOR if is_of_dtensor and _DTENSOR not in sys.modules and registered() else None


def add(found: list[Any]) -> None:
    """Allow globals as ``torch.serialization.add_safe_globals`` does, for good; nothing before 2.4."""
    add_safe_globals = getattr(serialization, "add_safe_globals", None)
    if add_safe_globals and found:
        add_safe_globals(found)


def expect(names: Iterable[tuple[str, str]]) -> None:
    """Allow globals of torch, given as module and name, from the time when a file first names one of them.

    Their modules may take a second to import, so this is left to :func:`import_awaited`.
    """
    here = dict(named(registered()))
    _awaited.update({f"{module}.{name}": (module, name) for module, name in names})
    for path in here.keys() & _awaited.keys():
        del _awaited[path]


def import_awaited(paths: Iterable[str]) -> bool:
    """Import and allow all expected globals if `paths` has one of them. Return whether that was so."""
    return not _awaited.keys().isdisjoint(paths) and import_all_awaited()


def import_all_awaited() -> bool:
    """Import and allow all expected globals. Return whether there were any."""
    names = list(_awaited.values())
    _awaited.clear()
    for module, name in names:
        try:
            add([getattr(importlib.import_module(module), name)])
        except (ImportError, AttributeError):  # the client has other modules
            continue
    return bool(names)


def jagged_tensor(arguments: dict[str, Any]) -> torch.Tensor:
    """Return ``NestedTensor(**arguments)``, of checked arguments."""
    made: torch.Tensor = private("torch.nested._internal.nested_tensor.NestedTensor")(**arguments)
    return made
