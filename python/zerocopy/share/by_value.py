"""Functions and classes that another process cannot import: of ``__main__``, lambdas, nested ones. They take dill."""

from __future__ import annotations

import functools
import operator
import pickle
import sys
import types
from typing import Any

from zerocopy.errors import UnsupportedError

_MAINS = ("__main__", "__mp_main__")


def reduced(obj: Any) -> Any:
    """Return how a function or class is pickled by value; NotImplemented for whatever is found by its name."""
    if not isinstance(obj, (types.FunctionType, type)):
        return NotImplemented
    module, name = getattr(obj, "__module__", None), obj.__qualname__
    if module not in _MAINS and "<" not in name:
        return NotImplemented
    return made, (module, name, _content_of(obj))


def _content_of(obj: Any) -> bytes:
    content: bytes = required(f"{obj.__module__}.{obj.__qualname__} cannot be imported elsewhere").dumps(
        obj, protocol=5, byref=False, recurse=True
    )
    return content


def made(module: str, name: str, content: bytes) -> Any:
    """Return it: the program's own where that has one of the name, so that instances are of the class it knows."""
    from zerocopy.share import client

    if module in _MAINS and "<" not in name and not client.is_loader():
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
        raise UnsupportedError(f"{what} takes dill, which is not installed")
    return found


def dill_or_none() -> Any:
    """Return the module dill, which is optional."""
    try:
        import dill
    except ImportError:
        return None
    return dill


def dumps(obj: Any) -> bytes:
    """Return the pickle of anything, with dill if it takes that."""
    try:
        return pickle.dumps(obj, protocol=5)
    except Exception:
        dill = dill_or_none()
        if dill is None:
            raise
        content: bytes = dill.dumps(obj, protocol=5, recurse=True)
        return content
