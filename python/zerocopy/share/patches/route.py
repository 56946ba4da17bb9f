"""One call of a patched function: a kept result, or the original's."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from typing import Any

from zerocopy.process import torch_compiler
from zerocopy.share.patches.targets import Target

Function = Callable[..., Any]


class _Here(threading.local):
    """The state of the present thread."""

    is_calling = False  # within a patched function: its own calls stay in this process


_here = _Here()


def is_ours(target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call may be answered from the cache."""
    if _here.is_calling:
        return False
    file = args[0] if args else kwargs.get("f", kwargs.get("filename"))
    return not target.takes_files or isinstance(file, (str, os.PathLike))


def call(function: Function, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a kept result, or what the original returns.

    Parameters
    ----------
    function : callable
        The function as another process can look it up by its name.
    original : callable
        The replaced function.
    """
    from zerocopy.share import loading  # which needs torch

    _here.is_calling = True
    try:
        return torch_compiler.untraced(loading.load_as_program)(function, original, args, kwargs)
    finally:
        _here.is_calling = False


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
