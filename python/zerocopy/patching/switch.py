"""Swapping ``torch.load``, ``torch.save`` and others, and back to what was there.

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
from typing import Any, NamedTuple

import torch

from zerocopy import environment
from zerocopy.errors import UnsupportedError
from zerocopy.patching import torch_jit, torch_load, torch_save
from zerocopy.process import replacements, torch_compiler
from zerocopy.process.fork_safe import ForkSafeLock

Function = Callable[..., Any]

# The functions that can be replaced, and by what: the first two always, the others on request. References that other
# modules took before are replaced by rebind.
_LOAD, _SAVE, _JIT, _SAFETENSORS = "load", "save", "jit", "safetensors"
_Place = tuple[ModuleType, str, Callable[[Function], Function]]
_PLACES: dict[str, tuple[_Place, ...]] = {
    _LOAD: (
        (torch, "load", torch_load.load_for),
        (torch.serialization, "load", torch_load.load_for),
    ),
    _SAVE: (
        (torch, "save", torch_save.save_for),
        (torch.serialization, "save", torch_save.save_for),
    ),
    _JIT: ((torch.jit, "load", torch_jit.load_for),),
}


class _Swap(NamedTuple):
    original: Function
    replacement: Function
    part: str  # of _PLACES


_lock = ForkSafeLock()
_swapped: dict[tuple[str, str], _Swap] = {}  # by module and name
_for_good: set[str] = set()  # parts
_EVERYWHERE = 0
_blocks: Counter[tuple[int, str]] = (
    Counter()
)  # open blocks, by thread and part; no thread has the identifier 0


def patch(*, rebind: bool = False, jit: bool = False, safetensors: bool = False) -> None:
    """Let ``torch.load`` map files, in the whole program, until :func:`unpatch`.

    ``torch.load`` and ``torch.serialization.load`` keep their signature, the defaults of the running release, its
    environment variables, exceptions and warnings. The original loads each file that zerocopy cannot, with
    one DEBUG line of the logger "zerocopy". ``weights_only`` is never lowered. A file that
    zerocopy refuses as malformed or unsafe is not tried again. ``torch.save`` to a path whose file is mapped by this
    process writes another file and renames it, so that live tensors keep their bytes.

    Calling it again changes nothing. With ``ZEROCOPY_DISABLE=1`` in the environment it does nothing.

    Parameters
    ----------
    rebind : bool
        Also swap the names that other modules have imported already (``from torch import load``).
    jit : bool
        Also ``torch.jit.load``. The original loads everything that :func:`zerocopy.jit.load` refuses.
    safetensors : bool
        Also ``safetensors.torch.load_file`` and ``safetensors.safe_open``, for torch tensors on the CPU. The
        originals serve everything else.

    Raises
    ------
    zerocopy.UnsupportedError
        If `safetensors` is asked for, and the package is not there.

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
    parts = _parts(jit, safetensors)
    if environment.is_disabled():
        return
    with _lock:
        _for_good.update(parts)
        _install(parts, rebind)


def guard_saves() -> Callable[[], None]:
    """Let ``torch.save`` spare the files that this process has mapped, as :func:`patch` does.

    Returns
    -------
    callable
        Ends it.
    """
    scope = _EVERYWHERE, _SAVE
    with _lock:
        _blocks[scope] += 1
        _install([_SAVE], rebind=False)

    def end() -> None:
        with _lock:
            _blocks[scope] -= 1
            _remove_unwanted()

    return end


def unpatch() -> None:
    """Undo :func:`patch`. Blocks under :func:`patched` stay patched until they end."""
    with _lock:
        _for_good.clear()
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
    parts = _parts(jit, safetensors)
    if environment.is_disabled():
        yield
        return
    scope = threading.get_ident() if thread_local else _EVERYWHERE
    with _lock:
        _blocks.update((scope, part) for part in parts)
        _install(parts, rebind)
    try:
        yield
    finally:
        with _lock:
            _blocks.subtract((scope, part) for part in parts)
            _remove_unwanted()


