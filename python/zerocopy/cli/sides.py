"""The two checkpoints of a comparison: the list of tensors of each, and where their elements lie in its files.

Most checkpoints are compared without torch, whose import takes most of the time and memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pickle import UnpicklingError
from typing import Any

from zerocopy import _core
from zerocopy.catalogue.contents import Contents, Entry, Value, contents_of, with_ties
from zerocopy.catalogue.files import OpenFile
from zerocopy.cli import elements, pickles
from zerocopy.cli.runner import Trouble
from zerocopy.errors import Error
from zerocopy.loading.formats import model_folder

_FORMATS = ("zip", "legacy", "safetensors")
_METADATA = [((b"collections", b"OrderedDict"), b"_metadata")]  # of a state dict
_MAX_TEXT = 1000  # characters of a text that the core returns
_ATOMS = ("None", "bool", "int", "float", "str")
_EMPTY: dict[str, Any] = {"dict": {}, "list": [], "tuple": ()}


class NeedsTorch(Exception):
    """A checkpoint, or a pair of them, cannot be compared without torch."""


class Side:
    """One of two checkpoints.

    Parameters
    ----------
    entries : iterable of Entry
        Its tensors. Tensors of several parts (sparse, ...) have no stride.
    containers : set of str
        The formats of its files.
    values : callable
        Returns the values that are not tensors.
    """

    def __init__(
        self, entries: Iterable[Entry], containers: set[str], values: Callable[[], dict[str, Any]]
    ) -> None:
        self.entries = {entry.name: entry for entry in entries}
        self.containers, self.values = containers, values
        placed = {entry.file for entry in self.entries.values() if entry.offset is not None}
        self._states = {file: _state(file) for file in placed if os.path.isfile(file)}
        self._descriptors: dict[str, int] = {}

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def require_unchanged(self) -> None:
        """Raise ``OSError`` if a file was changed or replaced while it was compared."""
        for file, state in self._states.items():
            if _state(file) != state:
                raise OSError(0, "the file changed while it was compared", file)

    def ties(self, names: Iterable[str]) -> dict[str, str]:
        """Return the names whose tensors have the same elements as an earlier name's, each with the first such name."""
        ordered = with_ties(self.entries[name]._replace(same_as="", shares_with="") for name in names)
        return {entry.name: entry.same_as for entry in ordered if entry.same_as}

    def place(self, entry: Entry) -> elements.Place | None:
        """Return where a tensor's elements begin, if the file has them contiguous and in row order; else None."""
        if entry.offset is None or entry.shape is None or entry.file not in self._states:
            return None
        in_order = entry.stride == elements.row_major(entry.shape) or not entry.nbytes
        if not in_order or any(entry.geometry[-2:]):
            return None
        if entry.file not in self._descriptors:
            self._descriptors[entry.file] = os.open(entry.file, os.O_RDONLY | os.O_CLOEXEC)
            self.require_unchanged()
        return elements.Place(self._descriptors[entry.file], entry.offset)

    def compare(
        self, side: Any, one: Entry, other: Entry, tolerance: elements.Tolerance | None, *, brief: bool
    ) -> elements.ValueDifference | None:
        """Compare two tensors of the same shape, and return how they differ. `brief` stops at the first difference."""
        places = _places(self, side, one, other)
        if places is None:
            raise NeedsTorch
        return elements.compare(*places, one, brief=brief)

    def value_difference(self, one: Any, other: Any) -> str:
        """Return how two values differ, or an empty string."""
        found = elements.atom_difference(one, other)
        return "" if found is None else found  # None: two empty containers of the same type


def both(a: str, b: str) -> tuple[Side, Side]:
    """Return both sides of a comparison.

    Raises
    ------
    NeedsTorch
        If the two cannot be compared without torch.
    """
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(contextlib.closing(_plain(a)))
        other = stack.enter_context(contextlib.closing(_plain(b)))
        one.values(), other.values()
        for name in one.entries.keys() & other.entries.keys():
            first, second = one.entries[name], other.entries[name]
            if first.shape == second.shape and _places(one, other, first, second) is None:
                raise NeedsTorch
        stack.pop_all()
        return one, other


def _places(a: Side, b: Side, one: Entry, other: Entry) -> tuple[elements.Place, elements.Place] | None:
    if one.dtype != other.dtype or one.dtype not in elements.FORMATS:
        return None
    places = a.place(one), b.place(other)
    return None if places[0] is None or places[1] is None else (places[0], places[1])


def _plain(path: str) -> Side:
    """Return a checkpoint that refers only to globals that zerocopy builds itself."""
    try:
        located = model_folder.located(path) if "\0" not in path else ""
        if not isinstance(located, str) or not os.path.isfile(located):
            raise NeedsTorch
        with contextlib.closing(OpenFile(located)) as file:
            before, contents = _state(located), contents_of(located)
            side = Side(contents.entries, {contents.container}, lambda: _values(contents))
            if _state(located) == before == _state(file.descriptor) and _is_plain(file, contents):
                return side
    except (Trouble, Error, OSError, UnpicklingError):
        pass
    raise NeedsTorch


def _state(file: str | int) -> tuple[int, ...]:
    status = os.stat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_plain(file: OpenFile, contents: Contents) -> bool:
    """Return whether a file refers only to globals that zerocopy builds itself, and has this machine's byte order."""
    if contents.container not in _FORMATS:
        return False
    facts = _core.examine(file.descriptor, file.path, pickles.MAX_GLOBALS)
    if any(facts[kind] for kind in ("foreign", "called", "created", "changed", "odd", "big_endian")):
        return False
    names = [entry.name for entry in contents.entries] + [value.name for value in contents.values]
    return (
        facts["attributes"] in ([], _METADATA)
        and len(set(names)) == len(names)
        and not any(entry.made_by or entry.inside for entry in contents.entries)
    )


def _values(contents: Contents) -> dict[str, Any]:
    """Return the values that are not tensors. Raise NeedsTorch if one is known only after a load."""
    return contents.metadata | {value.name: _value_of(value) for value in contents.values}


def _value_of(value: Value) -> Any:
    if value.kind in _EMPTY and value.value == 0:
        return _EMPTY[value.kind]
    text = str(value.value)
    # Longer values are truncated, and an escaped byte cannot be told from a literal backslash.
    is_whole = value.kind == "None" or (
        value.value is not None and len(text) < _MAX_TEXT and "\\" not in text
    )
    if value.kind not in _ATOMS or not is_whole:
        raise NeedsTorch
    return value.value
