"""A new file that takes an old one's name when it is whole, and not before: see ``csrc/io/new_file.h``."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from zerocopy import _core, remote
from zerocopy.display import shown
from zerocopy.errors import UnsupportedError
from zerocopy.saving.turns import Turn

_logger = logging.getLogger("zerocopy")

#: The bytes that are written at once.
PIECE = 16 << 20

#: Called with the bytes that were written since the last call.
Written = Callable[[int], object]

NewFile = _core.NewFile


def local_path(name: str | os.PathLike[str]) -> Path:
    """Return the path of a file or folder to be written. Raise ``UnsupportedError`` for a URL."""
    if remote.is_url(name):
        raise UnsupportedError(
            f"{shown(os.fspath(name))}: URLs are only read: write a file on this machine and upload that, or pass "
            "a writable file object to zerocopy.save"
        )
    return Path(os.fsdecode(name))


def path_of_file(name: str | os.PathLike[str]) -> Path:
    """Return the path of a file to be written. Raise for the name of a folder (a final slash), which ``Path`` drops."""
    target, path = local_path(name), os.fsdecode(name)
    if not path or path.endswith(("/", "/.")):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC))  # says what is wrong; makes no file
    return target


def is_special(path: Path) -> bool:
    """Return whether a path leads to a pipe, a terminal, a file without a name (/dev/fd/3), ...: not replaced."""
    while True:
        try:
            status = path.stat()
        except OSError:
            return False
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            return True
        if is_at(os.path.realpath(path), status):
            return False
        if is_at(path, status):  # else another took its place just now
            return True


def is_at(path: str | Path, file: os.stat_result | None) -> bool:
    """Return whether a path leads to the file that has this status."""
    try:
        return file is not None and os.path.samestat(Path(path).stat(), file)
    except OSError:
        return False


@contextlib.contextmanager
def replacing(
    target: Path,
    *,
    has_name: bool = False,
    parts: Sequence[tuple[NewFile, str]] = (),
    old: Sequence[str] = (),
    counts_from_end: bool = False,
    syncs: bool = True,
) -> Iterator[NewFile]:
    """Yield a new file, which takes the name, mode, owner and attributes of `target` if all goes well.

    Then the file and its name are on the disk. If anything goes wrong, the old file is unchanged.

    Parameters
    ----------
    target : Path
        The file. OSError for what cannot be replaced.
    has_name : bool
        Give the file a name from the beginning, which libhdf5 wants.
    parts : sequence of (NewFile, str)
        Files that take these names just before: all of them or none.
    old : sequence of str
        The paths of files to delete just after.
    counts_from_end : bool
        Take the turn among the saves to `target` at the end of the block, not at its beginning.
    syncs : bool
        Whether to wait for the disk.
    """
    if is_special(target):
        why = "not a regular file: it cannot be replaced atomically"
        raise OSError(errno.EINVAL, why, os.fspath(target))
    path = os.path.realpath(target)
    with contextlib.ExitStack() as block:
        turn = Turn(path)
        if not counts_from_end:
            block.enter_context(turn)
        new = NewFile(path, has_name=has_name, syncs=syncs)
        block.callback(new.close)
        turn.give_way = new.give_way
        yield new
        new.sync()
        if counts_from_end:
            block.enter_context(turn)
        turn.wait()
        take_names([*parts, (new, path)], old)


def log_lost(target: str, lost: list[str]) -> None:
    """Log the properties of the old file that the new one lacks."""
    if lost:
        _logger.warning("%s: not kept, as this user may not set it: %s", target, ", ".join(lost))


def take_names(files: Sequence[tuple[NewFile, str]], old: Sequence[str] = ()) -> None:
    """Rename new files to their final names, all of them or none, and then delete old ones. Log what cannot be done.

    This is one step of the interpreter, so that no signal handler ends it halfway.
    """
    for (_, path), lost in zip(files, _core.take_names(list(files), list(old)), strict=True):
        log_lost(path, lost)
    for path in filter(os.path.lexists, old):
        _logger.warning("%s: not deleted, though no index names it any more", path)


class FileSink:
    """Appends bytes to a new file, for writers of other formats. `position` is the number of bytes so far."""

    def __init__(self, file: NewFile) -> None:
        self.position, self._file = 0, file

    def write(self, data: memoryview, written: Written | None = None) -> None:
        """Append bytes."""
        for at in range(0, data.nbytes, PIECE):
            self._count(self._file.write(data[at : at + PIECE]), written)

    def copy(self, source: int, offset: int, size: int, written: Written) -> int:
        """Append bytes of a file, by its descriptor, as many as the kernel can copy without reading them."""
        done = 0
        while done < size:
            piece = self._file.copy(source, offset + done, min(PIECE, size - done))
            if piece == 0:
                break
            self._count(piece, written)
            done += piece
        return done

    def _count(self, size: int, written: Written | None) -> None:
        self.position += size
        if written is not None:
            written(size)
