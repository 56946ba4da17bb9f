"""A call as bytes: what the loader runs, and the key by which its result is found.

Arguments go by value, earlier results by what they are called here, strings that are paths along with which file is
there. Functions go by name where they have one that the loader can import, else by value, with dill.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import os
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from zerocopy import __version__, _torch
from zerocopy.errors import UnsupportedError
from zerocopy.share import files, quirks, sockets

_LONGEST_PATH = 4096
# What changes what a program loads. The rest of the environment goes to the loader, and is no part of the key.
_PREFIXES = (
    "HF_",
    "TRANSFORMERS_",
    "DIFFUSERS_",
    "TORCH",
    "PYTORCH_",
    "CUDA_",
    "ZEROCOPY_BACKEND",
    "HUGGINGFACE_",
)
# What C pickle refuses with when it cannot take a thing by name, or not at all.
_REFUSALS = (pickle.PicklingError, AttributeError, TypeError, UnsupportedError)

#: Returns the key of an earlier result, or None for any other object.
Reference = Callable[[Any], str | None]


class Call(NamedTuple):
    """What is asked of the server."""

    key: str
    blob: bytes
    name: str
    cwd: str | None  # the folder that it depends on, or none
    files: files.Files


def encode(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reference: Reference) -> Call:
    """Return a call as bytes.

    Raises
    ------
    UnsupportedError
        If it takes dill, which is not there.
    """
    args, kwargs = _canonical(function, args, kwargs)
    notes = _Notes(reference)
    blob = _pickled((function, args, sorted(kwargs.items())), notes)
    cwd = os.getcwd() if notes.has_relative_paths else None
    about = repr(
        (__version__, sockets.torch_version(), sys.version_info[:3], _source_of(function), cwd, settings())
    )
    environment = sorted(item for item in os.environ.items() if item[0].startswith(_PREFIXES))
    digest = hashlib.blake2b(blob, digest_size=20)
    digest.update(repr((about, environment)).encode(errors="surrogateescape"))
    return Call(digest.hexdigest(), blob, name_of(function), cwd, notes.files)


def decode(blob: memoryview, resolve: Callable[[str], Any]) -> tuple[Any, list[Any], dict[str, Any]]:
    """Return the function and its arguments, and give `resolve` the keys of earlier results."""
    unpickler = _CallUnpickler(io.BytesIO(blob), resolve)
    function, args, kwargs = unpickler.load()
    return function, list(args), dict(kwargs)


def settings() -> dict[str, str]:
    """Return what torch itself was told that changes results."""
    found = {"dtype": str(torch.get_default_dtype()).rpartition(".")[2]}
    if hasattr(torch, "get_default_device"):
        found["device"] = str(torch.get_default_device())
    return found


def apply(found: dict[str, str]) -> None:
    """Tell torch what it was told elsewhere."""
    dtype = _torch.dtype(found["dtype"])
    if dtype is not None:
        torch.set_default_dtype(dtype)
    if found.get("device", "cpu") != "cpu":
        torch.set_default_device(found["device"])


def name_of(function: Any) -> str:
    """Return what a function is called where people read it."""
    plain = function.func if isinstance(function, functools.partial) else function
    owner = getattr(plain, "__self__", None)
    name = getattr(plain, "__qualname__", None) or type(plain).__qualname__
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{plain.__name__}"
    return f"{getattr(plain, '__module__', None) or '?'}.{name}"


def _canonical(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments in the one form that calls that mean the same have."""
    try:
        signature = _signature(function)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):
        return args, kwargs
    for name, parameter in signature.parameters.items():
        # A default that is spelled out.
        if name in bound.arguments and bound.arguments[name] is parameter.default:
            if parameter.kind is not parameter.POSITIONAL_ONLY:
                del bound.arguments[name]
    return bound.args, bound.kwargs


@functools.lru_cache(maxsize=64)
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)


def _source_of(function: Any) -> str:
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    return str(getattr(module, "__file__", ""))


class _Notes:
    """What is found on the way through the arguments."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self.files: files.Files = {}
        self.has_relative_paths = False

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is str:
            self._note_path(obj)
            return None
        if kind in (set, frozenset):  # its order is another in each process
            return ("set", kind is frozenset, sorted(obj, key=lambda item: _pickled(item, self)))
        if isinstance(obj, os.PathLike):
            return ("path", kind, os.fspath(obj))
        key = self.reference(obj)
        return None if key is None else ("result", key)

    def _note_path(self, text: str) -> None:
        if 0 < len(text) < _LONGEST_PATH and "\0" not in text and os.path.lexists(text):
            absolute = os.path.abspath(text)
            files.note(absolute, self.files)
            self.has_relative_paths |= not os.path.isabs(text)


class _CallPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, notes: _Notes) -> None:
        super().__init__(file, protocol=5)
        self._notes = notes

    def persistent_id(self, obj: Any) -> Any:
        return self._notes.persistent_id(obj)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (types.FunctionType, type)) and obj.__module__ in ("__main__", "__mp_main__"):
            raise UnsupportedError("another process has another __main__")
        return NotImplemented


class _CallUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, resolve: Callable[[str], Any]) -> None:
        super().__init__(file)
        self._resolve = resolve

    def find_class(self, module: str, name: str) -> Any:
        quirks.make_importable(module)
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        kind, *rest = pid
        if kind == "result":
            return self._resolve(rest[0])
        if kind == "path":
            return rest[0](rest[1])
        return frozenset(rest[1]) if rest[0] else set(rest[1])


def _pickled(obj: Any, notes: _Notes) -> bytes:
    buffer = io.BytesIO()
    try:
        _CallPickler(buffer, notes).dump(obj)
    except _REFUSALS as error:
        return _dilled(obj, notes, error)
    return buffer.getvalue()


def _dilled(obj: Any, notes: _Notes, refusal: Exception) -> bytes:
    dill = dill_or_none()
    if dill is None:
        raise UnsupportedError(
            f"the call cannot be sent to another process without dill, which is not installed: {refusal}"
        ) from refusal

    class DillPickler(dill.Pickler):  # type: ignore[misc, name-defined]
        def persistent_id(self, obj: Any) -> Any:
            return notes.persistent_id(obj)

    buffer = io.BytesIO()
    DillPickler(buffer, protocol=5, recurse=True).dump(obj)
    return buffer.getvalue()


def dill_or_none() -> Any:
    """Return the module dill, which is optional."""
    try:
        import dill
    except ImportError:
        return None
    return dill
