"""Swapping ``torch.load`` and ``torch.save``, and back to what was there.

A replacement stays in place as long as anybody wants it, and asks on every call whether it is wanted by the caller:
so patching one thread leaves the others with the original, and a replacement that somebody else has wrapped
meanwhile can be left where it is.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from zerocopy import environment
from zerocopy.errors import UnsupportedError
from zerocopy.patching import dispatch, saving

Function = Callable[..., Any]

_PLACES = ((torch, "load"), (torch.serialization, "load"), (torch, "save"), (torch.serialization, "save"))
_MAKERS = {"load": dispatch.load_for, "save": saving.save_for}

_lock = threading.RLock()
_swapped: dict[tuple[str, str], tuple[Function, Function]] = {}  # (module, name): (original, replacement)
_for_good = False
_EVERYWHERE = 0
_blocks: Counter[int] = Counter()  # open blocks, by thread; no thread has the identifier 0


def patch(*, rebind: bool = False, jit: bool = False, safetensors: bool = False) -> None:
    """Let ``torch.load`` map files, in the whole program, until :func:`unpatch`.

    ``torch.load`` and ``torch.serialization.load`` keep their signature, the defaults of the running release, its
    environment variables, exceptions and warnings. What zerocopy cannot serve goes to the original, with one DEBUG
    line of the logger "zerocopy", and with the ``weights_only`` that the call came to: never a lower one. A file that
    zerocopy refuses as malformed or unsafe is not tried again. ``torch.save`` to a path whose file is mapped by this
    process writes another file and renames it, so that live tensors keep their bytes.

    Calling it again changes nothing. With ``ZEROCOPY_DISABLE=1`` in the environment it does nothing.

    Parameters
    ----------
    rebind : bool
        Also swap the names that other modules have imported already (``from torch import load``).
    jit, safetensors : bool
        Also ``torch.jit.load``, ``safetensors.torch.load_file`` and ``safe_open``: not there yet.

    Raises
    ------
    zerocopy.UnsupportedError
        If `jit` or `safetensors` is asked for.

    Examples
    --------
    >>> import torch, zerocopy
    >>> original = torch.load
    >>> zerocopy.patch()
    >>> zerocopy.is_patched(), torch.load is original
    (True, False)
    >>> zerocopy.unpatch()
    >>> zerocopy.is_patched(), torch.load is original
    (False, True)
    """
    global _for_good
    _refuse_missing(jit, safetensors)
    if environment.is_disabled():
        return
    with _lock:
        _for_good = True
        _install(rebind)


def unpatch() -> None:
    """Undo :func:`patch`. Blocks under :func:`patched` stay patched until they end."""
    global _for_good
    with _lock:
        _for_good = False
        _remove_unwanted()


@contextlib.contextmanager
def patched(
    *, thread_local: bool = False, rebind: bool = False, jit: bool = False, safetensors: bool = False
) -> Iterator[None]:
    """Patch within a ``with`` block; blocks nest.

    Parameters
    ----------
    thread_local : bool
        For this thread only.
    rebind, jit, safetensors : bool
        As for :func:`patch`.

    Examples
    --------
    >>> import torch, zerocopy
    >>> with zerocopy.patched():
    ...     zerocopy.is_patched()
    True
    """
    _refuse_missing(jit, safetensors)
    if environment.is_disabled():
        yield
        return
    scope = threading.get_ident() if thread_local else _EVERYWHERE
    with _lock:
        _blocks[scope] += 1
        _install(rebind)
    try:
        yield
    finally:
        with _lock:
            _blocks[scope] -= 1
            _remove_unwanted()


def is_patched() -> bool:
    """Return whether ``torch.load`` is zerocopy's for the calling thread."""
    wanted = _for_good or _blocks[_EVERYWHERE] > 0 or _blocks[threading.get_ident()] > 0
    return wanted and not environment.is_disabled()


def _install(rebind: bool) -> None:
    for place, name in _PLACES:
        _swap(place, name, getattr(place, name))
    if rebind:
        originals = {id(original): name for (_, name), (original, _) in list(_swapped.items())}
        modules: list[object] = list(sys.modules.values())  # anything can be put there
        for module in modules:
            if not isinstance(module, ModuleType):
                continue
            for alias, value in list(vars(module).items()):
                if id(value) in originals and (module.__name__, alias) not in _swapped:
                    _swap(module, alias, value, originals[id(value)])


def _swap(module: ModuleType, alias: str, original: Function, name: str | None = None) -> None:
    replacements = {id(known): ours for known, ours in _swapped.values()}
    if (module.__name__, alias) in _swapped or original in replacements.values():
        return
    replacement = replacements.get(id(original)) or _replacement(original, _MAKERS[name or alias](original))
    _swapped[module.__name__, alias] = (original, replacement)
    setattr(module, alias, replacement)


def _replacement(original: Function, ours: Function) -> Function:
    @functools.wraps(original)
    def choose(*args: Any, **kwargs: Any) -> Any:
        return (ours if is_patched() else original)(*args, **kwargs)

    return choose


def _remove_unwanted() -> None:
    if _for_good or any(_blocks.values()):
        return
    for (module_name, alias), (original, replacement) in _swapped.items():
        module = sys.modules.get(module_name)
        # Else somebody has put their own there since, which may call ours: that passes on to the original now.
        if module is not None and getattr(module, alias, None) is replacement:
            setattr(module, alias, original)
    _swapped.clear()
    _blocks.clear()


def _refuse_missing(jit: bool, safetensors: bool) -> None:
    if jit:
        raise UnsupportedError("patch(jit=True) comes with zerocopy.jit.load, which is not there yet")
    if safetensors:
        raise UnsupportedError(
            "patch(safetensors=True) comes with the safetensors reader, which is not there yet"
        )
