"""The new files of a checkpoint, one or many, which replace the old ones at once when all of them are whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from zerocopy.converting import shard_plan
from zerocopy.display import shown
from zerocopy.distributed.layout import SUFFIXES, Content, NewTensor, StatePath, content_of
from zerocopy.errors import UnsupportedError
from zerocopy.process import interrupts
from zerocopy.saving.atomic_file import NewFile, is_at, log_lost, path_of_file, replacing


class Reserved(NamedTuple):
    """The paths of new files, and the space of each tensor: the number of its file, and its offset there."""

    paths: list[str]
    offsets: dict[str, tuple[int, int]]


class NewCheckpoint(Protocol):
    """Files that several processes write."""

    def begin(self) -> Reserved:
        """Make room."""

    def finish(self, values: Mapping[str, bytes], paths: Mapping[str, StatePath]) -> None:
        """Write the rest, and give the files their names."""

    def abandon(self) -> None:
        """Delete the new files; the old ones stay as they are."""


def new_checkpoint(
    path: str | os.PathLike[str],
    tensors: dict[str, NewTensor],
    values: list[str],
    alignment: int,
    max_shard_size: int | None,
) -> NewCheckpoint:
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
    """Shards and their index. The old index names the old shards until the new index replaces it.

    So no new shard takes the name of a file that exists. Where the usual names are taken, as after an earlier save, the
    new shards get others; the shards of the old index are deleted at the end.
    """

    def __init__(
        self, layout: shard_plan.Layout, names: list[list[str]], contents: list[Content], total: int
    ) -> None:
        self._layout, self._names, self._contents, self._total = layout, names, contents, total
        self._files: list[NewFile] = []
        self._is_new_folder = False

    def begin(self) -> Reserved:
        folder = self._layout.folder
        if not folder.exists():
            folder.mkdir()
            self._is_new_folder = True
        offsets: dict[str, tuple[int, int]] = {}
        index = os.path.realpath(self._layout.index_path)
        for number, content in enumerate(self._contents):
            # Named after the index: the next save there finds what a killed one leaves, however many shards it has.
            new = NewFile(index, has_name=True, is_new=True)
            self._files.append(new)
            begins = content.begin(new)
            offsets.update((name, (number, offset)) for name, offset in begins.items())
        return Reserved([file.path for file in self._files], offsets)

    def finish(self, values: Mapping[str, bytes], paths: Mapping[str, StatePath]) -> None:
        count = len(self._files)
        for content, file in zip(self._contents, self._files, strict=True):
            content.finish({}, {})
            file.sync()
        layout, old = self._layout.free(count), self._layout.present()
        given: list[Path] = []
        written = None
        with interrupts.deferred():  # while files have names that no index names
            try:
                with replacing(self._layout.index_path, counts_from_end=True) as index:
                    index.write(shard_plan.index_text(layout, self._names, self._total))
                    written = os.fstat(index.descriptor)
                    for number, file in enumerate(self._files, 1):
                        shard = layout.shard(number, count)
                        log_lost(os.fspath(shard), file.take_name(os.fspath(shard)))
                        given.append(shard)
            except BaseException:
                if not is_at(self._layout.index_path, written):
                    for path in given:
                        path.unlink(missing_ok=True)
                raise
            self._close()
            for path in old:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def abandon(self) -> None:
        self._close()
        if self._is_new_folder:
            with contextlib.suppress(OSError):  # somebody else has put something there
                self._layout.folder.rmdir()

    def _close(self) -> None:
        """Delete the new files that have only a temporary name."""
        for file in self._files:
            file.close()
        self._files = []
