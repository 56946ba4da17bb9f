"""New files: one, or shards with their index. They get their names when all of them are complete."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from zerocopy.converting.shard_plan import Layout, index_text
from zerocopy.saving.atomic_file import NewFile, Written, replacing

_logger = logging.getLogger("zerocopy")


class Content(NamedTuple):
    """The content of a file: its size in bytes, for `progress`, and a function that writes it."""

    total: int
    write: Callable[[NewFile, Written], object]


@contextlib.contextmanager
def one_file(target: Path, *, has_name: bool) -> Iterator[list[NewFile]]:
    """Yield a new file that replaces `target` at the end. With `has_name`, it has a temporary name until then."""
    with replacing(target, has_name=has_name) as new:
        yield [new]


class NewShards:
    """New files for shards. All of them and their index get their names in one step, when they are complete.

    No shard gets the name of an existing file, so until that step the old checkpoint in the folder stays complete. The
    shards that the old index listed are deleted in the same step.

    Attributes
    ----------
    files : list of NewFile
        In order.
    """

    def __init__(self, layout: Layout, count: int, *, has_name: bool = False) -> None:
        self._layout, self._old = layout, layout.present()
        for path in self._old:
            if path.exists() and not os.access(path, os.W_OK, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        self._is_new_folder = not layout.folder.exists()
        self.files: list[NewFile] = []
        try:
            if self._is_new_folder:
                layout.folder.mkdir()
            # Their temporary names come from the index's, so the next save finds them all if this one is killed.
            index = os.path.realpath(layout.index_path)
            for like in itertools.islice(itertools.chain(self._old, itertools.repeat(None)), count):
                like = like or (self._old or [layout.index_path])[-1]
                self.files.append(NewFile(index, like=os.fspath(like), has_name=has_name, is_new=True))
        except BaseException:
            self.close()
            raise

    def finish(self, names: list[list[str]], total: int) -> None:
        """Write the index, give the files their names, and delete the old shards."""
        for new in self.files:  # a full disk raises its error before the first file has its name
            new.sync()
        layout = self._layout.free(len(self.files))
        folder = os.path.realpath(layout.folder)
        parts = [
            (new, os.path.join(folder, layout.shard(number, len(self.files)).name))
            for number, new in enumerate(self.files, 1)
        ]
        old = [os.fspath(path) for path in self._old]
        with replacing(layout.index_path, parts=parts, old=old, counts_from_end=True) as index:
            index.write(index_text(layout, names, total))
        self._is_new_folder = False
        if (other := layout.preferred()) is not None:
            _logger.warning("%s exists too, and loaders of the folder take it: remove one of the two", other)

    def close(self) -> None:
        """Delete the files that have no final name yet, and the folder if it was made for them."""
        for new in self.files:
            new.close()
        if self._is_new_folder:
            with contextlib.suppress(OSError):  # another program has put a file there
                self._layout.folder.rmdir()


@contextlib.contextmanager
def shard_files(layout: Layout, names: list[list[str]], total: int) -> Iterator[list[NewFile]]:
    """Yield a new file for each shard. At the end, all get their names, the index last."""
    with contextlib.closing(NewShards(layout, len(names))) as new:
        yield new.files
        new.finish(names, total)
