"""``zerocopy.patch`` and ``patched``: which functions are replaced, for which threads, and until when.

A replacement stays in place as long as any thread wants it, and asks on every call whether the calling thread does.
Other threads get the original, and a replacement that somebody else has wrapped can stay where it is. A signal handler
may interrupt any step, so a replacement is put in place before a thread wants it, and removed after the last one does.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from zerocopy import environment
from zerocopy._torch import programs, script
from zerocopy.errors import UnsupportedError
from zerocopy.patching import torch_jit, torch_load, torch_save
from zerocopy.process import replacements, tally, torch_compiler
from zerocopy.process.replacements import Replacements, lock

Function = Callable[..., Any]

# The functions that can be replaced, and the function that makes each replacement. The first two parts are always
# patched, the others on request. `rebind` also replaces references that other modules took before.
_LOAD, _SAVE, _JIT, _SAFETENSORS, _EXPORT = "load", "save", "jit", "safetensors", "export"
_JITS = torch.jit, script.serialization


class _Block:
    """A block that wants parts to be patched, for all threads or for one.

    The block is open as long as the generator of its ``with`` statement refers to it. So it ends even if an exception
    of a signal handler skips the generator's last lines.
    """

    def __init__(self, scope: int, parts: list[str]) -> None:
        self.scope, self.parts = scope, frozenset(parts)


_Target = tuple[ModuleType, str, Callable[[Function], Function]]
_TARGETS: dict[str, tuple[_Target, ...]] = {
    _LOAD: tuple((module, "load", torch_load.load_for) for module in (torch, torch.serialization)),
    _SAVE: tuple((module, "save", torch_save.save_for) for module in (torch, torch.serialization, *_JITS)),
    _JIT: tuple((module, "load", torch_jit.load_for) for module in _JITS),
}

_replaced: defaultdict[str, Replacements] = defaultdict(Replacements)  # by part
_for_good: set[str] = set()  # parts
_EVERYWHERE = 0  # which no thread has as its identifier
_blocks: list[weakref.ref[_Block]] = []
_guards: list[_Block] = []  # at most one, of guard_saves


def patch(
    *, rebind: bool = False, jit: bool = False, safetensors: bool = False, export: bool = False
) -> None:
    """Replace ``torch.load`` by a function that maps files, in the whole program, until :func:`unpatch`.

    ``torch.load`` and ``torch.serialization.load`` keep their signature, the defaults of the running release, its
    environment variables, exceptions and warnings. The original loads each file that zerocopy cannot, with
    one DEBUG line of the logger "zerocopy". ``weights_only`` is never lowered. With ``weights_only=True``,
    releases before 2.6 do not get a file that zerocopy refuses as damaged or unsafe.
    ``torch.save`` and ``torch.jit.save`` to a path whose file is mapped by any process write another file and rename
    it, so that live tensors keep their bytes.

    Calling it again changes nothing. With ``ZEROCOPY_DISABLE=1`` in the environment it does nothing. With
    ``ZEROCOPY_LOG_LEVEL=INFO`` one line on standard error, at the end of the program, says what was mapped and what was
    left to torch.

    Parameters
    ----------
    rebind : bool
        Also swap the names that other modules have imported already (``from torch import load``).
    jit : bool
        Also ``torch.jit.load``. The original loads everything that :func:`zerocopy.jit.load` refuses.
    safetensors : bool
        Also ``safetensors.torch.load_file`` and ``safetensors.safe_open``, for torch tensors on the CPU. The
        originals serve everything else.
    export : bool
        Also ``torch.export.load``. The original loads everything that :func:`zerocopy.export.load` refuses.

    Raises
    ------
    zerocopy.UnsupportedError
        `safetensors` is true and the package is not installed, or `export` is true and this release of torch has other
        archives.

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
    parts = _parts(jit, safetensors, export)
    if environment.is_disabled():
        return
    tally.report_at_exit()
    with lock.held():
        _install(parts, rebind)
        _for_good.update(parts)


def guard_saves() -> None:
    """Replace ``torch.save`` so that it never overwrites a mapped file, as :func:`patch` does."""
    with lock.held():
        _install([_SAVE], rebind=False)
        block = _Block(_EVERYWHERE, [_SAVE])
        _blocks.append(weakref.ref(block))
        _guards[:] = [block]


def unguard_saves() -> None:
    """Undo :func:`guard_saves`."""
    with lock.held():
        _guards.clear()
        _remove_unwanted()


def unpatch() -> None:
    """Undo :func:`patch`. Blocks under :func:`patched` stay patched until they end.

    Examples
    --------
    >>> import zerocopy
    >>> zerocopy.patch()
    >>> zerocopy.unpatch()
    >>> zerocopy.is_patched()
    False
    """
    with lock.held():
        _for_good.clear()
        _remove_unwanted()


