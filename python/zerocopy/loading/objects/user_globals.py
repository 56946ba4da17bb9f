"""Classes and functions that the user lets files name."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from zerocopy._torch import safe_globals as safe_globals_of_torch

_safe: ContextVar[tuple[Any, ...]] = ContextVar("zerocopy_safe_globals", default=())


@contextlib.contextmanager
def safe_globals(globals: Iterable[Any]) -> Iterator[None]:
    """Allow files to name these classes and functions, within a ``with`` block.

    This works on every release of PyTorch, even on those without ``torch.serialization.safe_globals``. Globals that are
    given to torch's function, or to ``add_safe_globals``, are allowed too. It applies to the current thread or task.

    Parameters
    ----------
    globals : iterable
        Classes or functions, or pairs ``(object, "full.path.in.the.file")``.

    Examples
    --------
    >>> import argparse, io, torch, zerocopy
    >>> file = io.BytesIO()
    >>> torch.save({"config": argparse.Namespace(layers=2), "weight": torch.ones(2)}, file)
    >>> with zerocopy.safe_globals([argparse.Namespace]):
    ...     zerocopy.load(file.getvalue())["config"]
    Namespace(layers=2)
    """
    token = _safe.set((*_safe.get(), *globals))
    try:
        yield
    finally:
        _safe.reset(token)


def given() -> tuple[Any, ...]:
    """Return the globals that :func:`safe_globals` allows now."""
    return _safe.get()


def may_be_set(cls: type, name: str) -> bool:
    """Return whether a file may give a tensor or an ``OrderedDict`` of class `cls` an attribute `name`.

    It may not if the class gives the name a meaning. Slots may be set like other attributes. In a class that the user
    has allowed, attributes may also hide methods and defaults, as jagged tensors do with ``_values``.
    """
    found = inspect.getattr_static(cls, name, cls)
    if name.startswith("__"):
        return False
    if found is cls or isinstance(found, types.MemberDescriptorType):
        return True
    return is_users(cls) and not hasattr(type(found), "__set__")


def is_users(allowed: Any) -> bool:
    """Return whether the user, rather than torch, has put this class or function on a list."""
    return any(allowed is known for _, known in entries())


def entries() -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield the module and the name that a file may use, and the object: torch's list, then this package's."""
    for path, allowed in safe_globals_of_torch.of_program():
        module, _, name = path.rpartition(".")
        yield (module, name), allowed
    for entry in _safe.get():
        if isinstance(entry, tuple):
            allowed, path = entry
            module, _, name = path.rpartition(".")
            yield (module, name), allowed
        else:
            yield (entry.__module__, entry.__qualname__), entry
