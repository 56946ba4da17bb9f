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


class Source(NamedTuple):
    """The server, as far as earlier results are concerned.

    Attributes
    ----------
    again : callable
        Attaches once more to the result of that name, or raises ``LostReference``.
    keep : callable
        Has the server keep the digest of a result, for other processes.
    """

    again: Callable[[str], Any]
    keep: Callable[[str, str], None]


class Origin(NamedTuple):
    """The origin of mapped memory: a result, and the number of its part."""

    entry: str
    part: int


class _Memory(NamedTuple):
    number: int  # negative, as no descriptor is; states that are kept have it
    origin: Origin


_results: dict[int, tuple[weakref.ref[Any], str]] = {}
# Digests of results as the server has them, as long as they are here: those that other processes computed from a
# fresh copy, and those that this one did.
_theirs: dict[str, str] = {}
_own: dict[str, str | None] = {}
_memory: dict[str, _Memory] = {}  # by what the kernel calls it in /proc/self/maps
_numbers = itertools.count(-1, -1)
_most_memory = 64  # so many are looked through for what is mapped no more


def note(result: Any, entry: str, memory: Sequence[tuple[int, int]], digest: str) -> None:
    """Note that an object is a result, and that these descriptors, (part, descriptor), are its memory.

    The digest is that which another process has computed; it may be empty.
    """
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
        if digest:
            _theirs[entry] = digest


def _forget_unmapped() -> None:
    """Forget the memory of results that are gone. Seldom enough to cost nothing."""
    global _most_memory
    noted = list(_memory)  # before: what another thread notes meanwhile is mapped
    for identity in set(noted) - MappedFiles().identities():
        _memory.pop(identity, None)
    _most_memory = max(64, 2 * len(_memory))


def _forget(at: int) -> None:
    _, entry = _results.pop(at, (None, ""))
    _theirs.pop(entry, None)
    _own.pop(entry, None)


class References:
    """The parts of one call's arguments that the server has.

    Parameters
    ----------
    source : Source, optional
        The server. Without it nothing is known, and all goes by value.
    """

    def __init__(self, source: Source | None) -> None:
        self._source = source
        self._stack = contextlib.ExitStack()
        self._mapped: MappedFiles | None = None
        self.arguments: list[Any] = []
        self._found: dict[int, int] = {}  # the numbers of those, by id
        self.origins: dict[int, Origin] = {}
        self._numbers: dict[str, int] = {}
        # All at once: other threads add to it.
        for identity, (number, origin) in list(_memory.items()) if source else ():
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
        if found is None or found[0]() is not obj or self._source is None:
            return None
        if not self._is_unchanged(obj, found[1], self._source):
            return None
        number = self._found[id(obj)] = len(self.arguments)
        self.arguments.append(obj)
        return found[1], number

    def name_none(self) -> None:
        """Have all results go by value. Their memory is still known."""
        self._source = None
        self.arguments.clear()
        self._found.clear()

    def _is_unchanged(self, obj: Any, entry: str, source: Source) -> bool:
        digest = self._digest_of(obj)
        if digest is None:
            return False
        if digest == _theirs.get(entry):
            return True
        if entry not in _own:
            # A fresh copy tells more than another process, which may describe the same object in another way.
            try:
                fresh = _own[entry] = self._digest_of(source.again(entry))
            except LostReference:
                return False
            if fresh is not None and entry not in _theirs:
                source.keep(entry, fresh)
        return digest == _own.get(entry)

    def _digest_of(self, obj: Any) -> str | None:
        names = {number: identity for identity, number in self._numbers.items()}
        with MappedFiles(self._numbers) as mapped:
            return fingerprint.digest_of(obj, mapped, names)