@contextlib.contextmanager
def patched(
    *,
    thread_local: bool = False,
    rebind: bool = False,
    jit: bool = False,
    safetensors: bool = False,
    export: bool = False,
) -> Iterator[None]:
    """Patch within a ``with`` block; blocks nest.

    Parameters
    ----------
    thread_local : bool
        For this thread only.
    rebind, jit, safetensors, export : bool
        As for :func:`patch`.

    Examples
    --------
    >>> import torch, zerocopy
    >>> with zerocopy.patched():
    ...     zerocopy.is_patched()
    True
    """
    parts = _parts(jit, safetensors, export)
    if environment.is_disabled():
        yield
        return
    with _block(threading.get_ident() if thread_local else _EVERYWHERE, parts, rebind):
        yield


@contextlib.contextmanager
def _block(scope: int, parts: list[str], rebind: bool = False) -> Iterator[None]:
    block = _Block(scope, parts)
    try:
        with lock.held():
            _install(parts, rebind)
            _blocks.append(weakref.ref(block))
        yield
    finally:
        del block
        with lock.held():
            _remove_unwanted()


def _open_blocks() -> list[_Block]:
    return [block for reference in _blocks if (block := reference()) is not None]


def is_patched() -> bool:
    """Return whether ``torch.load`` is zerocopy's for the calling thread.

    Examples
    --------
    >>> import zerocopy
    >>> with zerocopy.patched(thread_local=True):
    ...     zerocopy.is_patched()
    True
    """
    return _is_wanted(_LOAD)


def _is_wanted(part: str) -> bool:
    scopes = (_EVERYWHERE, threading.get_ident())
    wanted = part in _for_good or any(part in each.parts and each.scope in scopes for each in _open_blocks())
    return wanted and not environment.is_disabled()


def _parts(jit: bool, safetensors: bool, export: bool) -> list[str]:
    if safetensors and _SAFETENSORS not in _TARGETS:
        _TARGETS[_SAFETENSORS] = _safetensors_targets()
    if export and _EXPORT not in _TARGETS:
        _TARGETS[_EXPORT] = _export_targets()
    return [_LOAD, _SAVE, *[_JIT] * jit, *[_SAFETENSORS] * safetensors, *[_EXPORT] * export]


def _export_targets() -> tuple[_Target, ...]:
    programs.require_export()  # imports torch.export, which takes a second
    from zerocopy.patching import torch_export

    return ((torch.export, "load", torch_export.load_for),)


def _safetensors_targets() -> tuple[_Target, ...]:
    try:
        import safetensors
        import safetensors.torch
    except ImportError:
        raise UnsupportedError(
            "patch(safetensors=True) needs the package safetensors, which is not installed"
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
        for module, name, make in _TARGETS[part]:
            _replaced[part].replace(module, name, functools.partial(_choice, make, part))
    if rebind:
        for replaced in _replaced.values():
            replaced.put_everywhere()


def _choice(make: Callable[[Function], Function], part: str, original: Function) -> Function:
    """Return a function that calls zerocopy's or the original, whichever the calling thread wants."""
    ours = original if _is_of_program(part, original) else make(original)

    @functools.wraps(original)
    def choose(*args: Any, **kwargs: Any) -> Any:
        called = torch_compiler.untraced(ours) if _is_wanted(part) else original
        return called(*args, **kwargs)

    return _class_for(original, choose) if isinstance(original, type) else choose


def _is_of_program(part: str, original: Function) -> bool:
    """Return whether the program has put a function in the place of the library's: a wrapper, say."""
    # That of torch.save always calls the function in whose place it is.
    if part == _SAVE or isinstance(original, type):
        return False
    function = replacements.original(original)
    place = getattr(function, "__globals__", {}).get("__name__"), getattr(function, "__name__", None)
    if place in {(module.__name__, name) for module, name, _ in _TARGETS[part]}:
        return False
    torch_load.log.warning(
        "torch.%s was replaced by %s before the patch. That is called as before, and zerocopy does not map what it "
        "loads: patch first",
        part,
        getattr(original, "__qualname__", type(original).__name__),
    )
    return True


def _class_for(original: type, choose: Function) -> type:
    """Return a class that replaces another: programs also use it in ``isinstance`` and in annotations."""

    class Calling(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return choose(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

    replacement = Calling(original.__name__, (), {})
    functools.update_wrapper(replacement, original, updated=())
    return replacement


def _remove_unwanted() -> None:
    _blocks[:] = [reference for reference in _blocks if reference() is not None]
    wanted = _for_good.union(*(block.parts for block in _open_blocks()))
    for part in _replaced.keys() - wanted:
        _replaced[part].restore()
        del _replaced[part]
