"""Which globals of a file the safe loader takes: the running release's list, then the user's.

A global is a pair (module, name). It is looked up, never imported; one that is in no list is refused, together with
all others of the same file, before anything has been built.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pickle
import types
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from zerocopy import _torch
from zerocopy.loading.objects import rebuild
from zerocopy.loading.objects.global_names import BLOCKED_MODULES, Name, modern, printable

# A message names every global of an honest file; one made to fill a log is cut, and so is `error.globals`.
_MAX_LISTED = 200
_MAX_LISTING = 8000
_MAX_NAMES = 10_000


def _is_lacking(path: str) -> bool:
    module, _, name = path.rpartition(".")
    return not hasattr(importlib.import_module(module), name)


#: torch's functions that other releases write into files and this one lacks: their checked twins need no original.
OF_OTHER_RELEASES = {
    path: rebuild.SAFE[path]
    for path in (
        "torch._utils._rebuild_tensor_v3",
        "torch._utils._rebuild_parameter_with_state",
        "torch._utils._rebuild_sparse_csr_tensor",
        "torch._utils._rebuild_device_tensor_from_cpu_tensor",
    )
    if _is_lacking(path)
}

_safe: ContextVar[tuple[Any, ...]] = ContextVar("zerocopy_safe_globals", default=())


@contextlib.contextmanager
def safe_globals(globals: Iterable[Any]) -> Iterator[None]:
    """Let ``zerocopy.load`` take these classes and functions from a file, within a ``with`` block.

    Works on every release of PyTorch, also where ``torch.serialization.safe_globals`` does not exist; what is given
    to that one, or to ``add_safe_globals``, counts too. Applies to the current thread or task.

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
    """Return what is allowed by :func:`safe_globals` now."""
    return _safe.get()


def resolve(names: Iterable[Name]) -> dict[Name, Any]:
    """Return what each global of a file stands for.

    Raises
    ------
    pickle.UnpicklingError
        If one of them, or several, are on no list. All are named, and in its attribute ``globals``.
    """
    found, refused = look_up(names)
    if refused:
        raise _refusal(refused)
    return found


def look_up(names: Iterable[Name]) -> tuple[dict[Name, Any], list[Name]]:
    """Return what the globals on a list stand for, and those that are on none."""
    names = list(dict.fromkeys(names))
    if not names:
        return {}, []
    by_user = dict(_user_globals())
    found: dict[Name, Any] = {}
    refused: list[Name] = []
    for name in names:
        pair = modern(name)
        if pair is not None and pair[0] not in BLOCKED_MODULES:
            if pair in by_user:
                found[name] = by_user[pair]
                continue
            # torch's list is keyed by the joined path; a dot in the name would let another pair join to the same.
            path = ".".join(pair)
            if "." not in pair[1] and path in _torch.release_allow_list():
                found[name] = rebuild.SAFE.get(path, _torch.release_allow_list()[path])
                continue
            if "." not in pair[1] and path in OF_OTHER_RELEASES:
                found[name] = OF_OTHER_RELEASES[path]
                continue
        refused.append(name)
    return found, refused


def callee(allowed: Any) -> Callable[..., Any]:
    """Return `allowed` if a file may call it: a function of the package ``rebuild``, or one of the user's.

    The rest of torch's list is good as a value only: ``torch.Tensor(2**38)`` from a file would allocate, and
    ``torch.Tensor(64)`` return uninitialised memory.
    """
    if any(allowed is known for known in rebuild.SAFE.values()):
        return allowed
    if is_users(allowed):
        return allowed
    name = (
        getattr(allowed, "__qualname__", None) or f"a {type(allowed).__name__}"
    )  # never its repr: it may be endless
    raise pickle.UnpicklingError(f"checkpoint: {name} may not be called by a file")


def may_be_set(cls: type, name: str) -> bool:
    """Whether a file may give a tensor or an ``OrderedDict`` of class `cls` an attribute `name`.

    Not if the class gives the name a meaning. A slot is a place for an attribute as any other; and in a class that the
    user has allowed, attributes may hide methods and defaults, as jagged tensors do with ``_values``.
    """
    found = inspect.getattr_static(cls, name, cls)
    if name.startswith("__"):
        return False
    if found is cls or isinstance(found, types.MemberDescriptorType):
        return True
    return is_users(cls) and not hasattr(type(found), "__set__")


def is_users(allowed: Any) -> bool:
    """Whether the user, rather than torch, has put this class or function on a list."""
    return any(allowed is known for _, known in _user_globals())


def _user_globals() -> Iterator[tuple[tuple[str, str], Any]]:
    for entry in (*_torch.user_safe_globals(), *_safe.get()):
        if isinstance(entry, tuple):
            allowed, path = entry
            module, _, name = path.rpartition(".")
            yield (module, name), allowed
        else:
            yield (entry.__module__, entry.__qualname__), entry


def _refusal(refused: list[Name]) -> pickle.UnpicklingError:
    names = sorted(map(printable, refused[:_MAX_NAMES]))
    listed = names[:_MAX_LISTED]
    while len(listed) > 1 and sum(map(len, listed)) > _MAX_LISTING:
        listed.pop()
    rest = f" and {len(refused) - len(listed)} more" if len(listed) < len(refused) else ""
    what = "a global" if len(refused) == 1 else f"{len(refused)} globals"
    error = pickle.UnpicklingError(
        f"weights_only refuses {what} of this file: {', '.join(listed)}{rest}. "
        "Nothing was imported or run. If you trust the file: allow each with zerocopy.safe_globals([...]), "
        "or load it with weights_only=False, which lets it run any code."
    )
    error.globals = names  # type: ignore[attr-defined]
    error.first = refused[0]  # type: ignore[attr-defined]
    return error
