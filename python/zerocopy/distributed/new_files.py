"""The new files of a checkpoint, one or many, which replace the old ones at once when all of them are whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from zerocopy.converting import shard_plan
from zerocopy.converting.new_files import NewShards
from zerocopy.display import shown
from zerocopy.distributed.layout import SUFFIXES, Content, NewTensor, StatePath, content_of
from zerocopy.errors import UnsupportedError
from zerocopy.saving.atomic_file import path_of_file, replacing


class Reserved(NamedTuple):
    """The paths of new files, and the space of each tensor: the number of its file, and its offset there."""

    paths: list[str]
    offsets: dict[str, tuple[int, int]]


def new_checkpoint(
    path: str | os.PathLike[str],
    tensors: dict[str, NewTensor],
    values: list[str],
    alignment: int,
    max_shard_size: int | None,
) -> _OneFile | _Shards:
    """Return a new file, or shards of at most so many bytes, in the format of the suffix."""
    if max_shard_size is None:
        return _OneFile(path, content_of(os.fspath(path), Path(path).suffix, tensors, values, alignment))
    if values:
        names = ", ".join(map(shown, values[:10]))
        raise UnsupportedError(
            f"{os.fspath(path)}: shards hold tensors only, found {len(values)} other values: {names}; "
            "save to one .pt, without max_shard_size"
        )
    layout = shard_plan.layout_of(Path(path), SUFFIXES)
    shards = shard_plan.spread((([name], tensor.nbytes) for name, tensor in tensors.items()), max_shard_size)
    contents = [
        content_of(
            os.fspath(layout.index_path),
            layout.suffix,
            {name: tensors[name] for name in names},
            [],
            alignment,
        )
        for names in shards
    ]
    return _Shards(layout, shards, contents, sum(tensor.nbytes for tensor in tensors.values()))


class _OneFile:
    def __init__(self, path: str | os.PathLike[str], content: Content) -> None:
        self._path, self._content = path_of_file(path), content
        self._block = contextlib.ExitStack()

    def begin(self) -> Reserved:
        # Other processes find it by its name.
        new = self._block.enter_context(replacing(self._path, has_name=True, counts_from_end=True))
        offsets = self._content.begin(new)
        return Reserved([new.path], {name: (0, offset) for name, offset in offsets.items()})

    def finish(self, values: Mapping[str, bytes], paths: Mapping[str, StatePath]) -> None:
        self._content.finish(values, paths)
        self._block.close()

    def abandon(self) -> None:
        error = RuntimeError("the save was not finished: the old file is unchanged")
        with contextlib.suppress(RuntimeError):
            self._block.__exit__(RuntimeError, error, None)


class _Shards:
    def __init__(
        self, layout: shard_plan.Layout, names: list[list[str]], contents: list[Content], total: int
    ) -> None:
        self._layout, self._names, self._contents, self._total = layout, names, contents, total
        self._new: NewShards | None = None

    def begin(self) -> Reserved:
        """Reserve space for all tensors."""
        new = self._new = NewShards(self._layout, len(self._contents), has_name=True)
        offsets: dict[str, tuple[int, int]] = {}
        for number, (file, content) in enumerate(zip(new.files, self._contents, strict=True)):
            offsets.update((name, (number, offset)) for name, offset in content.begin(file).items())
        return Reserved([file.path for file in new.files], offsets)

    def finish(self, values: Mapping[str, bytes], paths: Mapping[str, StatePath]) -> None:
        """Write the rest, and give the files their names."""
        assert self._new is not None
        for content in self._contents:
            content.finish({}, {})
        self._new.finish(self._names, self._total)
        self._new.close()

    def abandon(self) -> None:
        """Delete the new files; the old ones stay as they are."""
        if self._new is not None:
            self._new.close()


#: Files that several processes write.
NewCheckpoint = _OneFile | _Shards
