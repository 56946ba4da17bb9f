"""``torch.save`` over a file that this process has mapped, or has open to read lazily from it.

torch.save truncates the file. A process that has mapped it dies of SIGBUS at the next touch, as a program does that
resumes from a checkpoint and saves to the same path. A new file that is renamed leaves the mapped file as it is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from zerocopy import _core
from zerocopy.saving import saves_under_way
from zerocopy.saving.atomic_file import NewFile, replacing
from zerocopy.saving.mapped_files import MappedFiles, identity_of

Function = Callable[..., Any]


def save_for(original: Function) -> Function:
    """Return what replaces `original`, a release's torch.save."""

    def save(*args: Any, **kwargs: Any) -> Any:
        f = args[1] if len(args) > 1 else kwargs.get("f")
        target = Path(os.path.realpath(os.fsdecode(f))) if isinstance(f, (str, bytes, os.PathLike)) else None
        for earlier in saves_under_way.to(target) if target is not None else ():
            earlier.join()
        if target is None or not os.access(target, os.W_OK, effective_ids=True) or not is_read_here(target):
            return original(*args, **kwargs)
        with _replacing(target) as new:
            # For bytes, which releases of torch refuse, each in its own words, there is nothing else to write to.
            file: Any = os.fsencode(new.path) if isinstance(f, bytes) else _file_of(new, target)
            if len(args) > 1:
                result = original(args[0], file, *args[2:], **kwargs)
            else:
                result = original(*args, **{**kwargs, "f": file})
            if not isinstance(f, bytes):
                file.flush()
            return result

    return save


def is_read_here(path: Path) -> bool:
    """Return whether this process maps the file at `path`, or has it open for reading, by whomever."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return False
        if any(_is_reader(int(number), status) for number in os.listdir("/proc/self/fd")):  # noqa: PTH208
            return True
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return identity_of(descriptor) in MappedFiles().identities()
    finally:
        os.close(descriptor)


def _is_reader(descriptor: int, status: os.stat_result) -> bool:
    """Whether a descriptor is of the file with this status, and reads only: a lazy tensor has one of its file."""
    try:
        if not os.path.samestat(os.fstat(descriptor), status):
            return False
        return fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_PATH) == os.O_RDONLY
    except OSError:  # that of the listing is closed
        return False


def _file_of(new: NewFile, target: Path) -> _core.UninterruptedFile:
    return _core.UninterruptedFile(new.descriptor, os.fspath(target))


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[NewFile]:
    with contextlib.ExitStack() as block:
        try:
            new = block.enter_context(replacing(target))
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            reason = (
                "no new file can be made in its folder, and the file is mapped, so it cannot be overwritten: "
                "load it with zerocopy.load(..., mmap=False), or save to another folder"
            )
            raise PermissionError(error.errno, reason, os.fspath(target)) from None
        yield new