def is_patched() -> bool:
    """Return whether ``torch.load`` is zerocopy's for the calling thread."""
    return _is_wanted(_LOAD)


def _is_wanted(part: str) -> bool:
    scopes = (_EVERYWHERE, threading.get_ident())
    wanted = part in _for_good or any(_blocks[scope, part] > 0 for scope in scopes)
    return wanted and not environment.is_disabled()


def _parts(jit: bool, safetensors: bool) -> list[str]:
    if safetensors and _SAFETENSORS not in _PLACES:
        _PLACES[_SAFETENSORS] = _safetensors_places()
    return [_LOAD, _SAVE, *[_JIT] * jit, *[_SAFETENSORS] * safetensors]


def _safetensors_places() -> tuple[_Place, ...]:
    try:
        import safetensors
        import safetensors.torch
    except ImportError:
        raise UnsupportedError(
            "patch(safetensors=True) takes the package safetensors, which is not there"
        ) from None
    from zerocopy.patching import safetensors_load

    return (
        (safetensors, "safe_open", safetensors_load.safe_open_for),
        (safetensors.torch, "safe_open", safetensors_load.safe_open_for),
        (safetensors.torch, "load_file", safetensors_load.load_file_for),
    )


def _install(parts: list[str], rebind: bool) -> None:
    torch_compiler.skip(__package__)
    for part in parts:
        for place, name, make in _PLACES[part]:
            _swap(place, name, getattr(place, name), make, part)
    if rebind:
        known = {id(swap.original): swap for swap in _swapped.values()}
        modules: list[object] = list(sys.modules.values())  # anything can be put there
        for module in modules:
            if not isinstance(module, ModuleType):
                continue
            for alias, value in list(vars(module).items()):
                if id(value) in known and (module.__name__, alias) not in _swapped:
                    _set(module, alias, known[id(value)])


def _swap(
    module: ModuleType, alias: str, original: Function, make: Callable[[Function], Function], part: str
) -> None:
    known = list(_swapped.values())
    if (module.__name__, alias) in _swapped or any(swap.replacement is original for swap in known):
        return
    swap = next((swap for swap in known if swap.original is original), None)
    if swap is None:
        swap = _Swap(original, _replacement(original, make(original), part), part)
        replacements.note(swap.replacement, original, functools.partial(_is_swapped, swap))
    _set(module, alias, swap)


def _is_swapped(swap: _Swap) -> bool:
    return any(known is swap for known in _swapped.values())


def _set(module: ModuleType, alias: str, swap: _Swap) -> None:
    _swapped[module.__name__, alias] = swap
    setattr(module, alias, swap.replacement)


def _replacement(original: Function, ours: Function, part: str) -> Function:
    @functools.wraps(original)
    def choose(*args: Any, **kwargs: Any) -> Any:
        called = torch_compiler.untraced(ours) if _is_wanted(part) else original
        return called(*args, **kwargs)

    return _class_for(original, choose) if isinstance(original, type) else choose


def _class_for(original: type, choose: Function) -> type:
    """Return a class in place of a class, which programs also ask ``isinstance`` of and write into annotations."""

    class Calling(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return choose(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

    replacement = Calling(original.__name__, (), {})
    functools.update_wrapper(replacement, original, updated=())
    return replacement


def _remove_unwanted() -> None:
    wanted = _for_good.union(part for (_, part), count in _blocks.items() if count > 0)
    for (module_name, alias), swap in list(_swapped.items()):
        if swap.part in wanted:
            continue
        del _swapped[module_name, alias]
        module = sys.modules.get(module_name)
        # Else somebody has put their own there since, which may call ours: that passes on to the original now.
        if module is not None and getattr(module, alias, None) is swap.replacement:
            setattr(module, alias, replacements.beneath(swap.original))
    for key in [key for key, count in _blocks.items() if count <= 0]:
        del _blocks[key]
