"""Files whose tensors are converted without torch: the core lists the tensors, and their bytes are copied unchanged."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Mapping, Sequence
from pickle import UnpicklingError
from typing import Any, NamedTuple

from zerocopy import _core, remote
from zerocopy.catalogue import contents
from zerocopy.catalogue.files import OpenFile, Trouble
from zerocopy.errors import Error
from zerocopy.loading.formats import model_folder, shard_index

_ATTRIBUTES = {"_metadata"}  # of the root: those of a state_dict, which no target of dotted names has
_OF_MORE = ("set", "frozenset", "Counter")  # leaves that hold values
_MAX_TEXT = 250  # characters, of which the core lists all


class PlainEntry(NamedTuple):
    """The facts about a dense tensor, as a ``_C.TensorEntry`` has them."""

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    storage_offset: int
    nbytes: int
    offset: int | None
    storage: str
    storage_nbytes: int
    is_dense: bool = True
    is_conjugate: bool = False
    is_negative: bool = False


class PlainLayer:
    """An open file whose tensors the core lists. ``convert`` uses it like a ``FileLayer``, but without torch.

    Attributes
    ----------
    path : str
        The path of the file.
    container : str
        The format.
    nbytes : int
        The bytes of the file.

    Raises
    ------
    Trouble, OSError, zerocopy.Error, pickle.UnpicklingError
        The file cannot be read, or reading it needs torch.
    """

    def __init__(self, path: str, containers: Collection[str]) -> None:
        self.path = path
        self._file = OpenFile(path)
        try:
            self._status, self.nbytes = os.fstat(self._file.descriptor), self._file.size
            self.container = _core.container(self._file.descriptor, path)
            facts = contents.facts_of(self._file) if self.container in containers else None
            if facts is None or not _is_plain(facts):
                raise Trouble("it takes torch to read it")
        except BaseException:
            self.close()
            raise
        self._tensors = {tensor.name: tensor for tensor in facts["tensors"]}
        self._storages = facts["storages"]
        self._others, self._metadata = facts["others"], facts["metadata"]
        self.require_there()

    @property
    def descriptor(self) -> int:
        """The open file."""
        return self._file.descriptor

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def require_there(self) -> None:
        """Raise ``OSError`` (ESTALE) if the file was moved, replaced or changed since it was opened."""
        for now in (os.stat(self.path), os.fstat(self._file.descriptor)):
            if _identity(now) != _identity(self._status):
                raise OSError(errno.ESTALE, "the file changed since it was opened", self.path)

    def names(self) -> list[str]:
        """Return the names of tensors, in file order."""
        return list(self._tensors)

    def others(self) -> dict[str, Any]:
        """Return the leaves that are not tensors, in file order. Those that are not texts are only named."""
        return {name: value if kind == "str" else None for name, kind, value in self._others}

    def attached(self) -> dict[str, Any]:
        """Return the metadata that the file has beside its leaves."""
        return dict(self._metadata or {})

    def left_out(self) -> list[tuple[str, str]]:
        """Return nothing: every part of such a file is a leaf."""
        return []

    def entry(self, name: str) -> PlainEntry:
        """Return the facts about a tensor."""
        facts = self._tensors[name]
        storage, begin = self._storages[facts.storage], facts.begin // _core.itemsize(facts.dtype)
        return PlainEntry(
            facts.shape,
            facts.dtype,
            facts.stride,
            begin,
            facts.nbytes,
            facts.offset,
            storage.key,
            storage.nbytes,
        )


class Opened(NamedTuple):
    """A checkpoint: its name, its files, and the file of each tensor."""

    path: str
    layers: Sequence[Any]
    homes: Mapping[str, Any]


def plain_sources(paths: Sequence[Any], containers: Collection[str]) -> list[Opened] | None:
    """Open checkpoints without torch. Return None if torch is needed to read one, or to report why it is refused.

    `containers` are the formats that are accepted.
    """
    with (
        contextlib.ExitStack() as on_failure,
        contextlib.suppress(Error, UnpicklingError, OSError, ValueError, Trouble),
    ):
        opened = [_opened(path, containers, on_failure) for path in paths] if containers else None
        on_failure.pop_all()
        return opened
    return None


def _opened(path: Any, containers: Collection[str], on_failure: contextlib.ExitStack) -> Opened:
    if remote.is_url(path):
        raise Trouble("is not on this machine")
    found = model_folder.located(path)
    is_index = isinstance(found, shard_index.Index)
    layers: dict[Any, PlainLayer] = {}
    for file in found.shards if is_index else [found]:
        if not (isinstance(file, (str, os.PathLike)) and os.path.isfile(file)):
            raise Trouble("is not a file")
        layers[file] = PlainLayer(os.fsdecode(file), containers)
        on_failure.callback(layers[file].close)
    held = {file: layer.names() for file, layer in layers.items()}
    homes = shard_index.homes(found, held) if is_index else dict.fromkeys(held[found], found)
    name = found.name if is_index else os.fsdecode(found)
    return Opened(name, list(layers.values()), {leaf: layers[file] for leaf, file in homes.items()})


def _is_plain(facts: dict[str, Any]) -> bool:
    """Return whether all tensors lie row by row in this machine's byte order, and the core lists all other values."""
    return (
        facts["plain"]
        and {*facts["attributes"]} <= _ATTRIBUTES
        and not facts["left_out"]
        and all(storage.location == "cpu" for storage in facts["storages"])
        and all(
            tensor.offset is not None
            and is_text(tensor.name)
            and not (tensor.inside or tensor.is_conjugate or tensor.is_negative)
            and is_in_rows(tensor.shape, tensor.stride)
            for tensor in facts["tensors"]
        )
        and all(
            kind not in _OF_MORE and is_text(name) and (kind != "str" or _is_listed(value))
            for name, kind, value in facts["others"]
        )
    )


def _is_listed(value: str) -> bool:
    """Return whether a text is complete. A text of Python 2 may have any encoding."""
    return len(value) <= _MAX_TEXT and is_text(value)


def is_text(value: str) -> bool:
    """Return whether a string is Unicode text, which UTF-8 can hold."""
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def is_in_rows(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Return whether elements with these strides are contiguous in row order."""
    if 0 in shape:
        return True
    wanted = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size > 1 and step != wanted:
            return False
        wanted *= size
    return True


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
