"""Tells whether this process has changed classes or modules that a loader has as they were imported.

Programs replace methods, classes and values of libraries: other kernels, adapters, settings. A loader imports the same
modules anew and has none of that. So it sends a digest of each class of a result and of each module of the program's
own, and the client compares those that it has imported itself.
"""

from __future__ import annotations

import hashlib
import operator
import sys
import types
from collections.abc import Iterable
from typing import Any

from zerocopy import _C, standins

#: Digests by name: "module:qualname" of a class, "module:" of a module.
Digests = dict[str, str]

_SIMPLE = (str, bytes, int, float, complex, bool, type(None))
_CONTAINERS = (list, tuple, set, frozenset, dict)
_MAX_ITEMS = 64
_BUILTIN = ("builtins", "abc", "typing", "collections.abc", "_thread")


def of_classes(pickles: Iterable[bytes]) -> Digests:
    """Return the digests of all classes that pickles name."""
    found: Digests = {}
    for pickle in pickles:
        for module, name in _C.foreign_globals(pickle):
            _add(found, sys.modules.get(_text(module)), _text(name))
    return found


def of_module(module: types.ModuleType) -> str:
    """Return the digest of what a module has now."""
    names = [(name, value) for name, value in vars(module).items() if not name.startswith("__")]
    return _digest([(name, _of_member(value, module.__name__)) for name, value in names])


def changed(digests: Digests) -> str:
    """Return which of the names stands for something else in this process, or an empty string."""
    for name, digest in digests.items():
        module_name, _, qualname = name.partition(":")
        module = sys.modules.get(module_name)
        if module is None:
            continue
        if not qualname:
            if of_module(module) != digest:
                return module_name
            continue
        found: Digests = {}
        _add(found, module, qualname)
        if found.get(name) != digest:
            return f"{module_name}.{qualname}"
    return ""


def _text(name: str | bytes) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def _add(found: Digests, module: types.ModuleType | None, qualname: str) -> None:
    try:
        value = operator.attrgetter(qualname)(module)
    except AttributeError:
        return
    if not isinstance(value, type) or module is None:
        return
    bases = [_of_class(cls) for cls in value.__mro__ if cls.__module__ not in _BUILTIN]
    packages = module.__name__.split(".")[:-1]
    parents = [".".join(packages[: number + 1]) for number in range(len(packages))]
    aliases = [name for name in parents if getattr(sys.modules.get(name), qualname, None) is value]
    found[f"{module.__name__}:{qualname}"] = _digest([value.__module__, value.__qualname__, aliases, bases])


def _of_class(cls: type) -> Any:
    members = []
    for name, value in vars(cls).items():
        if name.startswith("__") and name not in ("__init__", "__new__", "__call__", "__setattr__"):
            continue
        function = getattr(value, "__func__", value)
        original = _unpatched(function)
        if original is not function and not original.__qualname__.startswith(f"{cls.__qualname__}."):
            continue  # patch_all has put it there, over a function of a base
        members.append((name, _described(original)))
    return cls.__module__, cls.__qualname__, sorted(members, key=operator.itemgetter(0))


def _of_member(value: Any, module: str) -> Any:
    is_own = isinstance(value, type) and value.__module__ == module
    return _of_class(value) if is_own else _described(value)


def _described(value: Any) -> Any:
    """Return what can be told of a value in every process."""
    value = _unpatched(value)
    if isinstance(value, (classmethod, staticmethod)):
        return _described(value.__func__)
    if isinstance(value, property):
        return [_described(function) for function in (value.fget, value.fset)]
    if isinstance(value, types.FunctionType):
        code = value.__code__
        return value.__module__, value.__qualname__, code.co_firstlineno, len(code.co_code), code.co_names
    if isinstance(value, type):
        return value.__module__, value.__qualname__
    if isinstance(value, types.ModuleType):
        return value.__name__
    return _plain(value)


def _unpatched(value: Any) -> Any:
    return standins.original(value) if isinstance(value, types.FunctionType) else value


def _plain(value: Any, depth: int = 0) -> Any:
    kind = type(value)
    if kind in _SIMPLE:
        return repr(value)
    if kind in _CONTAINERS and len(value) <= _MAX_ITEMS and depth < 3:
        items = value.items() if kind is dict else value
        described = [repr(_plain(item, depth + 1)) for item in items]
        return kind.__name__, sorted(described) if kind in (set, frozenset) else described
    return f"{kind.__module__}.{kind.__qualname__}"


def _digest(content: Any) -> str:
    return hashlib.blake2b(repr(content).encode(errors="surrogateescape"), digest_size=8).hexdigest()
