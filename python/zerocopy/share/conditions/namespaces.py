"""Tells whether this process has changed classes or modules that a loader has as they were imported.

Programs replace methods, classes and values: other kernels, adapters, settings. A loader imports the same modules anew
and has none of that. It sends the names of the classes of a result, and digests of what the program's own modules had
when they were imported. The client compares those that it has imported itself.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import itertools
import operator
import sys
import types
from collections.abc import Iterable
from typing import Any

import torch

from zerocopy import _core, _torch
from zerocopy._native import _C
from zerocopy._torch import tensor_extras
from zerocopy.process import replacements
from zerocopy.share.conditions import program

#: Of a class ("module:qualname"): the packages that have it by its name, too, and digests of its values. Of a module
#: ("module:"): a digest of each name, and of each attribute of its classes.
Namespaces = dict[str, Any]

_SIMPLE = (str, bytes, bytearray, int, float, complex, bool, type(None))
_CACHED = (str, int, bool, type(None))
_SEQUENCES = (list, tuple, collections.deque)
_CONTAINERS = (*_SEQUENCES, set, frozenset, dict)
_MAX_PARTS = 1000  # of the description of one value
_MAX_DEPTH = 32
_MAX_BYTES = 1 << 16  # of a tensor or an array whose elements are compared
_CALLED = ("__init__", "__new__", "__call__")
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
    _add(found, "", module, module.__name__)
    return found


def _add(found: Namespaces, prefix: str, namespace: Any, module: str) -> None:
    """Add the digests of what a module, or a class of that module, has."""
    for name, value in list(vars(namespace).items()):
        if name.startswith("__") and (not prefix or name not in _CALLED):
            continue
        found[f"{prefix}{name}"] = _digest(value)
        if isinstance(value, type) and (value.__module__, value.__qualname__) == (module, f"{prefix}{name}"):
            _add(found, f"{prefix}{name}.", value, module)


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
        name: _digest(value)
        for name, value in list(vars(cls).items())
        if type(value) in kinds and not name.startswith("__")
    }


def _is_programs(function: types.FunctionType) -> bool:
    return function.__module__ == "__main__" or program.is_own(function.__code__.co_filename)


def _unpatched(value: Any) -> Any:
    return replacements.original(value) if isinstance(value, types.FunctionType) else value


def _digest(value: Any) -> str:
    return _digest_of_simple(value) if type(value) in _CACHED else _digest_of(value)


def _digest_of(value: Any) -> str:
    text = _text_of(value, _MAX_PARTS)
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()


# Most attributes of classes are a few values again and again. Types are told apart, so True is not 1.
_digest_of_simple = functools.lru_cache(maxsize=1024, typed=True)(_digest_of)


def _text_of(value: Any, room: int) -> str:
    description = _Description(room)
    description.add(value)
    return repr(description.parts)


class _Description:
    """The parts of a value that are the same in every process, as far as there is room.

    Parameters
    ----------
    room : int
        For so many parts.
    """

    def __init__(self, room: int) -> None:
        self.parts: list[object] = []
        self._room = room

    def add(self, value: Any, depth: int = 0) -> None:
        """Add a value."""
        value = _unpatched(value)
        kind = type(value)
        self.parts.append(f"{kind.__module__}.{kind.__qualname__}")
        if kind in _SIMPLE:
            # repr() refuses very long integers.
            self.parts.append(hex(value) if kind is int else repr(value))
        elif isinstance(value, _CONTAINERS):
            self._add_items(value, depth + 1)
        elif isinstance(value, (classmethod, staticmethod)):
            self.add(value.__func__, depth)
        elif isinstance(value, property):
            self._add_items((value.fget, value.fset), depth)
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, (type, types.BuiltinFunctionType)):
            self.parts.append((value.__module__, value.__qualname__))
        elif isinstance(value, types.ModuleType):
            self.parts.append(value.__name__)
        elif (settings := _settings_of(value)) is not None:
            self._add_items(settings, depth + 1)
        else:
            self.parts.append(_elements(value))

    def _add_items(self, values: Any, depth: int) -> None:
        self.parts.append(len(values))
        if depth > _MAX_DEPTH:
            return
        if isinstance(values, (set, frozenset)):  # whose order differs
            room = self._room // len(values) if values else 0
            self.parts.append(sorted(_text_of(value, room) for value in list(values)) if room else None)
            return
        items = (
            itertools.chain.from_iterable(dict.items(values)) if isinstance(values, dict) else iter(values)
        )
        for item in items:
            if len(self.parts) >= self._room:
                return
            self.add(item, depth)

    def _add_function(self, function: types.FunctionType) -> None:
        code = function.__code__
        where = function.__module__, function.__qualname__, code.co_firstlineno
        defaults = *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()
        # A function may use a list or a dict among its defaults as a cache.
        simple = [repr(value) for value in defaults if type(value) in _SIMPLE]
        self.parts.append((*where, len(code.co_code), code.co_names, simple))


def _settings_of(value: Any) -> dict[str, Any] | None:
    """Return what a namespace or a dataclass holds; None of other objects, which change while they are used."""
    if isinstance(value, types.SimpleNamespace) or type(value).__qualname__ == "Namespace":
        return getattr(value, "__dict__", None)
    fields = getattr(type(value), "__dataclass_fields__", None)
    return None if fields is None else {name: getattr(value, name, None) for name in fields}


def _elements(value: Any) -> object:
    """Return what a small tensor or array has in it; of others nothing."""
    kind = type(value)
    if kind in tensor_extras.TENSORS and value.device.type == "cpu" and value.layout is torch.strided:
        storage = _torch.untyped_of(value)
        if storage.nbytes() <= _MAX_BYTES:
            place = value.storage_offset(), tuple(value.shape), value.stride()
            return str(value.dtype), *place, _core.crc32(_torch.bytes_of(storage))
    is_array = (kind.__module__, kind.__qualname__) == ("numpy", "ndarray")
    if is_array and not value.dtype.hasobject and value.nbytes <= _MAX_BYTES:
        return value.dtype.str, value.shape, _core.crc32(value.tobytes())
    return None
