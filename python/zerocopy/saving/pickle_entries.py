"""The entries of the dicts in a pickle, and the names by which they are edited: keys joined by dots."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from zerocopy.display import listed, shown

# How zerocopy.open calls the second entry of a name, and one whose key has no text.
_COUNTED = re.compile(r"(.*)~\d+", re.DOTALL)
_NUMBERED = re.compile(r"(^|\.)#\d+$")


@dataclass(slots=True)
class Value:
    """An object of the pickle, with the properties that editing needs."""

    key: str | None = None  # what it is called as the key of a dict
    is_text: bool = False
    entries: list[Entry] | None = None  # None: it cannot have any


#: Most objects of a pickle have no such properties.
PLAIN = Value()


@dataclass(slots=True)
class Place:
    """The opcodes that put an object on the stack, by their numbers."""

    begin: int
    end: int
    value: Value


class Entry(NamedTuple):
    """A key and a value that go into a dict."""

    key: Place
    value: Place
    setter: int | None  # the opcode that is for this entry alone


class Keys(NamedTuple):
    """The entries of a dict by their keys, and whether it has keys that are not called anything."""

    entries: dict[str, list[Entry]]
    has_others: bool


class EntryNames:
    """The names of the entries of a pickle whose whole object is `root`."""

    def __init__(self, root: Value) -> None:
        self._root = root
        self._keys: dict[int, Keys] = {}  # by the identities of dicts

    def find(self, name: str) -> tuple[Entry, str, Value]:
        """Return the entry of that name, the prefix of names in its dict, and the dict."""
        if not isinstance(name, str):
            raise TypeError(f"expected a str as name, got {name!r}")
        matches = list(self._matches(self._root, name, ""))
        if not self._root.entries:
            raise KeyError(f"no entry is named {shown(name)}: only entries of dicts have names to edit by")
        if not matches:
            known = listed(map(shown, self._keys_of(self._root).entries), 5)
            raise KeyError(f"no entry is named {shown(name)}; on the first level are {known}")
        if len(matches) > 1:
            raise ValueError(f"{name!r} is the name of several entries")
        self._require_one_meaning(name, matches[0][2])
        return matches[0]

    def _require_one_meaning(self, name: str, holder: Value) -> None:
        """Refuse the name of an entry that is also what ``zerocopy.open`` calls another one."""
        several = _COUNTED.fullmatch(name)
        is_counted = several is not None and len(list(self._matches(self._root, several[1], ""))) > 1
        if is_counted or (_NUMBERED.search(name) and self._keys_of(holder).has_others):
            raise ValueError(f"{name!r} is a key, and zerocopy.open calls another entry so")

    def _matches(self, holder: Value, name: str, prefix: str) -> Iterator[tuple[Entry, str, Value]]:
        """Yield the entries of that name in a dict and in dicts in it, what names there begin with, and the dicts."""
        keys = self._keys_of(holder).entries
        for entry in keys.get(name, ()):
            yield entry, prefix, holder
        dot = name.find(".")
        while dot >= 0:
            for entry in keys.get(name[:dot], ()):
                yield from self._matches(entry.value.value, name[dot + 1 :], prefix + name[: dot + 1])
            dot = name.find(".", dot + 1)

    def _keys_of(self, holder: Value) -> Keys:
        found = self._keys.get(id(holder))
        if found is None:
            entries = defaultdict[str, list[Entry]](list)
            has_others = False
            for entry in holder.entries or ():
                if (key := entry.key.value.key) is None:
                    has_others = True
                else:
                    entries[key].append(entry)
            found = self._keys[id(holder)] = Keys(dict(entries), has_others)
        return found


def require_different(holder: Value, keys: Mapping[int, str]) -> None:
    """Raise ``ValueError`` if a new key would be the name of another entry. `keys` are by the ids of the old keys."""
    entries = holder.entries or []
    there = {entry.key.value.key for entry in entries if id(entry.key) not in keys}
    dicts = {keys.get(id(at.key), at.key.value.key) for at in entries if at.value.value.entries is not None}
    new = set[str]()
    for key in [keys[id(entry.key)] for entry in entries if id(entry.key) in keys]:
        if key in there:
            raise ValueError(f"{key!r} exists already")
        if key in new:
            raise ValueError(f"{key!r} would be the name of two entries")
        if outer := [key[:dot] for dot, char in enumerate(key) if char == "." and key[:dot] in dicts]:
            raise ValueError(f"{key!r} would look like an entry of {outer[0]!r}, which is another")
        new.add(key)
    for key in new & dicts:
        if inner := next((other for other in there | new if (other or "").startswith(f"{key}.")), None):
            raise ValueError(f"{inner!r} would look like an entry of {key!r}, which is another")
