"""``patch_all``: programs that load models by the functions of known libraries get them from the model server.

What is replaced, ``places.py`` says. A replacement stays a function, class method or static method as it was, with the
signature of the original, and asks on each call whether it is wanted: one that somebody took meanwhile
(``from safetensors.torch import load_file``) passes calls on when the patch is gone.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

from zerocopy import environment
from zerocopy.process import import_hook, replacements, torch_compiler
from zerocopy.process.fork_safe import ForkSafeLock
from zerocopy.share import role
from zerocopy.share.patches import route
from zerocopy.share.patches.targets import Target, known_targets, targets_of

log = logging.getLogger("zerocopy")

_MISSING: Any = object()


class _Swap(NamedTuple):
    owner: Any  # a module or a class
    name: str
    original: (
        Any  # as it is in the owner's __dict__: a classmethod object, say; _MISSING if a base class has it
    )
    replacement: Any


_lock = ForkSafeLock()
_wanted: dict[Target, Any] = {}  # by what waits for its module
_swaps: list[_Swap] = []
_guards: list[Callable[[], None]] = []  # end the guard over torch.save, if there is one


def patch_all(config: str | os.PathLike[str] | None = None) -> None:
    """Let the loading functions of known libraries take models from the model server, until :func:`unpatch_all`.

    They are: ``from_pretrained`` of transformers' models, tokenizers and processors, and ``pipeline``; of diffusers
    ``from_pretrained`` of models, pipelines and schedulers, and ``from_single_file``;
    ``open_clip.create_model_and_transforms``; torchvision's ``vgg16`` and ``vgg19``; ``torch.load``,
    ``torch.jit.load`` and ``safetensors.torch.load_file``. A call of one goes to :func:`zerocopy.share.load` with the
    arguments as they are. What the server cannot give goes to the original, with one line of the logger "zerocopy".

    Nothing is imported for it: what is not there yet is patched as soon as the program imports it. Calling it again
    changes nothing, apart from what a configuration adds. ``torch.save`` to a path whose file is mapped by this process
    writes another file and renames it, as under :func:`zerocopy.patch`. With ``ZEROCOPY_DISABLE=1`` in the environment
    it does nothing, and neither in a process in which the server has a model loaded.

    Parameters
    ----------
    config : str or PathLike, optional
        A file that names further functions, one in a line, as ``module::function`` or ``module::Class.method``. What
        follows a ``#`` is a comment. What is not there, or cannot be replaced, is passed over with one WARNING.

    Raises
    ------
    OSError
        The configuration file cannot be read.
    ValueError
        It has a line that names no function.

    Examples
    --------
    >>> import torch, zerocopy.share
    >>> original = torch.load
    >>> zerocopy.share.patch_all()
    >>> torch.load is original
    False
    >>> zerocopy.share.unpatch_all()
    >>> torch.load is original
    True
    """
    known, further = known_targets(), targets_of(config) if config is not None else []
    if environment.is_disabled() or role.is_worker():
        return
    torch_compiler.skip("zerocopy.share")
    _guard_saves()
    _await(known, is_known=True)
    _await(further, is_known=False)


def unpatch_all() -> None:
    """Undo :func:`patch_all`, all of it. Where somebody has put their own function over ours since, that stays."""
    with _lock:
        for act in _wanted.values():
            import_hook.forget(act)
        _wanted.clear()
        swaps = list(reversed(_swaps))
        _swaps.clear()
        for swap in swaps:
            _put_back(swap)
        import_hook.forget(_begin_guard)
        while _guards:
            _guards.pop()()


def _guard_saves() -> None:
    """Let ``torch.save`` spare mapped files as soon as torch is imported: results lie in mappings of their files."""
    with _lock:
        if not _guards:
            import_hook.forget(_begin_guard)
            import_hook.when_imported("torch", _begin_guard)


def _begin_guard(_: ModuleType) -> None:
    from zerocopy.patching import switch  # which imports torch

    with _lock:
        if not _guards:
            _guards.append(switch.guard_saves())


def _await(places: Iterable[Target], is_known: bool) -> None:
    with _lock:
        for place in places:
            if place not in _wanted:
                _wanted[place] = functools.partial(_patch, place, is_known)
                import_hook.when_imported(place.awaited, _wanted[place])


def _patch(place: Target, is_known: bool, _: ModuleType) -> None:
    """Patch a place, now that what it waited for is there."""
    with _lock:
        if place not in _wanted:
            return
        module = sys.modules.get(place.module)
        if module is None:  # a part of torch that torch itself does not import
            import_hook.when_imported(place.module, _wanted[place])
            return
        try:
            _swaps.extend(_swapped(place, module))
        except (AttributeError, TypeError) as error:  # TypeError: a class that is written in C
            level = logging.DEBUG if is_known else logging.WARNING
            log.log(level, "%s is not patched: %s", place, error)


def _swapped(place: Target, module: ModuleType) -> list[_Swap]:
    owner: Any = module
    for name in place.owners:
        owner = vars(owner).get(name, _MISSING)
        if owner is _MISSING:
            raise AttributeError(f"{place.module} has no {'.'.join(place.owners)}")
    original = vars(owner).get(place.name, _MISSING)  # a module's __getattr__ is not asked: it may import
    if any((swap.owner, swap.name) == (owner, place.name) for swap in _swaps):
        return []
    raw = original
    if raw is _MISSING:
        raw = inspect.getattr_static(owner, place.name) if isinstance(owner, type) else _MISSING
    function = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
    if not callable(function) or isinstance(function, type):
        raise AttributeError(f"no function {place.name} there")
    swap = _Swap(owner, place.name, original, _replacement(place, raw, function))
    setattr(owner, place.name, swap.replacement)
    return [swap, *(_aliases(place, swap) if owner is module else ())]


def _replacement(place: Target, raw: Any, function: Any) -> Any:
    # Not in the replacement's own closure: dill follows that to the end, which a function within itself does not have.
    here = _Here(place, raw, function)

    @functools.wraps(function)
    def routed(*args: Any, **kwargs: Any) -> Any:
        return here.called(args, kwargs)

    replacements.note(routed, function, functools.partial(_is_wanted, place))
    here.replacement = type(raw)(routed) if isinstance(raw, (classmethod, staticmethod)) else routed
    return here.replacement


class _Here:
    """What one replacement does."""

    replacement: Any = None

    def __init__(self, place: Target, raw: Any, function: Any) -> None:
        self._place, self._raw, self._function = place, raw, function

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not _is_wanted(self._place) or not route.is_ours(self._place, args, kwargs):
            return self._function(*args, **kwargs)
        if not isinstance(self._raw, classmethod):
            return route.call(self.replacement, self._function, args, kwargs)
        cls, *rest = args
        bound = _bound(self._place, self.replacement, cls)
        return route.call(bound, functools.partial(self._function, cls), tuple(rest), kwargs)


def _bound(place: Target, replacement: Any, cls: type) -> Any:
    """Return a class method as one would name it: a loader process looks it up again, and finds the original."""
    if inspect.getattr_static(cls, place.name, None) is replacement:
        return getattr(cls, place.name)
    return route.Inherited(place, cls)  # the class has one of its own, which has called this one


def _is_wanted(place: Target) -> bool:
    return place in _wanted and not environment.is_disabled()


def _aliases(place: Target, swap: _Swap) -> list[_Swap]:
    """Swap the same function where other modules of its library have it: ``torch.load``, for one."""
    library, found = place.module.partition(".")[0], []
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or module is swap.owner or name.partition(".")[0] != library:
            continue
        for alias, value in list(vars(module).items()):
            if value is swap.original:
                setattr(module, alias, swap.replacement)
                found.append(_Swap(module, alias, swap.original, swap.replacement))
    return found


def _put_back(swap: _Swap) -> None:
    if vars(swap.owner).get(swap.name, _MISSING) is not swap.replacement:
        return
    if swap.original is _MISSING:
        delattr(swap.owner, swap.name)
    else:
        setattr(swap.owner, swap.name, replacements.beneath(swap.original))
