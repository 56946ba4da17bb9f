"""Registry of replaced functions, so that two kinds of patches can be undone in any order.

If a patch is undone while another lies over it, its replacement stays in place, and only passes calls on. The patch
above unwraps such replacements when it restores an attribute. Otherwise they would stay for good.

An exception of a signal handler may end these functions between any two steps. So an attribute is recorded before it is
replaced, and until it is restored. A second call then does the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from zerocopy.process.fork_safe import ForkSafeLock

Function = Callable[..., Any]

#: Held while a registry changes, or the state that decides which replacements are wanted.
lock = ForkSafeLock()

_MARK = "_zerocopy_replacement"
_MISSING: Any = object()


class _Attribute(NamedTuple):
    owner: Any  # a module or a class
    name: str
    before: Any  # as the owner's __dict__ had it: a classmethod object, say; _MISSING if a base class has it
    now: Any


class Replacements:
    """The attributes that one patch has replaced."""

    def __init__(self) -> None:
        self._attributes: dict[tuple[int, str], _Attribute] = {}
        self._functions: list[Any] = []  # replacements that this patch made

    def replacement_of(self, original: Any, make: Callable[[Any], Any]) -> Any:
        """Return this patch's replacement of a function. The first call makes it by `make`."""
        for known in self._functions:
            if known is original or getattr(known, _MARK)[1] is original:
                return known
        made = make(original)
        self.note(made, original)
        return made

    def note(self, replacement: Any, original: Any) -> None:
        """Remember that a function of this patch replaces another."""
        # The mark has the replacement itself, because functools.wraps copies the mark to wrappers of the replacement.
        setattr(replacement, _MARK, (replacement, original, self))
        self._functions.append(replacement)

    def has(self, owner: Any, name: str) -> bool:
        """Return whether this patch has replaced an attribute."""
        return (id(owner), name) in self._attributes

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled function brings its registry to another process, where nothing is replaced.
        return Replacements, ()

    def keeps(self, function: Any) -> bool:
        """Return whether a replacement is in use."""
        return any(known is function for known in self._functions)

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace an attribute of a module or class, unless this patch has done so before."""
        if not self.has(owner, name):
            before = vars(owner).get(name, _MISSING)
            self._attributes[id(owner), name] = _Attribute(owner, name, before, replacement)
        attribute = self._attributes[id(owner), name]
        if vars(owner).get(name, _MISSING) is attribute.before:  # nobody else has replaced it since
            setattr(owner, name, attribute.now)

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace a function of a module or class by the one that `make` returns for it."""
        made = None if self.has(owner, name) else self.replacement_of(getattr(owner, name), make)
        self.put(owner, name, made)

    def put_everywhere(self, library: str = "") -> None:
        """Replace the same functions where other modules have them: those of one library, or all modules."""
        attributes = self._attributes.values()
        known = {id(each.before): each.now for each in attributes if each.before is not _MISSING}
        for name, module in list(sys.modules.items()):  # programs can put any object there
            if isinstance(module, ModuleType) and library in ("", name.partition(".")[0]):
                for alias, value in list(vars(module).items()):
                    if id(value) in known:
                        self.put(module, alias, known[id(value)])

    def restore(self) -> None:
        """Restore all attributes, except those that somebody else has set since."""
        while self._attributes:
            key, (owner, name, before, now) = next(reversed(self._attributes.items()))
            if vars(owner).get(name, _MISSING) is not now:
                pass
            elif before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, _unwrap(before, self._is_over))
            del self._attributes[key]
        self._functions.clear()

    def _is_over(self, registry: Replacements, function: Any) -> bool:
        return registry is self or not registry.keeps(function)


def original(function: Any) -> Any:
    """Return a function, or the original under all replacements of it."""
    return _unwrap(function, lambda *_: True)


def _unwrap(function: Any, is_unwanted: Callable[[Replacements, Any], bool]) -> Any:
    """Return a function without its outer replacements, down to the first one that is still wanted."""
    while True:
        mark = getattr(function, _MARK, None)
        if type(mark) is not tuple:  # A mock returns a mock for every attribute.
            return function
        replacement, under, registry = mark
        if replacement is not function or not is_unwanted(registry, function):
            return function
        function = under
