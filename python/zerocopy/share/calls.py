"""A call as bytes: what the loader runs, and the key by which its result is found.

Arguments go by value, earlier results by what the server calls them, strings that are paths along with which file is
there. Functions go by name where they have one that the loader can import, else by value, with dill. Tensors among the
arguments are storages as in any blueprint: what lies unchanged in an earlier result, or in a file, is not copied.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import torch

from zerocopy import __version__, _torch, standins
from zerocopy.mapped import Place
from zerocopy.share import blueprints, files, publishing, sockets
from zerocopy.share.errors import ServerError
from zerocopy.share.placing import Placed, place
from zerocopy.share.references import References

_LONGEST_PATH = 4096
# What changes what a program loads. The rest of the environment goes to the loader, and is no part of the key.
# Not all of TORCH*: torch itself sets some as it goes.
_PREFIXES = (
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "DIFFUSERS_", "TORCH_HOME", "TORCH_FORCE_"),
    *("CUDA_VISIBLE_DEVICES", "XDG_CACHE_HOME", "ZEROCOPY_BACKEND"),
)


class Call(NamedTuple):
    """What is asked of the server."""

    key: str
    name: str
    files: files.Files
    depends_on_cwd: bool
    blueprint: blueprints.Blueprint
    storages: list[torch.UntypedStorage]
    placed: Placed

    def published(self, most_parts: int) -> publishing.Published:
        """Return the call as the loader reads it."""
        return publishing.write(self.blueprint, self.storages, self.placed, most_parts)


def encode(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: References) -> Call:
    """Return a call. `known` is what of its arguments the server has.

    Raises
    ------
    UnsupportedError
        If it takes dill, which is not there.
    """
    args, kwargs = _canonical(function, args, kwargs)
    notes = _Notes(known)
    storages = publishing.Storages()
    blueprint = blueprints.of(
        (function, args, sorted(kwargs.items())), storages, storages.store, naming=notes.name_of
    )
    placed = Placed([], {})
    digest = hashlib.blake2b(blueprint.pickle, digest_size=20)
    digest.update(blueprint.skeleton or b"")
    if storages.found:
        placed = place(storages.found, known.mapped(), lambda checksums: [None] * len(checksums))
        for storage, there in zip(storages.found, placed.places, strict=True):
            digest.update(_content_of(storage, there, known))
    sources = sorted({_source_of(function), *notes.sources})
    about = sources, notes.has_relative_paths and folder(), settings(), _environment()
    digest.update(repr(about).encode(errors="surrogateescape"))
    return Call(
        digest.hexdigest(),
        name_of(function),
        notes.files,
        notes.has_relative_paths,
        blueprint,
        storages.found,
        placed,
    )


def _content_of(storage: torch.UntypedStorage, there: Any, known: References) -> bytes | memoryview:
    """Return what no two storages of different bytes have in common."""
    if not isinstance(there, Place):
        return _torch.bytes_of(storage)
    what = known.origins.get(there.descriptor) or files.identity(os.fstat(there.descriptor))
    return repr((what, there.offset, storage.nbytes())).encode()


def folder() -> str:
    """Return the current folder. ``ServerError`` if there is none: nor could a loader be there."""
    try:
        return str(Path.cwd())
    except FileNotFoundError as error:
        raise ServerError("the current folder has been removed") from error


def settings() -> dict[str, str]:
    """Return what torch itself was told that changes results."""
    found = {"dtype": str(torch.get_default_dtype()).rpartition(".")[2], "device": "cpu"}
    # To ask for the device imports what setting it has imported.
    if "torch.utils._device" in sys.modules and hasattr(torch, "get_default_device"):
        found["device"] = str(torch.get_default_device())
    return found


def apply(found: dict[str, str]) -> None:
    """Tell torch what it was told elsewhere."""
    dtype = _torch.dtype(found["dtype"])
    if dtype is not None:
        torch.set_default_dtype(dtype)
    if found["device"] != "cpu":
        torch.set_default_device(found["device"])


@functools.cache
def _versions() -> tuple[Any, ...]:
    return __version__, sockets.torch_version(), sys.version_info[:3]


def _environment() -> list[Any]:
    # Looking up each variable would decode it.
    names = sorted(name for name in os.environ if name.startswith(_PREFIXES))
    return [*_versions(), *((name, os.environ.get(name)) for name in names)]


def name_of(function: Any) -> str:
    """Return what a function is called where people read it."""
    plain = function.func if isinstance(function, functools.partial) else function
    owner = getattr(plain, "__self__", None)
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{plain.__name__}"
    name = getattr(plain, "__qualname__", None) or type(plain).__qualname__
    return f"{getattr(plain, '__module__', None) or '?'}.{name}"


def _canonical(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments in the one form that calls that mean the same have."""
    plain = getattr(function, "__func__", function)
    owner = () if plain is function else (function.__self__,)
    try:
        signature = _signature(standins.original(plain))
        bound = signature.bind(*owner, *args, **kwargs)
    except (TypeError, ValueError):
        return args, kwargs
    # In front of more arguments than have names none may be left out.
    is_open = any(
        parameter.kind is parameter.VAR_POSITIONAL and name in bound.arguments
        for name, parameter in signature.parameters.items()
    )
    for name, parameter in signature.parameters.items():
        can_go = parameter.kind is parameter.KEYWORD_ONLY or (
            parameter.kind is parameter.POSITIONAL_OR_KEYWORD and not is_open
        )
        if can_go and name in bound.arguments and _is_default(bound.arguments[name], parameter.default):
            del bound.arguments[name]
    return bound.args[len(owner) :], bound.kwargs


