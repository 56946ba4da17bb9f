"""Functions and classes that another process cannot import: of ``__main__``, lambdas, nested ones.

Those of ``__main__`` take dill. The pickle is a part of a call's key, so it must be the same bytes in every process.
Unordered collections, such as sets and the globals that a function uses, are sorted.

Of functions of modules the code goes by value. The globals are the module's. The variables that a function shares with
others, its defaults and its attributes are objects of the pickle like all others: a hook that refers to its model
refers to it afterwards, too.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import io
import marshal
import operator
import sys
import threading
import types
from collections.abc import Iterable, Mapping
from typing import Any

from zerocopy.errors import UnsupportedError

SPAWNED = "__mp_main__"  # what multiprocessing calls the main module of a process that it has spawned
MAINS = ("__main__", SPAWNED)
_ATTRIBUTES = ("__module__", "__qualname__", "__doc__", "__annotations__", "__defaults__", "__kwdefaults__")
_NAMED = (types.FunctionType, type, functools._lru_cache_wrapper)
_CONSTANTS = (str, bytes, int, float, complex, type(None), type)


def reduced(obj: Any) -> Any:
    """Return how a function or class is pickled by value; NotImplemented for whatever is found by its name."""
    found = _reduced_nested(obj)
    if found is not NotImplemented or not is_nameless(obj):
        return found
    return made, (obj.__module__, obj.__qualname__, _content_of(obj))


def is_nameless(obj: Any) -> bool:
    """Return whether something is a function or class that has no name by which another process could import it."""
    if not isinstance(obj, _NAMED):
        return False
    return getattr(obj, "__module__", None) in MAINS or "<" in obj.__qualname__


def refers_to_objects(obj: Any) -> bool:
    """Return whether something without a name is a function that refers to objects of its own.

    Other parts of a result may refer to them too. Then all parts have to be in one pickle.
    """
    if type(obj) is not types.FunctionType or "<" not in obj.__qualname__ or is_nested(obj):
        return False
    referred = (*(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values(), *obj.__dict__.values())
    return bool(obj.__closure__) or not all(isinstance(value, _CONSTANTS) for value in referred)


def _content_of(obj: Any) -> bytes:
    buffer = io.BytesIO()
    pickler_class(why_nameless(obj))(buffer).dump(obj)
    return buffer.getvalue()


def why_nameless(obj: Any) -> str:
    """Return why a function or class has no name, for a message."""
    return f"{obj.__module__}.{obj.__qualname__} cannot be imported elsewhere"


def pickler_class(what: str) -> Any:
    """Return a pickler that takes functions and classes by value. ``UnsupportedError`` says what takes it."""
    return _pickler_class(required(what))


@functools.cache
def _pickler_class(dill: Any) -> Any:
    class Pickler(dill.Pickler):  # type: ignore[misc]
        def __init__(self, file: Any, **options: Any) -> None:
            super().__init__(file, protocol=5, byref=False, recurse=True, **options)
            self._used: list[Mapping[str, Any]] = []  # of each function, the globals that dill will find

        def reducer_override(self, obj: Any) -> Any:
            kind = type(obj)
            if is_nested(obj):  # a method of a class that is: it has its module's globals
                return _reduced_nested(obj)
            if isinstance(obj, _NAMED) and obj.__module__ == SPAWNED:
                obj.__module__ = "__main__"  # where it is as well; dill would send its name alone
            if kind is types.FunctionType and (is_nameless(obj) or not is_found(obj)):
                self._used.append(dill.detect.globalvars(obj, recurse=True, builtin=True))
            elif kind is types.ModuleType and obj.__name__ not in MAINS:
                # dill would send what the program's own have in them.
                return importlib.import_module, (obj.__name__,)
            elif kind is set:
                return set, (), sorted(obj, key=repr), None, None, _fill
            elif kind is frozenset:
                return frozenset, (sorted(obj, key=repr),)
            elif isinstance(obj, enum.EnumMeta) and is_nameless(obj):
                raise UnsupportedError(f"{why_nameless(obj)}: an enumeration has to be in a module")
            elif kind in _ODD:
                return _ODD[kind](obj)
            return NotImplemented

        def _batch_setitems(self, items: Any, *others: Any, **named: Any) -> None:
            found = dict(items)
            if any(_is_same(found, used) for used in self._used):
                found = dict(sorted(found.items()))
            super()._batch_setitems(found.items(), *others, **named)

    return Pickler


def _is_same(found: dict[Any, Any], used: Mapping[str, Any]) -> bool:
    return found.keys() == used.keys() and all(value is used[name] for name, value in found.items())


def _fill(target: set[Any], content: Iterable[Any]) -> None:
    target.update(content)


_ODD: dict[type, Any] = {
    # dill makes one that nobody can acquire: a cached_property of a class has one before Python 3.12.
    type(threading.RLock()): lambda _: (threading.RLock, ()),
    # dataclasses compares these by identity. The names find them again.
    type(dataclasses.MISSING): lambda _: "MISSING",
    type(dataclasses._FIELD): operator.attrgetter("name"),  # type: ignore[attr-defined]
}


# ---------------------------------------------------------------------------------- functions of modules


def _reduced_nested(obj: Any) -> Any:
    """Return how a function of a module that has no name there is pickled; ``NotImplemented`` for anything else."""
    if type(obj) is types.CellType:
        return _cell, (), _content_of_cell(obj), None, None, _set_content
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


def _content_of_cell(cell: Any) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # nothing is assigned to the variable yet
        return ()


def _set_content(cell: Any, content: tuple[Any, ...]) -> None:
    if content:
        (cell.cell_contents,) = content


# -------------------------------------------------------------------------------- at the other end


def made(module: str, name: str, content: bytes) -> Any:
    """Return it: the program's own where that has one of the name, so that instances are of the class it knows."""
    if module in MAINS and "<" not in name:
        try:
            return operator.attrgetter(name)(sys.modules["__main__"])
        except AttributeError:  # another program's
            pass
    return _made(content)


@functools.lru_cache(maxsize=256)
def _made(content: bytes) -> Any:
    # The same class for all of its instances.
    return required("a function or class was sent by value, which").loads(content)


def required(what: str) -> Any:
    """Return the module dill. ``UnsupportedError`` says what takes it, if it is not there."""
    found = dill_or_none()
    if found is None:
        raise UnsupportedError(f"{what} needs dill, which is not installed")
    return found


def dill_or_none() -> Any:
    """Return the module dill, which is optional."""
    try:
        import dill
    except ImportError:
        return None
    return dill
