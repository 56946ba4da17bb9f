"""Describes the classes and modules that a result depends on, as the program has them.

Programs replace methods, classes and values, for example to use other kernels, adapters or settings. A result is reused
only by programs with the same replacements. Of the program's own modules, everything is compared; of installed classes,
their values, their aliases, and what the program put there.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import itertools
import operator
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from zerocopy import _core, _torch
from zerocopy._native import _C
from zerocopy._torch import tensor_extras
from zerocopy.process import replacements
from zerocopy.share.conditions import program

#: For a class ("module:qualname"): whether packages have it by its name, digests of its values, and of what the program
#: put there. For the program's own module ("module:"): a digest of each name, and of each attribute of its classes.
#: For an installed module ("module!"): digests of what the program put there.
Namespaces = dict[str, Any]

_SIMPLE = (str, bytes, bytearray, int, float, complex, bool, type(None))
_CACHED = (str, int, bool, type(None))
_SEQUENCES = (list, tuple, collections.deque)
_CONTAINERS = (*_SEQUENCES, set, frozenset, dict)
_MAX_PARTS = 1000  # of the description of one value
_MAX_DEPTH = 32
_MAX_BYTES = 1 << 16  # of a tensor or an array whose elements are compared
_CALLED = ("__init__", "__new__", "__call__")
_MAINS = ("__main__", "__mp_main__")
_BUILTIN = ("builtins", "abc", "typing", "collections.abc")
#: Attributes of classes that count something.
_COUNTERS = ("next_id",)  # of torch.utils.hooks.RemovableHandle


def of_classes(pickles: Iterable[bytes], names: Iterable[str] = ()) -> Namespaces:
    """Return descriptions of all classes that pickles name, of their bases, and of the modules of both.

    Parameters
    ----------
    pickles : iterable of bytes
        Of the result.
    names : iterable of str
        Further modules, installed or not.
    """
    found: Namespaces = {}
    modules = set(names)
    for pickle in pickles:
        for raw_module, raw_name in _C.foreign_globals(pickle):
            module, name = _text(raw_module), _text(raw_name)
            if module.partition(".")[0] == "zerocopy":
                continue
            modules.add(module)
            value = _found(module, name)
            for cls in value.__mro__ if isinstance(value, type) else ():
                if cls.__module__ not in _BUILTIN and _found(cls.__module__, cls.__qualname__) is cls:
                    modules.add(cls.__module__)
                    found[f"{cls.__module__}:{cls.__qualname__}"] = _described(cls)
    for name in sorted(modules):
        for package in (name, *_packages(name)):
            if package in sys.modules and not is_own(package) and package not in _BUILTIN:
                found[f"{package}!"] = _of_program(sys.modules[package], is_own)
    return found


def _described(cls: type) -> list[Any]:
    aliases = [
        [package, member is cls]
        for package in _packages(cls.__module__)
        if (member := _member(package, cls.__qualname__)) is not None
    ]
    if is_own(cls.__module__):  # the module is described
        return [aliases, {}, {}]
    return [aliases, _values(cls), _of_program(cls, is_own)]


def _of_program(namespace: Any, is_own: Callable[[str], bool]) -> dict[str, str]:
    """Return digests of the functions and classes of the program that an installed module or class has."""
    names = _core.own_values(namespace, is_own)
    return {name: _digest(vars(namespace)[name]) for name in names if name[:2] != "__" or name in _CALLED}


def is_own(name: str) -> bool:
    """Return whether an imported module is the program's own. The main module is."""
    path = getattr(sys.modules.get(name), "__dict__", {}).get("__file__")
    return name in _MAINS or (isinstance(path, str) and program.is_own(path))


def of_own_modules(names: Iterable[str]) -> Namespaces:
    """Return the digests of the program's own modules among these, and of those that they use in turn."""
    seen, left, own = set[str](), [*names], set[str]()
    while left:
        name = left.pop()
        module = sys.modules.get(name)
        if name in seen or not isinstance(module, types.ModuleType):
            continue
        seen.add(name)
        if not is_own(name):
            continue
        own.add(name)
        path, package = getattr(module, "__file__", None), getattr(module, "__package__", None)
        imports = program.imports_of(path, package or "") if isinstance(path, str) else ()
        left += [*_packages(name), *imports]
        for value in list(vars(module).values()):
            used = (
                value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
            )
            if isinstance(used, str):
                left.append(used)
    # The key already contains the functions and classes of the main module, by value.
    return {f"{name}:": of_module(sys.modules[name]) for name in sorted(own.difference(_MAINS))}


