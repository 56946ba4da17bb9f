"""Dotted names of the leaves of a loaded object.

An index of shards may name tensors by them: ``open`` has them from the core, before anything is loaded.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from zerocopy import _core

_BRANCHES = (dict, OrderedDict, list, tuple)  # exactly these, as in csrc/checkpoint/name_index.h
_COST = 64  # bytes of a leaf or branch, beside its name


def leaves_of(whole: Any, budget: _core.Budget) -> dict[str, Any]:
    """Return the leaves of a loaded object by the names that ``open`` gives them.

    Dicts, lists and tuples are branches, and empty ones within them are leaves. Their keys and positions are joined by
    dots. Keys other than texts, integers, booleans and None get their position. If two leaves have the same name, the
    later one gets "~2" appended.

    Raises
    ------
    zerocopy.FormatError
        The `budget` does not suffice: a few bytes can nest one list in another repeatedly.
    """
    leaves: dict[str, Any] = {}
    # A stack, because a file may nest deeper than Python calls.
    path: list[tuple[int, Iterator[tuple[str, Any]]]] = [(0, iter([("", whole)]))]
    entered = {0}
    while path:
        branch, items = path[-1]
        name, value = next(items, (None, None))
        if name is None:
            entered.remove(branch)
            path.pop()
            continue
        budget.charge(_COST + len(name))
        if type(value) not in _BRANCHES or (path[1:] and not value):
            numbered = (f"{name}~{i}" for i in itertools.count(2))
            leaves[next(each for each in itertools.chain([name], numbered) if each not in leaves)] = value
        elif id(value) not in entered:  # A branch that contains itself is not entered again.
            entered.add(id(value))
            path.append((id(value), _items_of(value, f"{name}." if path[1:] else "")))
    return leaves


def _items_of(branch: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    items = branch.items() if isinstance(branch, dict) else enumerate(branch)
    for place, (key, item) in enumerate(items):
        yield prefix + _spelled(key, place), item


def _spelled(key: Any, place: int) -> str:
    is_short = key is None or (isinstance(key, int) and key.bit_length() < 64)
    return key if isinstance(key, str) else str(key) if is_short else f"#{place}"
