"""``torch.save`` over a file that this process has mapped.

torch.save truncates the file it is given, and whoever has mapped it dies of SIGBUS at the next touch: a program that
resumes from a checkpoint and saves to the same path. Writing another file and renaming it leaves the mapped one to
those who have it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Function = Callable[..., Any]


def save_for(original: Function) -> Function:
    """Return what replaces `original`, a release's torch.save."""

    def save(*args: Any, **kwargs: Any) -> Any:
        f = args[1] if len(args) > 1 else kwargs.get("f")
        target = Path(os.path.realpath(f)) if isinstance(f, (str, os.PathLike)) else None
        if target is None or not is_mapped(target):
            return original(*args, **kwargs)
        if len(args) > 1:
            return _replace(target, lambda path: original(args[0], path, *args[2:], **kwargs))
        return _replace(target, lambda path: original(*args, **{**kwargs, "f": path}))

    return save


def is_mapped(path: Path) -> bool:
    """Return whether this process maps the file at `path`, by whomever."""
    try:
        status = path.stat()
    except OSError:
        return False
    if not stat.S_ISREG(status.st_mode):
        return False
    # By inode or by name: overlay file systems show other inodes here, and the name may have been replaced since.
    inode, name = str(status.st_ino), os.fsencode(path)
    with Path("/proc/self/maps").open("rb") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and (fields[4] == inode.encode() or fields[5].rstrip(b"\n") == name):
                return True
    return False


def _replace(target: Path, write: Callable[[Path], Any]) -> Any:
    # The name stays the same within the folder: torch.save names the archive's root by it.
    with tempfile.TemporaryDirectory(prefix=f".{target.name[:100]}.", dir=target.parent) as folder:
        written = Path(folder) / target.name
        result = write(written)
        written.chmod(stat.S_IMODE(target.stat().st_mode))
        written.replace(target)
    return result
