"""One side of a comparison that takes no torch: importing torch takes most of its time and memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
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


class PlainSide:
    """One of two checkpoints, whose files name only what zerocopy itself makes.

    Raises
    ------
    NeedsTorch
        If what the checkpoint holds is only known when it is loaded, or if it cannot be read.
    """

    def __init__(self, path: str) -> None:
        self._file: OpenFile | None = None
        try:
            located = model_folder.located(path) if "\0" not in path else ""
            if not isinstance(located, str) or not os.path.isfile(located):  # noqa: PTH113
                raise NeedsTorch
            self._file = OpenFile(located)
            self._state = _state(os.fstat(self._file.descriptor))
            self._contents = contents_of(located)
            self._entries = {entry.name: entry for entry in self._contents.entries}
            if not _is_plain(self._file, self._contents):
                raise NeedsTorch
        except (Trouble, Error, OSError, UnpicklingError):
            self.close()
            raise NeedsTorch from None
        except NeedsTorch:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def require_unchanged(self) -> None:
        """Raise ``OSError`` if the file was changed or replaced while it was compared."""
        name = self._contents.files[0]
        if _state(os.stat(name)) != self._state:  # noqa: PTH116
            raise OSError(0, "the file changed while it was compared", name)

    def names(self) -> dict[str, Entry]:
        """Return the names of the tensors, in the order of the file, and what is known of each."""
        return self._entries

    def info(self, name: str) -> Entry:
        """Return what the file states of a tensor."""
        return self._entries[name]

    def containers(self) -> set[str]:
        """Return the formats of the files."""
        return {self._contents.container}

    def values(self) -> dict[str, Any]:
        """Return the values that are not tensors.

        Raises
        ------
        NeedsTorch
            If one of them is not known without loading the file.
        """
        return self._contents.metadata | {value.name: _value_of(value) for value in self._contents.values}

    def value_difference(self, one: Any, other: Any) -> str:
        """Return how two values differ, or an empty string."""
        found = elements.atom_difference(one, other)
        return "" if found is None else found  # two empty containers of one type

    def ties(self, names: Iterable[str]) -> dict[str, str]:
        """Return the names that show the same elements as an earlier one of `names`, with the first such name."""
        ordered = with_ties(self._entries[name]._replace(same_as="", shares_with="") for name in names)
        return {entry.name: entry.same_as for entry in ordered if entry.same_as}

    def place(self, entry: Entry) -> elements.Place | None:
        """Return where the elements of a tensor lie; None if torch is needed to read them."""
        if entry.offset is None or entry.shape is None or entry.dtype not in elements.FORMATS:
            return None
        in_order = entry.stride == elements.row_major(entry.shape) or not entry.nbytes
        if not in_order or any(entry.geometry[-2:]) or self._file is None:
            return None
        return elements.Place(self._file.descriptor, entry.offset)


def both(a: str, b: str) -> tuple[PlainSide, PlainSide]:
    """Return both sides of a comparison.

    Raises
    ------
    NeedsTorch
        If the two cannot be compared without torch.
    """
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(contextlib.closing(PlainSide(a)))
        other = stack.enter_context(contextlib.closing(PlainSide(b)))
        one.values(), other.values()
        for name in one.names().keys() & other.names().keys():
            first, second = one.info(name), other.info(name)
            differ = first.dtype != second.dtype or one.place(first) is None or other.place(second) is None
            if differ and first.shape == second.shape:
                raise NeedsTorch
        stack.pop_all()
        return one, other


def compare(a: PlainSide, b: PlainSide, one: Entry, other: Entry, _: Any, *, brief: bool) -> Any:
    """Compare two tensors of one shape and dtype, and return how they differ. `brief` stops at the first difference."""
    places = a.place(one), b.place(other)
    if places[0] is None or places[1] is None:
        raise NeedsTorch
    return elements.compare(places[0], places[1], one, brief=brief)


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_plain(file: OpenFile, contents: Contents) -> bool:
    """Return whether a file names only what zerocopy itself makes, in the order of bytes of this machine."""
    if contents.container not in _FORMATS:
        return False
    facts = _core.examine(file.descriptor, file.path, pickles.MAX_GLOBALS)
    if any(facts[kind] for kind in ("foreign", "called", "created", "changed", "odd")):
        return False
    names = [entry.name for entry in contents.entries] + [value.name for value in contents.values]
    return (
        facts["attributes"] in ([], _METADATA)
        and len(set(names)) == len(names)
        and not any(entry.made_by or entry.inside for entry in contents.entries)
        and not is_big_endian(file)
    )


def is_big_endian(file: OpenFile) -> bool:
    """Return whether the elements in a zip archive have the other order of bytes."""
    if _core.container(file.descriptor, file.path) != "zip":
        return False
    records = _core.zip_records(file.descriptor, file.path)
    order = next((record for record in records if record.name.endswith("/byteorder")), None)
    return order is not None and file.read(order.offset, order.stored_size) == b"big"


def _value_of(value: Value) -> Any:
    if value.kind in _EMPTY and value.value == 0:
        return _EMPTY[value.kind]
    text = str(value.value)
    # Longer values are cut, and bytes that are not text look like the backslashes of others.
    is_whole = value.kind == "None" or (
        value.value is not None and len(text) < _MAX_TEXT and "\\" not in text
    )
    if value.kind not in _ATOMS or not is_whole:
        raise NeedsTorch
    return value.value
