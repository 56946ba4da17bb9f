"""The nested dicts and lists of a ``torch.distributed.checkpoint`` folder: ``.metadata`` has a path for each name."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from zerocopy import _core
from zerocopy.display import count, described, shown
from zerocopy.errors import FormatError

_MAX_GAP = 1024  # successive items of a list without a name
_MAX_DEPTH = 1000  # of nested values, as in a pickle
_POINTER = 8
_CONTAINER = 256  # a dict with one item

Key = str | int
Path = tuple[Key, ...]


def checked(name: object, path: Any) -> Path:
    """Return the path of a name."""
    if not isinstance(path, tuple) or not path or not all(type(key) in (str, int) for key in path):
        raise TypeError(f"expected a path of names and numbers, found {described(path)}")
    if len(path) > _MAX_DEPTH:
        raise ValueError(
            f"expected a path of at most {_MAX_DEPTH} keys for {described(name)}, found {len(path)}"
        )
    return path


def require_one_object(names: Iterable[str], paths: Mapping[str, Path], metadata_size: int) -> None:
    """Require paths that make one nested object of all names, without a wide gap in a list."""
    nested(dict.fromkeys(names, True), paths, metadata_size, _MAX_GAP)


def nested(
    values: Mapping[str, Any], paths: Mapping[str, Path], metadata_size: int, max_gap: int | None = None
) -> dict[str, Any]:
    """Return some of the values by name as the nested object. A list has None where no value is given.

    Strings are keys of dicts, numbers are places in lists. Both are made as they are needed.
    """
    root: dict[Any, Any] = {}
    budget = _core.Budget(metadata_size, "far more dicts, lists and gaps in lists than it spells out")
    for name, value in values.items():
        path: tuple[Any, ...] = paths.get(name, (name,))
        here: Any = root
        for key, following in itertools.zip_longest(path, path[1:]):
            if isinstance(here, list):
                _make_room(here, name, key, budget, max_gap)
            elif not isinstance(here, dict):
                raise FormatError(
                    f"{shown(name)} belongs where something else is: inside the value of another name"
                )
            inner = here[key] if isinstance(here, list) else here.get(key)
            if following is None:
                if inner is not None:
                    raise FormatError(f"{shown(name)} belongs where something else is")
                here[key] = value
            elif inner is None:
                budget.charge(_CONTAINER)
                inner = here[key] = {} if isinstance(following, str) else []
            here = inner
    return root


def _make_room(here: list[Any], name: str, key: Key, budget: _core.Budget, max_gap: int | None) -> None:
    """Extend a list to have a place of that number."""
    if not isinstance(key, int) or key < 0:
        raise FormatError(f"{shown(name)} belongs in a list, but {described(key)} is not an index of a list")
    missing = max(0, key + 1 - len(here))
    if max_gap is not None and missing > max_gap + 1:
        raise FormatError(
            f"{shown(name)} is item {described(key)} of a list of which {count(len(here), 'item')} came before: "
            f"at most {max_gap} may be missing"
        )
    budget.charge(_POINTER * missing)
    here.extend([None] * missing)