def _is_default(value: Any, default: Any) -> bool:
    # Of other types "==" may mean anything; and 0.0 is not -0.0.
    return value is default or (
        type(value) is type(default) and type(value) in _COMPARED and repr(value) == repr(default)
    )


_COMPARED = (str, bytes, int, float, bool)


def _signature(function: Any) -> inspect.Signature:
    # Not of what others have wrapped: a wrapper may tell keywords from positions.
    return _signature_of_function(function) if type(function) is types.FunctionType else _asked(function)


def _asked(function: Any) -> inspect.Signature:
    return inspect.signature(function, follow_wrapped=False)


_signature_of_function = functools.lru_cache(maxsize=64)(_asked)  # which holds no model, as objects may


def _source_of(obj: Any) -> str:
    """Return which module a function or class is from: two programs may have different ones of one name."""
    module = sys.modules.get(getattr(obj, "__module__", None) or "")
    name = getattr(module, "__name__", "")
    # By value: whichever program it is from, it is the same.
    return "" if name in ("__main__", "__mp_main__") else str(getattr(module, "__file__", ""))


class _Notes:
    """What is found on the way through the arguments."""

    def __init__(self, known: References) -> None:
        self._known = known
        self.files: files.Files = {}
        self.has_relative_paths = False
        self.sources: set[str] = set()

    def name_of(self, obj: Any) -> Any:
        kind: Any = type(obj)
        if kind is str:
            self._note_path(obj)
            return None
        if kind is set or kind is frozenset:  # its order is another in each process
            return "set", kind is frozenset, sorted(obj, key=repr)
        if kind is types.FunctionType or isinstance(obj, type):
            self.sources.add(_source_of(obj))
            return None
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
        if not 0 < len(text) < _LONGEST_PATH or "\0" in text:
            return
        is_relative = text[0] != "/"
        absolute = f"{folder()}/{text}" if is_relative else text
        if files.note(absolute, self.files):
            self.has_relative_paths |= is_relative


def finding(resolve: Callable[[str, int], Any]) -> blueprints.Finding:
    """Return what finds the things that calls name, given what finds an earlier result by name and number."""

    def find(pid: Any) -> Any:
        kind, *about = pid
        if kind == "result":
            return resolve(*about)
        if kind == "path":
            return about[0](about[1])
        if kind == "set":
            return frozenset(about[1]) if about[0] else set(about[1])
        raise pickle.UnpicklingError(f"a call names a {kind!r}")

    return find
