"""The key of a call: its function, its arguments, and the releases of Python, torch and zerocopy.

Arguments go by value, earlier results by their entries, strings that are relative paths along with the current folder.
Functions go by name where they have one that another process can import, else by value, with dill.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import types
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import torch

from zerocopy._native import _C
from zerocopy._version import __version__
from zerocopy.errors import UnsupportedError
from zerocopy.saving.mapped_files import FileExtent
from zerocopy.share import call_options
from zerocopy.share.cache.entries import name_of_entry
from zerocopy.share.conditions import file_identity, generators
from zerocopy.share.earlier import References
from zerocopy.share.objects import by_value, fingerprint, publish, serialized
from zerocopy.share.objects.places import Span, place

_MAX_PATH_LENGTH = 4096
_OF_PROCESS = ("/proc/self/", "/proc/thread-self/", "/dev/fd/", "/dev/std")


class Call(NamedTuple):
    """Facts of a call before it is made.

    Attributes
    ----------
    key : str
        Equal for calls that give the same result where the same conditions hold.
    name : str
        The function, for people.
    paths : list of str
        Paths that its arguments name.
    modules : set of str
        Modules of its function and of its arguments.
    """

    key: str
    name: str
    paths: list[str]
    modules: set[str]


def encode(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: References) -> Call:
    """Return a call.

    Parameters
    ----------
    function, args, kwargs
        The call.
    known : References
        Finds the earlier results among its arguments.

    Raises
    ------
    UnsupportedError
        If an argument belongs to this process, or takes dill, which is not there.
    """
    whole = function, args, list(kwargs.items())
    notes, storages, content = _serialized(whole, known)
    if known.arguments and _has_part_of_result([*args, *kwargs.values()], storages, known):
        known.name_none()
        notes, storages, content = _serialized(whole, known)
    digest = hashlib.blake2b(content.pickle, digest_size=20)
    digest.update(content.skeleton or b"")
    if storages.found:
        placed = place(storages.found, known.mapped())
        digest.update(repr((placed.seats, placed.sizes, storages.first)).encode())
        for span, there in zip(placed.spans, placed.places, strict=True):
            digest.update(_content_of(span, there))
    circumstances = (
        notes.has_relative_paths and folder(),
        generators.digest(generators.states()) if call_options.current().generators else None,
        _releases(),
    )
    digest.update(repr(circumstances).encode(errors="surrogateescape"))
    names = _C.foreign_globals(content.skeleton) if content.skeleton else []
    modules = {os.fsdecode(module) for module, _ in names}
    return Call(digest.hexdigest(), name_of(function), notes.paths, modules)


def _serialized(
    whole: tuple[Any, ...], known: References
) -> tuple[_Notes, publish.Storages, serialized.SerializedObject]:
    notes, storages = _Notes(known), publish.Storages()
    return notes, storages, serialized.of(whole, storages, storages.store, naming=notes.name_of)


def _has_part_of_result(values: list[Any], storages: publish.Storages, known: References) -> bool:
    """Return whether something that goes by value is also a part of an earlier result, which goes by its name.

    The function would get it twice.
    """
    others = [value for value in mutable(values) if all(value is not result for result in known.arguments)]
    return bool(others) and any(
        fingerprint.has_any(result, others, storages.found) for result in known.arguments
    )


def why_plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return why a call with these arguments may change this process, or an empty string."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, types.FunctionType) and by_value.is_nameless(value):
            code = value.__code__
            if code.co_freevars or code.co_names:
                return f"its argument {value.__qualname__} may change what it refers to"
    return ""


def _content_of(span: Span, there: FileExtent | None) -> bytes | memoryview:
    """Return a description that no two spans of different bytes have in common."""
    if there is None:
        return span.content()
    path = os.readlink(f"/proc/self/fd/{there.descriptor}")
    source = name_of_entry(path) or file_identity.identity(os.fstat(there.descriptor))
    return repr((source, there.offset, span.size)).encode()


def folder() -> str:
    """Return the current folder. ``UnsupportedError`` if there is none."""
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise UnsupportedError("the current folder has been removed") from error


def _releases() -> tuple[Any, ...]:
    return __version__, torch.__version__, sys.version_info[:3], sys.executable, sys.prefix


def name_of(function: Any) -> str:
    """Return what a function is called where people read it."""
    plain = function.func if isinstance(function, functools.partial) else function
    owner = getattr(plain, "__self__", None)
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{plain.__name__}"
    name = getattr(plain, "__qualname__", None) or type(plain).__qualname__
    return f"{getattr(plain, '__module__', None) or '?'}.{name}"


_IMMUTABLE = (
    *(str, bytes, int, float, complex, bool, type(None), type, os.PathLike),
    *(types.FunctionType, torch.dtype, torch.device),
)


def mutable(values: Iterable[Any]) -> list[Any]:
    """Return the arguments that a call may change, or give back."""
    return [value for value in values if not isinstance(value, _IMMUTABLE)]


class _Notes:
    """Findings on the way through the arguments."""

    def __init__(self, known: References) -> None:
        self._known = known
        self.paths: list[str] = []
        self.has_relative_paths = False

    def name_of(self, obj: Any) -> Any:
        kind: Any = type(obj)
        if kind is str:
            self._note_path(obj)
            return None
        if kind is set or kind is frozenset:  # its order is another in each process
            return "set", kind is frozenset, sorted(obj, key=repr)
        if kind is os.DirEntry:  # which pickle refuses
            return "path", Path, obj.path
        if isinstance(obj, PurePath) and kind.__reduce__ is PurePath.__reduce__:  # which is in pieces
            return "path", kind, os.fspath(obj)
        if isinstance(obj, os.PathLike):
            self._note_path(os.fsdecode(obj))
            return None
        known = self._known.name_of(obj)
        return None if known is None else ("result", *known)

    def _note_path(self, text: str) -> None:
        if not 0 < len(text) < _MAX_PATH_LENGTH or "\0" in text:
            return
        if text.startswith(_OF_PROCESS):
            raise UnsupportedError(f"{text} is a different file in each process")
        is_relative = text[0] != "/"
        absolute = f"{folder()}/{text}" if is_relative else text
        if os.path.exists(absolute):
            self.paths.append(absolute)
            self.has_relative_paths |= is_relative
