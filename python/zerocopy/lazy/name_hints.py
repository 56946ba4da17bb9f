"""Errors for unknown tensor names, with close matches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from zerocopy.display import listed, shown

_COMPARED = 500  # names that are compared with a wrong one; of more it would take a noticeable time
_SUGGESTED = 3
_MAX_LENGTH = 200  # characters of a name that are looked at; comparing takes their square


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
    import difflib  # it is for errors: every load would pay for it

    close = difflib.get_close_matches(name[:_MAX_LENGTH], _near(name[:_MAX_LENGTH], names), _SUGGESTED)
    hint = f"; close to it: {listed(map(shown, close))}" if close else ""
    return KeyError(f"{path}: no tensor is named {shown(name) or repr(name)}{hint}")


def _near(name: str, names: Collection[str]) -> list[str]:
    """Return some names of the deepest branch that a name shares with any."""
    branch, _, _ = name.rpartition(".")
    near = (known for known in (_below(branch, names) if branch else names) if len(known) <= _MAX_LENGTH)
    found = list(islice(near, _COMPARED))
    return found if found or not branch else _near(branch, names)


def _below(branch: str, names: Iterable[str]) -> Iterator[str]:
    return (known for known in names if known.startswith(f"{branch}."))
