"""``patch_all``: programs that load models by the functions of known libraries get kept results.

``targets.py`` lists the functions. A replacement stays a function, class method or static method, with the signature
of the original. It asks on each call whether it is wanted: a reference to it (``from safetensors.torch import
load_file``) passes calls on when the patch is gone.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from zerocopy import environment
from zerocopy.process import import_hook, torch_compiler
from zerocopy.process.replacements import Replacements, lock
from zerocopy.share.patches.targets import Target, known_targets, targets_in

log = logging.getLogger("zerocopy")

_wanted: dict[Target, Any] = {}  # with the function that waits for the module of each
_replaced = Replacements()


def patch_all(config: str | os.PathLike[str] | None = None) -> None:
    """Patch the loading functions of known libraries to return kept results, until :func:`unpatch_all`.

    They are: ``from_pretrained`` of transformers' models, tokenizers and processors, and ``pipeline``; of diffusers
    ``from_pretrained`` of models, pipelines and schedulers, and ``from_single_file``;
    ``open_clip.create_model_and_transforms``; torchvision's ``vgg16`` and ``vgg19``; ``torch.load``,
    ``torch.jit.load``, ``torch.export.load`` and ``safetensors.torch.load_file``. A call of one goes to
    :func:`zerocopy.share.load` with the arguments as they are. Where nothing is kept that holds, the original
    function is called, its result is the program's own, and a copy is kept for the next program. Nothing waits, and
    nothing fails for the cache.

    Nothing is imported for it: a library is patched as soon as the program imports it. Calling it again
    changes nothing, apart from what a configuration adds. ``torch.save`` to a path whose file is mapped by any process
    writes another file and renames it, as under :func:`zerocopy.patch`. With ``ZEROCOPY_DISABLE=1`` in the environment
    it does nothing.

    Parameters
    ----------
    config : str or PathLike, optional
        A file that names further functions, one in a line, as ``module::function`` or ``module::Class.method``. A
        ``#`` begins a comment. A function that is not there, or cannot be replaced, is skipped with one WARNING.

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
    known, further = known_targets(), targets_in(config) if config is not None else []
    if environment.is_disabled():
        return
    torch_compiler.skip("zerocopy.share")
    _guard_saves()
    _await(known, is_known=True)
    _await(further, is_known=False)


def unpatch_all() -> None:
    """Undo :func:`patch_all`, all of it. A function that somebody has put over a replacement since stays.

    Examples
    --------
    >>> import zerocopy.share
    >>> zerocopy.share.unpatch_all()  # without patch_all before, it changes nothing
    """
    with lock.held():
        for act in _wanted.values():
            import_hook.forget(act)
        _wanted.clear()
        _replaced.restore()
        import_hook.forget(_begin_guard)
        if switch := sys.modules.get("zerocopy.patching.switch"):
            switch.unguard_saves()


def _guard_saves() -> None:
    """Guard mapped files from ``torch.save`` as soon as torch is imported: results lie in mappings of files."""
    with lock.held():
        import_hook.forget(_begin_guard)
        import_hook.when_imported("torch", _begin_guard)


def _begin_guard(_: ModuleType) -> None:
    from zerocopy.patching import switch  # which imports torch

    switch.guard_saves()


def _await(targets: Iterable[Target], is_known: bool) -> None:
    with lock.held():
        for target in targets:
            if target in _wanted:
                continue
            _wanted[target] = act = functools.partial(_patch, target, is_known)
            try:
                import_hook.when_imported(target.awaited, act)
            except BaseException:  # of a signal handler: the next call does it
                del _wanted[target]
                raise


def _patch(target: Target, is_known: bool, _: ModuleType) -> None:
    """Patch a target, now that what it waited for is there."""
    with lock.held():
        if target not in _wanted:
            return
        module = sys.modules.get(target.module)
        if module is None:  # a part of torch that torch itself does not import
            import_hook.when_imported(target.module, _wanted[target])
            return
        try:
            _replace(target, module)
        except (AttributeError, TypeError) as error:  # TypeError: a class that is written in C
            level = logging.DEBUG if is_known else logging.WARNING
            log.log(level, "%s is not patched: %s", target, error)


