"""Earlier results as arguments: which object is one, and whether it still is what its entry has.

An object that was changed since, in its tensors or anywhere else, goes by value. Its unchanged storages
still are references.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from zerocopy.saving.mapped_files import MappedFiles
from zerocopy.share.objects import fingerprint


class _Known(NamedTuple):
    """An object that is a result, and the entry that has it: ``KEY/ID``."""

    reference: weakref.ref[Any]
    entry: str


_results: dict[int, _Known] = {}
# Digests of unchanged results, by entry. A fresh copy and the object of who computed it may be described in two ways.
_digests: dict[str, set[str | None]] = {}
_rebuilt: set[str] = set()  # entries whose fresh copy is among these


def note(result: Any, entry: str, digest: str | None = None) -> None:
    """Record that an object is the result in an entry. `digest`: of the object that the entry was made of."""
    at = id(result)
    with contextlib.suppress(TypeError):  # a dict, a list, ...: known by its tensors alone
        _results[at] = _Known(weakref.ref(result, lambda _: _results.pop(at, None)), entry)
        if digest is not None:
            _digests[entry] = {digest}


#: Returns a fresh copy of what an entry has, or raises ``LookupError``.
Again = Callable[[str], Any]


class References:
    """The arguments of one call that are earlier results.

    Parameters
    ----------
    again : callable
        Returns a fresh copy.
    """

    def __init__(self, again: Again) -> None:
        self._again: Again | None = again
        self._stack = contextlib.ExitStack()
        self._mapped: MappedFiles | None = None
        self.arguments: list[Any] = []
        self.entries: list[str] = []  # of those
        self._found: dict[int, int] = {}  # their numbers, by id

    def __enter__(self) -> References:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def mapped(self) -> MappedFiles:
        """Return what is mapped here now."""
        if self._mapped is None:
            self._mapped = self._stack.enter_context(MappedFiles())
        return self._mapped

    def name_of(self, obj: Any) -> tuple[str, int] | None:
        """Return the entry of an unchanged result, and its number here; None for all other objects."""
        number = self._found.get(id(obj))
        if number is not None:
            return self.entries[number], number
        known = _results.get(id(obj))
        if known is None or known.reference() is not obj or self._again is None:
            return None
        if not _is_unchanged(obj, known.entry, self._again):
            return None
        number = self._found[id(obj)] = len(self.arguments)
        self.arguments.append(obj)
        self.entries.append(known.entry)
        return known.entry, number

    def name_none(self) -> None:
        """Make all results go by value."""
        self._again = None
        self.arguments.clear()
        self.entries.clear()
        self._found.clear()


def _is_unchanged(obj: Any, entry: str, again: Again) -> bool:
    known, digest = _digests.setdefault(entry, set()), fingerprint.digest_of(obj)
    if digest not in known and entry not in _rebuilt:
        with contextlib.suppress(LookupError):  # it is gone, or is not written yet
            known.add(fingerprint.digest_of(again(entry)))
            _rebuilt.add(entry)
    return digest is not None and digest in known
