"""New files, one or shards with their index, which take their names when all of them are whole."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from zerocopy.converting.shard_plan import Layout, index_text
from zerocopy.process import interrupts
from zerocopy.saving.atomic_file import NewFile, Written, is_at, replacing

_logger = logging.getLogger("zerocopy")


class Content(NamedTuple):
    """The content of a file: the bytes that progress is told of, and a function that writes it."""

    total: int
    write: Callable[[NewFile, Written], object]


@contextlib.contextmanager
def one_file(target: Path, *, has_name: bool) -> Iterator[list[NewFile]]:
    """Yield a new file that replaces `target` at the end. With `has_name` it has a name of its own meanwhile."""
    with replacing(target, has_name=has_name) as new:
        yield [new]


@contextlib.contextmanager
def shard_files(layout: Layout, shards: list[list[str]], total: int) -> Iterator[list[NewFile]]:
    """Yield a new file for each shard. At the end all take their names, and the index as the last.

    No shard takes the name of another file: until the index has its name, what was in the folder is whole. Then the
    shards that the index named before are deleted.
    """
    before = layout.present()
    for path in before:
        if path.exists() and not os.access(path, os.W_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
    layout = layout.free(len(shards))
    paths = [layout.shard(number, len(shards)) for number in range(1, len(shards) + 1)]
    with interrupts.deferred():  # while files have names that no index names
        is_new = not layout.folder.exists()
        if is_new:
            layout.folder.mkdir()
        written: list[tuple[Path, os.stat_result]] = []
        try:
            with contextlib.ExitStack() as block:
                index = block.enter_context(
                    replacing(layout.index_path, counts_from_end=True)
                )  # first in, last out
                files = []
                for number, path in enumerate(paths):
                    like = before[min(number, len(before) - 1)] if before else layout.index_path
                    files.append((path, block.enter_context(replacing(path, is_new=True, like=like))))
                with interrupts.allowed():
                    yield [new for _, new in files]
                    text = index_text(layout, shards, total)
                    index.write(text)
                    for _, new in files:  # a disk that is full says so before the first has its name
                        new.sync()
                    written = [
                        (path, os.fstat(new.descriptor)) for path, new in [(layout.index_path, index), *files]
                    ]
                with interrupts.deferred():  # although the block of each file allows it
                    block.close()
        except BaseException:
            has_index = bool(written) and is_at(*written[0])
            if not has_index:  # an index that has its name needs the new shards
                for path, status in written:
                    if is_at(path, status):
                        path.unlink(missing_ok=True)
            if is_new:
                with contextlib.suppress(OSError):  # somebody else has put something there
                    layout.folder.rmdir()
            raise
        for path in before:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _logger.warning(
                    "%s: not deleted, though no index names it any more: %s", path, error.strerror
                )
    if (other := layout.preferred()) is not None:
        _logger.warning("%s is there too, and loaders of the folder take it: remove one of the two", other)
