"""Dotted names of leaves: selects some, and makes the errors for unknown ones, with close matches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from zerocopy.display import listed, shown

Predicate = Callable[[str], bool]


class Selection(NamedTuple):
    """The selected leaves: those that satisfy each given option, as for :func:`zerocopy.lazy_load`."""

    keys: Iterable[str] | None = None
    prefix: str | None = None
    predicate: Predicate | None = None

    @property
    def is_of_all(self) -> bool:
        """Return whether every tensor is selected."""
        return all(each is None for each in self)

    def chosen(self, native: Any) -> list[str] | None:
        """Return the names of selected leaves, or None without a filter. `native` is a ``_C.Lazy`` or an index."""
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
    """Return the names that are keys, or lie in a branch that is a key."""
    lengths, unknown, kept = {len(key) for key in keys}, set(keys), []
    for name in names:
        # Look up only beginnings as long as a key, because a hostile name may have any number of dots.
        if known := keys & {name[:end] for end in _ends(name) if end in lengths}:
            unknown -= known
            kept.append(name)
    if unknown:
        raise no_such_name(path, min(unknown), names)
    return kept


def _ends(name: str) -> Iterator[int]:
    """Yield the lengths of the names of a leaf's branches, and of its own name."""
    end = name.find(".")
    while end >= 0:
        yield end
        end = name.find(".", end + 1)
    yield len(name)


_COMPARED = 500  # names that are compared with a wrong one; comparing more takes noticeable time
_SUGGESTED = 3
_MAX_LENGTH = 200  # characters of a name that are compared; the time grows with their square


def no_such_name(path: str, name: object, names: Collection[str], others: Iterable[str] = ()) -> KeyError:
    """Return the error for an unknown name. `others` are names of values that are not tensors."""
    if not isinstance(name, str):
        return KeyError(f"{path}: expected a str as name, got {type(name).__name__}")
    if name in others:
        return KeyError(f"{path}: {shown(name)} is not a tensor; metadata() has its value")
    below = list(islice(_below(name, names), _SUGGESTED))
    if below:
        return KeyError(
            f"{path}: {shown(name)} is not a tensor; below it are {listed(map(shown, below))}, ..."
        )
    import difflib  # only errors need this import, and it takes time

    close = difflib.get_close_matches(name[:_MAX_LENGTH], _near(name[:_MAX_LENGTH], names), _SUGGESTED)
    hint = f"; close to it: {listed(map(shown, close))}" if close else ""
    return KeyError(f"{path}: no tensor is named {shown(name) or repr(name)}{hint}")


def _near(name: str, names: Collection[str]) -> list[str]:
    """Return some names of the deepest branch of this name that has any."""
    branch, _, _ = name.rpartition(".")
    near = (known for known in (_below(branch, names) if branch else names) if len(known) <= _MAX_LENGTH)
    found = list(islice(near, _COMPARED))
    return found if found or not branch else _near(branch, names)


def _below(branch: str, names: Iterable[str]) -> Iterator[str]:
    return (known for known in names if known.startswith(f"{branch}."))
