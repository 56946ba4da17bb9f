"""Earlier results as arguments: which object is one, and whether it still is what the server has.

An object that was changed since, in its tensors or anywhere else, is sent by value. Its unchanged storages
are still sent as references.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from zerocopy.saving.mapped_files import MappedFiles
from zerocopy.share.objects import fingerprint


class LostReference(Exception):
    """The server has forgotten an earlier result."""


#: Attaches once more to the result of that name, or raises ``LostReference``.
Again = Callable[[str], Any]


class Origin(NamedTuple):
    """Where mapped memory is from: a result, and which part of it."""

    entry: str
    part: int


class _Memory(NamedTuple):
    number: int  # negative, as no descriptor is; states that are kept have it
    origin: Origin


_results: dict[int, tuple[weakref.ref[Any], str]] = {}
# Of results as the server has them, as long as they are here.
_states: dict[str, fingerprint.State | None] = {}
_memory: dict[str, _Memory] = {}  # by what the kernel calls it in /proc/self/maps
_numbers = itertools.count(-1, -1)
_most_memory = 64  # so many are looked through for what is mapped no more


def note(result: Any, entry: str, memory: Sequence[tuple[int, int]]) -> None:
    """Note that an object is a result, and that these descriptors, (part, descriptor), are its memory."""
    for part, descriptor in memory:
        status = os.fstat(descriptor)
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        found = _Memory(next(_numbers), Origin(entry, part))
        known = _memory.setdefault(f"{device} {status.st_ino}", found)
        _memory[f"{device} {status.st_ino}"] = found._replace(number=known.number)
    if len(_memory) > _most_memory:
        _forget_unmapped()
    at = id(result)
    with contextlib.suppress(TypeError):  # a dict, a list, ...: known by its tensors alone
        _results[at] = weakref.ref(result, lambda _: _forget(at)), entry


def _forget_unmapped() -> None:
    """Forget the memory of results that are gone. Seldom enough to cost nothing."""
    global _most_memory
    noted = list(_memory)  # before: what another thread notes meanwhile is mapped
    for identity in set(noted) - MappedFiles().identities():
        _memory.pop(identity, None)
    _most_memory = max(64, 2 * len(_memory))


def _forget(at: int) -> None:
    _, entry = _results.pop(at, (None, ""))
    _states.pop(entry, None)


class References:
    """The parts of one call's arguments that the server has.

    Parameters
    ----------
    again : callable, optional
        Attaches to a result. Without it nothing is known, and all goes by value.
    """

    def __init__(self, again: Again | None) -> None:
        self._again = again
        self._stack = contextlib.ExitStack()
        self._mapped: MappedFiles | None = None
        self.arguments: list[Any] = []
        self._found: dict[int, int] = {}  # the numbers of those, by id
        self.origins: dict[int, Origin] = {}
        self._numbers: dict[str, int] = {}
        # All at once: other threads add to it.
        for identity, (number, origin) in list(_memory.items()) if again else ():
            self.origins[number] = origin
            self._numbers[identity] = number

    def __enter__(self) -> References:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def mapped(self) -> MappedFiles:
        """Return what is mapped here now: of the server's memory, by numbers that stand for it."""
        if self._mapped is None:
            self._mapped = self._stack.enter_context(MappedFiles(self._numbers))
        return self._mapped

    def name_of(self, obj: Any) -> tuple[str, int] | None:
        """Return the name of a result that is what it was, and its number here; None of all other objects."""
        number = self._found.get(id(obj))
        if number is not None:
            return _results[id(obj)][1], number
        found = _results.get(id(obj))
        if found is None or found[0]() is not obj or self._again is None:
            return None
        if not self._is_unchanged(obj, found[1], self._again):
            return None
        number = self._found[id(obj)] = len(self.arguments)
        self.arguments.append(obj)
        return found[1], number

    def _is_unchanged(self, obj: Any, entry: str, again: Again) -> bool:
        # Once: another result of the entry may end meanwhile, and the state with it.
        known = _states.get(entry)
        try:
            fresh = again(entry) if known is None else None
        except LostReference:
            return False
        with MappedFiles(self._numbers) as mapped:
            if known is None:
                known = _states[entry] = fingerprint.of(fresh, mapped)
            return fingerprint.are_same(known, fingerprint.of(obj, mapped))
