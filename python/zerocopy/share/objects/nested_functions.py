"""Pickles functions of modules that have no name by which another process could import them.

They are defined within functions, or another function has their name (``functools.wraps``). The code goes by value.
The globals are the module's. The variables that a function shares with others, its defaults and its attributes are
objects of the pickle like all others: a hook that refers to its model refers to it afterwards, too.
"""

from __future__ import annotations

import functools
import marshal
import operator
import sys
import types
from typing import Any

SPAWNED = "__mp_main__"  # what multiprocessing calls the main module of a process that it has spawned
MAINS = ("__main__", SPAWNED)
_ATTRIBUTES = ("__module__", "__qualname__", "__doc__", "__annotations__", "__defaults__", "__kwdefaults__")


def reduced(obj: Any) -> Any:
    """Return how such a function is pickled, as ``__reduce__`` says it; ``NotImplemented`` for anything else."""
    if type(obj) is types.CellType:
        return _cell, (), _content_of(obj), None, None, _set_content
    if not is_nested(obj):
        return NotImplemented
    if isinstance(obj, functools._lru_cache_wrapper):
        return _cached, (obj.__wrapped__, obj.cache_parameters())
    made_of = obj.__globals__["__name__"], marshal.dumps(obj.__code__), obj.__name__, obj.__closure__
    state = {name: getattr(obj, name) for name in _ATTRIBUTES}, obj.__dict__
    return _function, made_of, state, None, None, _set_state


def is_nested(obj: Any) -> bool:
    """Return whether something is a function of a module that can be imported, and has no name there."""
    if isinstance(obj, functools._lru_cache_wrapper):
        return not is_found(obj) and is_nested(obj.__wrapped__)
    if type(obj) is not types.FunctionType or is_found(obj):
        return False
    # Not its __module__, which functools.wraps sets to that of another function, as the other names.
    name = obj.__globals__.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) and name not in MAINS else None
    return vars(module) is obj.__globals__ if isinstance(module, types.ModuleType) else False


def is_found(function: Any) -> bool:
    """Return whether a function can be found by its name."""
    try:
        found = operator.attrgetter(function.__qualname__)(sys.modules.get(function.__module__))
    except (AttributeError, TypeError):  # the latter: its module has no name
        return False
    return found is function


def _function(module: str, code: bytes, name: str, closure: Any) -> Any:
    __import__(module)
    return types.FunctionType(marshal.loads(code), vars(sys.modules[module]), name, None, closure)


def _set_state(function: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    attributes, others = state
    for name, value in attributes.items():
        setattr(function, name, value)
    function.__dict__.update(others)


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _cell() -> Any:
    return types.CellType()


def _content_of(cell: Any) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # nothing is assigned to the variable yet
        return ()


def _set_content(cell: Any, content: tuple[Any, ...]) -> None:
    if content:
        (cell.cell_contents,) = content
