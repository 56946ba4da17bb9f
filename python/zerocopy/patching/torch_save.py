"""``torch.save`` over a file that a process has mapped, or has open to read lazily from it.

torch.save truncates the file. A process that has mapped the file then dies of SIGBUS when it touches the mapping. This
can be the program itself, which resumes from a checkpoint and saves to the same path, or another rank. If a new file is
renamed to the path instead, the mapped file stays as it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from zerocopy.patching.file_readers import is_read
from zerocopy.saving.atomic_file import NewFile, replacing
from zerocopy.saving.turns import Turn

Function = Callable[..., Any]


def save_for(original: Function) -> Function:
    """Return the replacement of `original`, a release's torch.save."""

    def save(*args: Any, **kwargs: Any) -> Any:
        f = args[1] if len(args) > 1 else kwargs.get("f")
        target = Path(os.path.realpath(os.fsdecode(f))) if isinstance(f, (str, bytes, os.PathLike)) else None
        if target is None:
            return original(*args, **kwargs)
        with Turn(os.fspath(target)) as turn:
            # A save to the same file within this one (by a signal handler, say) need not wait for this one.
            turn.give_way = bool
            turn.wait()
            if not os.access(target, os.W_OK, effective_ids=True) or not is_read(target):
                return original(*args, **kwargs)
        with _replacing(target) as new:
            # Releases of torch refuse a path of type bytes, each with its own error. They get bytes, so users see that
            # error.
            file: Any = os.fsencode(new.path) if isinstance(f, bytes) else new
            if len(args) > 1:
                result = original(args[0], file, *args[2:], **kwargs)
            else:
                result = original(*args, **{**kwargs, "f": file})
            return result

    return save


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[NewFile]:
    with contextlib.ExitStack() as block:
        try:
            new = block.enter_context(replacing(target))
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            reason = (
                "no new file can be made in its folder, and a process has the file mapped or open: "
                "load it with zerocopy.load(..., mmap=False), or save to another folder"
            )
            raise PermissionError(error.errno, reason, os.fspath(target)) from None
        yield new