def of_module(module: types.ModuleType) -> Namespaces:
    """Return a digest of each name that a module has now."""
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
    """Return the first name that stands for something else in this process, or an empty string."""
    is_own_now = functools.cache(is_own)
    for name, before in known.items():
        is_module = name.endswith("!")
        module_name, _, qualname = name.rstrip("!").partition(":")
        module = sys.modules.get(module_name)
        if module is None:
            continue
        if is_module:
            if _of_program(module, is_own_now) != before:
                return module_name
        elif not qualname:
            if _differ(of_module(module), before):
                return module_name
        elif not _is_same_class(module_name, qualname, is_own_now, *before):
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


def _packages(module: str) -> list[str]:
    parts = module.split(".")[:-1]
    return [".".join(parts[: number + 1]) for number in range(len(parts))]


def _member(package: str, name: str) -> Any:
    """Return what a package has by a name; None if it is not imported, or has not imported that name yet."""
    return vars(sys.modules[package]).get(name) if package in sys.modules else None


def _is_same_class(
    module: str,
    name: str,
    is_own: Callable[[str], bool],
    aliases: list[Any],
    values: dict[str, str],
    put_there: dict[str, str],
) -> bool:
    cls = _found(module, name)
    if not isinstance(cls, type) or (cls.__module__, cls.__qualname__) != (module, name):
        return False
    for package, is_cls in aliases:
        member = _member(package, name)
        if member is not None and (member is cls) != is_cls:
            return False
    return not _differ(_values(cls), values) and (is_own(module) or _of_program(cls, is_own) == put_there)


def _values(cls: type) -> dict[str, str]:
    """Return the digests of the attributes of a class that are values."""
    kinds = (*_SIMPLE, *_CONTAINERS)
    return {
        name: _digest(value)
        for name, value in list(vars(cls).items())
        if type(value) in kinds and not name.startswith("__") and name not in _COUNTERS
    }


def _unpatched(value: Any) -> Any:
    return replacements.original(value) if isinstance(value, types.FunctionType) else value


def _digest(value: Any) -> str:
    return _digest_of_simple(value) if type(value) in _CACHED else digest_of(value)


def digest_of(value: Any) -> str:
    """Return a digest of a value that is the same in every process."""
    text = _text_of(value, _MAX_PARTS)
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()


# Most class attributes have one of a few values. typed=True distinguishes True from 1.
_digest_of_simple = functools.lru_cache(maxsize=1024, typed=True)(digest_of)


def _text_of(value: Any, room: int) -> str:
    description = _Description(room)
    description.add(value)
    return repr(description.parts)


class _Description:
    """The parts of a value that are the same in every process, up to a number of parts.

    Parameters
    ----------
    room : int
        The most parts.
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
        if isinstance(values, (set, frozenset)):  # their order differs from process to process
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
        defaults = *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()
        # A function may use a list or a dict among its defaults as a cache.
        simple = [repr(value) for value in defaults if type(value) in _SIMPLE]
        self.parts.append((function.__module__, function.__qualname__, _code(function.__code__), simple))


@functools.lru_cache(maxsize=8192)
def _code(code: types.CodeType) -> str:
    """Return a digest of a function's code, which does not depend on its place in the file."""
    digest = hashlib.blake2b(code.co_code, digest_size=8)
    for value in code.co_consts:
        digest.update(
            _code(value).encode()
            if isinstance(value, types.CodeType)
            else _text_of(value, 100).encode(errors="surrogateescape")
        )
    digest.update(repr((code.co_names, code.co_freevars)).encode())
    return digest.hexdigest()


def _settings_of(value: Any) -> dict[str, Any] | None:
    """Return the attributes of a namespace or dataclass; None for other objects, which change while they are used."""
    if isinstance(value, types.SimpleNamespace) or type(value).__qualname__ == "Namespace":
        return getattr(value, "__dict__", None)
    fields = getattr(type(value), "__dataclass_fields__", None)
    return None if fields is None else {name: getattr(value, name, None) for name in fields}


def _elements(value: Any) -> object:
    """Return a description of the elements of a small tensor or array; None for other objects."""
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
