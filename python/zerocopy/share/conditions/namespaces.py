"""Tells whether this process has changed classes or modules that a loader has as they were imported.

Programs replace methods, classes and values: other kernels, adapters, settings. A loader imports the same modules anew
and has none of that. It sends the names of the classes of a result, and digests of what the program's own modules had
when they were imported. The client compares those that it has imported itself.
"""

from __future__ import annotations

import hashlib
import operator
import sys
import types
from collections.abc import Iterable
from typing import Any

from zerocopy._native import _C
from zerocopy.process import replacements
from zerocopy.share.conditions import program

#: Of a class ("module:qualname"): the packages that have it by its name, too, and digests of its values. Of a module
#: ("module:"): a digest of each name, and of each attribute of its classes.
Namespaces = dict[str, Any]

_SIMPLE = (str, bytes, int, float, complex, bool, type(None))
_CONTAINERS = (list, tuple, set, frozenset, dict)
_MAX_ITEMS = 64
_BUILTIN = ("builtins", "abc", "typing", "collections.abc")


def of_classes(pickles: Iterable[bytes]) -> Namespaces:
    """Return where all classes that pickles name, and their bases, are found, and the digests of their values."""
    found: Namespaces = {}
    for pickle in pickles:
        for raw_module, raw_name in _C.foreign_globals(pickle):
            module, name = _text(raw_module), _text(raw_name)
            value = _found(module, name)
            for cls in value.__mro__ if isinstance(value, type) else ():
                if cls.__module__ not in _BUILTIN and _found(cls.__module__, cls.__qualname__) is cls:
                    packages = _packages(cls.__module__, cls.__qualname__, cls)
                    found[f"{cls.__module__}:{cls.__qualname__}"] = [packages, _values(cls)]
    return found


def of_module(module: types.ModuleType) -> Namespaces:
    """Return the digests of what a module has now."""
    found: Namespaces = {}
    for name, value in list(vars(module).items()):
        if name.startswith("__"):
            continue
        found[name] = _digest(_described(value))
        if isinstance(value, type) and value.__module__ == module.__name__:
            for attribute, member in list(vars(value).items()):
                if not attribute.startswith("__") or attribute in ("__init__", "__new__", "__call__"):
                    found[f"{name}.{attribute}"] = _digest(_described(member))
    return found


def changed(known: Namespaces) -> str:
    """Return which of the names stands for something else in this process, or an empty string."""
    for name, before in known.items():
        module_name, _, qualname = name.partition(":")
        module = sys.modules.get(module_name)
        if module is None:
            continue
        if not qualname:
            if _differ(of_module(module), before):
                return module_name
        elif not _is_as_imported(module_name, qualname, *before):
            return f"{module_name}.{qualname}"
    return ""


def _differ(now: dict[str, str], before: dict[str, str]) -> bool:
    # New and removed names do not count as changes: libraries cache values in modules and classes.
    return any(now.get(name, digest) != digest for name, digest in before.items())


def _text(name: str | bytes) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def _found(module: str, qualname: str) -> Any:
    try:
        return operator.attrgetter(qualname)(sys.modules.get(module))
    except AttributeError:
        return None


def _packages(module: str, name: str, value: type) -> list[str]:
    parts = module.split(".")[:-1]
    packages = [".".join(parts[: number + 1]) for number in range(len(parts))]
    return [package for package in packages if _member(package, name) is value]


def _member(package: str, name: str) -> Any:
    """Return what a package has by a name; None if it is not imported, or has not imported that name yet."""
    return vars(sys.modules[package]).get(name) if package in sys.modules else None


def _is_as_imported(module: str, name: str, packages: list[str], values: dict[str, str]) -> bool:
    """Return whether a class is found by its names, with its values, and no function of the program is in it."""
    cls = _found(module, name)
    if not isinstance(cls, type) or (cls.__module__, cls.__qualname__) != (module, name):
        return False
    aliases = (_member(package, name) for package in packages)
    if any(alias is not None and alias is not cls for alias in aliases) or _differ(_values(cls), values):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or program.is_own(file):
        return True  # the module is compared
    functions = (_unpatched(getattr(member, "__func__", member)) for member in vars(cls).values())
    return not any(isinstance(each, types.FunctionType) and _is_programs(each) for each in functions)


def _values(cls: type) -> dict[str, str]:
    """Return the digests of the attributes of a class that are values."""
    kinds = (*_SIMPLE, *_CONTAINERS)
    return {
        name: _digest(_plain(value))
        for name, value in list(vars(cls).items())
        if type(value) in kinds and not name.startswith("__")
    }


def _is_programs(function: types.FunctionType) -> bool:
    return function.__module__ == "__main__" or program.is_own(function.__code__.co_filename)


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
    return replacements.original(value) if isinstance(value, types.FunctionType) else value


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
