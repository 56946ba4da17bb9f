"""Present a checkpoint to ``torch.distributed.checkpoint``: tensors and values by DCP's names."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from typing import Any, NamedTuple

import torch

from zerocopy._torch import distributed
from zerocopy.display import shown
from zerocopy.errors import FormatError, UnsupportedError
from zerocopy.lazy import opening
from zerocopy.lazy.checkpoint import Checkpoint
from zerocopy.lazy.layer import FileLayer
from zerocopy.lazy.opening import overlay
from zerocopy.lazy.reading.parts import CheckpointSource
from zerocopy.loading.extents import Box, FileVersion, TensorExtents

Path = tuple[str | int, ...]


class TensorMetadata(NamedTuple):
    """Shape and dtype of a tensor, and its name in the checkpoint."""

    stored_name: str
    shape: torch.Size
    dtype: torch.dtype


class Table(NamedTuple):
    """The metadata that one rank sends to the others, so that they need not parse the checkpoint.

    Attributes
    ----------
    tensors : dict of str to TensorMetadata
        By the names that a state dict has.
    extents : dict of str to TensorExtents or None
        By stored name; None of what requests cannot read.
    values : dict of str to bytes
        Everything else, each as ``torch.save`` writes it.
    paths : dict of str to tuple
        The keys of nested dicts and lists that lead to each.
    versions : dict of str to FileVersion
        Of the files.
    """

    tensors: dict[str, TensorMetadata]
    extents: dict[str, TensorExtents | None]
    values: dict[str, bytes]
    paths: dict[str, Path]
    versions: dict[str, FileVersion]


class StoredState:
    """The tensors and values of a checkpoint, read by this process or told by another.

    Parameters
    ----------
    path : path
        As for ``zerocopy.open``.
    aliases : mapping of str to str
        Further names of tensors: name in the state dict, name in the checkpoint.
    table : Table, optional
        The metadata, as another process read them.
    """

    def __init__(self, path: Any, aliases: Mapping[str, str], table: Table | None = None) -> None:
        self._path, self._aliases, self._table = path, aliases, table
        self._opened = ExitStack()
        self.tensors: dict[str, TensorMetadata] = {}
        self.paths: dict[str, Path] = {}
        self._values: dict[str, Any] = {}
        if table is None:
            try:
                self._examine()
            except BaseException:
                self.close()
                raise
        else:
            self.tensors, self.paths, self._values = table.tensors, table.paths, dict.fromkeys(table.values)

    def close(self) -> None:
        """Close the files."""
        self._opened.close()

    @property
    def value_names(self) -> list[str]:
        """The names of everything that is not a tensor."""
        return list(self._values)

    def value(self, name: str) -> bytes:
        """Return a value as ``torch.save`` writes it. It was made by the safe loader."""
        if self._table is not None:
            return self._table.values[name]
        held, value = io.BytesIO(), self._values[name]
        torch.save(self._folder_values[name] if value is _IN_FOLDER else value, held)
        return held.getvalue()

    def extents(self, name: str, box: Box | None = None) -> TensorExtents | None:
        """Return where a tensor lies, or a box of it; None if it cannot be read by requests."""
        stored = self.tensors[name].stored_name
        return self._source.extents(stored, box) if self._table is None else self._table.extents[stored]

    def version(self, file: str) -> FileVersion:
        """Return the version that a file must have."""
        return self._source.version(file) if self._table is None else self._table.versions[file]

    def indexed(self, name: str, index: Any) -> torch.Tensor:
        """Return a part of a tensor in another way than by requests."""
        return self._checkpoint.get_slice(self.tensors[name].stored_name)[index]

    def table(self) -> Table:
        """Return the metadata that other processes need."""
        extents = {described.stored_name: self.extents(name) for name, described in self.tensors.items()}
        files = {chunk.file for found in extents.values() if found for chunk in found.chunks}
        values = {name: self.value(name) for name in self._values}
        return Table(self.tensors, extents, values, self.paths, {file: self.version(file) for file in files})

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        if not isinstance(self._path, (list, tuple)):
            return self._opened.enter_context(opening.open(self._path))
        each = [self._opened.enter_context(opening.open(path)) for path in self._path]
        homes: dict[str, str] = {}
        for one in each:
            for name in one:
                if name in homes:
                    raise FormatError(
                        f"{shown(name)} is in {homes[name]} and in {one.path}: leave one of the files out"
                    )
                homes[name] = one.path
        return self._opened.enter_context(overlay(*each))

    @cached_property
    def _source(self) -> CheckpointSource:
        return CheckpointSource(self._checkpoint)

    @cached_property
    def _folder_values(self) -> dict[str, Any]:
        return self._checkpoint.metadata()

    def _examine(self) -> None:
        checkpoint = self._checkpoint
        for layer in checkpoint.layers:
            for name, shape, dtype in layer.shapes():
                self.tensors[name] = TensorMetadata(name, shape, dtype)
        only = checkpoint.layers[0] if len(checkpoint.layers) == 1 else None
        only = only if isinstance(only, FileLayer) else None
        if only is not None and only.container == "distributed":
            folder = only.folder()
            self.paths = {name: folder.paths.get(name, (name,)) for name in folder.entries}
            self._values = {name: _IN_FOLDER for name in folder.entries if name not in self.tensors}
        elif only is not None and only.is_nested:
            self._flatten(checkpoint.path, only.build(None))
        else:
            self.paths = {name: (name,) for name in self.tensors}
            self._add_recorded_ties(checkpoint)
        self._add_aliases()

    def _flatten(self, path: str, saved: Any) -> None:
        """Name tensors and values as ``torch.distributed.checkpoint`` names them."""
        if not isinstance(saved, dict):
            raise UnsupportedError(
                f"{path}: expected a dict, as a state dict is, found a {type(saved).__name__}"
            )
        try:
            flat, self.paths = distributed.flattened(saved)
        except ValueError as error:
            raise FormatError(f"{path}: {error}") from None
        known, self.tensors = self.tensors, {}
        for name in known:
            base, tilde, number = name.rpartition("~")
            if tilde and number.isdigit() and base in known:
                raise UnsupportedError(
                    f"{path}: expected different names, found two tensors named {shown(base)}"
                )
        for name, value in flat.items():
            if not isinstance(value, torch.Tensor):
                self._values[name] = value
            elif name in known:
                self.tensors[name] = known[name]
            else:
                raise UnsupportedError(
                    f"{path}: a tensor at {shown(name)} that has another name: save it anew"
                )

    def _add_recorded_ties(self, checkpoint: Checkpoint) -> None:
        """Add the names that a ``.safetensors`` file leaves out and its metadata record: left out, kept."""
        for left_out, kept in checkpoint.metadata().items():
            if left_out not in self.tensors and isinstance(kept, str) and kept in self.tensors:
                self.tensors[left_out] = self.tensors[kept]
                self.paths[left_out] = (left_out,)

    def _add_aliases(self) -> None:
        for name, stored in self._aliases.items():
            if stored not in self.tensors:
                raise KeyError(
                    f"aliases: {name!r} is to be {stored!r}, and the checkpoint has no such tensor"
                )
            self.tensors[name] = self.tensors[stored]
            self.paths[name] = (name,)


_IN_FOLDER = object()