def _replace(target: Target, module: ModuleType) -> None:
    owner: Any = module
    for name in target.owners:
        owner = vars(owner).get(name)
        if owner is None:
            raise AttributeError(f"{target.module} has no {'.'.join(target.owners)}")
    if _replaced.has(owner, target.name):
        _replaced.put(owner, target.name, None)  # an interrupted call may not have come so far
        return
    # A module's __getattr__ is not asked: it may import.
    raw = inspect.getattr_static(owner, target.name, None)
    function = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
    if not callable(function) or isinstance(function, type):
        raise AttributeError(f"the module has no function {target.name}")
    _replaced.put(owner, target.name, _replacement(target, raw, function))
    if owner is module:  # torch.load is torch.serialization.load, for one
        _replaced.put_everywhere(target.module.partition(".")[0])


def _replacement(target: Target, raw: Any, function: Any) -> Any:
    # Not in the replacement's own closure: dill follows that to the end, which a function within itself does not have.
    here = _Here(target, raw, function)

    @functools.wraps(function)
    def routed(*args: Any, **kwargs: Any) -> Any:
        return here.called(args, kwargs)

    _replaced.note(routed, function)
    here.replacement = type(raw)(routed) if isinstance(raw, (classmethod, staticmethod)) else routed
    return here.replacement


class _Here:
    """One replacement: what it stands for, and how it is called."""

    replacement: Any = None

    def __init__(self, target: Target, raw: Any, function: Any) -> None:
        self._target, self._raw, self._function = target, raw, function

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not _is_wanted(self._target) or not _is_ours(self._target, args, kwargs):
            return self._function(*args, **kwargs)
        if not isinstance(self._raw, classmethod):
            return _call(self.replacement, self._function, args, kwargs)
        cls, *rest = args
        bound = _bound(self._target, self.replacement, cls)
        return _call(bound, functools.partial(self._function, cls), tuple(rest), kwargs)


def _bound(target: Target, replacement: Any, cls: type) -> Any:
    """Return a class method as one would name it: its key has the name."""
    if inspect.getattr_static(cls, target.name, None) is replacement:
        return getattr(cls, target.name)
    return Inherited(target, cls)  # the class has one of its own, which has called this one


def _is_wanted(target: Target) -> bool:
    return target in _wanted and not environment.is_disabled()


class _Thread(threading.local):
    """The state of the present thread."""

    is_calling = False  # within a patched function: its own calls stay in this process


_thread = _Thread()


def _is_ours(target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call may be answered from the cache."""
    if _thread.is_calling:
        return False
    file = args[0] if args else kwargs.get("f", kwargs.get("filename"))
    return not target.takes_files or isinstance(file, (str, os.PathLike))


def _call(
    function: Callable[..., Any], original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return a kept result, or what the original returns. `function`: as another process can look it up by its name."""
    from zerocopy.share import loading  # which needs torch

    _thread.is_calling = True
    try:
        return torch_compiler.untraced(loading.load_as_program)(function, original, args, kwargs)
    finally:
        _thread.is_calling = False


class Inherited:
    """A class method of a base class, for a class that has one of its own by that name.

    ``super().from_pretrained`` has no name by which another process could look it up.
    """

    def __init__(self, target: Target, cls: type) -> None:
        self._target, self._cls = target, cls
        self.__module__ = cls.__module__
        self.__qualname__ = f"{cls.__qualname__}.{target.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Inherited, (self._target, self._cls)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it as ``super()`` would."""
        owner: Any = importlib.import_module(self._target.module)
        for name in self._target.owners:
            owner = getattr(owner, name)
        return vars(owner)[self._target.name].__func__(self._cls, *args, **kwargs)
