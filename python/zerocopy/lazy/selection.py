"""Choosing leaves by their dotted names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from zerocopy.lazy.name_hints import no_such_name

Predicate = Callable[[str], bool]


class Named(Protocol):
    """A source of names: a ``_C.Lazy``, a ``zerocopy.loading.formats.shard_index.Index``."""

    @property
    def name(self) -> str:
        """Return its name in messages."""

    def names(self) -> list[str]:
        """Return the names of its tensors."""

    def other_names(self) -> list[str]:
        """Return the names of its other leaves."""


class Selection(NamedTuple):
    """The leaves that a caller wants: those that satisfy all that is given, as for :func:`zerocopy.lazy_load`."""

    keys: Iterable[str] | None = None
    prefix: str | None = None
    predicate: Predicate | None = None

    @property
    def is_of_all(self) -> bool:
        """Return whether every tensor is selected."""
        return all(each is None for each in self)

    def chosen(self, native: Named) -> list[str] | None:
        """Return the names of selected leaves, or None without a filter."""
        keys, prefix, predicate = self
        if self.is_of_all:
            return None
        if isinstance(keys, str):
            raise TypeError("expected keys to be a list of names, got one string")
        if keys is not None:
            if not isinstance(keys, Iterable):
                raise TypeError(f"expected keys to be a list of names, got {type(keys).__name__}")
            keys = set(keys)
            for key in keys:
                if not isinstance(key, str):
                    raise TypeError(f"expected keys to be strings, got {type(key).__name__}")
        if prefix is not None and not isinstance(prefix, str):
            raise TypeError(f"expected prefix to be a str, got {type(prefix).__name__}")
        if predicate is not None and not callable(predicate):
            raise TypeError(f"expected predicate to be a function of a name, got {type(predicate).__name__}")
        names: list[str] = [*native.names(), *native.other_names()]
        if keys is not None:
            names = _under(keys, names, native.name)
        if prefix is not None:
            names = [name for name in names if name.startswith(prefix)]
        return names if predicate is None else [name for name in names if predicate(name)]


def _under(keys: set[str], names: list[str], path: str) -> list[str]:
    """Return the names that are among the keys, or in a branch that is."""
    lengths, unknown, kept = {len(key) for key in keys}, set(keys), []
    for name in names:
        # Only what is as long as a key is looked up: a stranger's name may have any number of dots.
        if known := keys & {name[:end] for end in _ends(name) if end in lengths}:
            unknown -= known
            kept.append(name)
    if unknown:
        raise no_such_name(path, min(unknown), names)
    return kept


def _ends(name: str) -> Iterator[int]:
    """Yield where the names of the branches that a leaf is in end, and its own."""
    end = name.find(".")
    while end >= 0:
        yield end
        end = name.find(".", end + 1)
    yield len(name)
