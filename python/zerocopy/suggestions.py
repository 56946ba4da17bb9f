"""What was meant by a name that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from itertools import islice

from zerocopy.showing import shown

_COMPARED = 2000  # names that are looked at for one that was meant; more would take a noticeable time
_SUGGESTED = 3
_LONGEST = 200  # characters of a name; comparing takes their square


def no_such_name(path: str, name: object, names: Collection[str], others: Iterable[str] = ()) -> KeyError:
    """Return the error for a name that is not among `names`; `others` are those of values that are no tensors."""
    if not isinstance(name, str):
        return KeyError(f"{path}: names are strings, not {type(name).__name__}")
    if name in others:
        return KeyError(f"{path}: {shown(name)} is no tensor; metadata() has its value")
    below = list(islice((known for known in names if known.startswith(f"{name}.")), _SUGGESTED))
    if below:
        return KeyError(f"{path}: {shown(name)} is no tensor; below it are {_listed(below)}, ...")
    compared = [known for known in islice(names, _COMPARED) if len(known) <= _LONGEST]
    close = difflib.get_close_matches(name[:_LONGEST], compared, _SUGGESTED)
    hint = f"; close to it: {_listed(close)}" if close else ""
    return KeyError(f"{path}: there is no {shown(name) or repr(name)}{hint}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(shown, names))
