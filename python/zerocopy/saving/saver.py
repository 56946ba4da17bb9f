"""``zerocopy.save``."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from io import FileIO
from typing import Any, Literal, overload

from zerocopy import _torch
from zerocopy._typing import FilePath, WritableFile
from zerocopy.process.os_errors import naming
from zerocopy.progress import Counted, Progress, require_progress
from zerocopy.saving import background
from zerocopy.saving.archive import SMALLEST_ALIGNMENT, PickleWithStorages, Target, checked_alignment
from zerocopy.saving.atomic_file import is_special, path_of_file, replacing
from zerocopy.saving.handle import Saving, ended
from zerocopy.saving.pickled_object import PickledObject


@overload
def save(
    obj: Any,
    f: FilePath | WritableFile,
    *,
    alignment: int = 64,
    checksum: bool = True,
    progress: Progress | None = None,
    wait: Literal[True] = True,
) -> None: ...


@overload
def save(
    obj: Any,
    f: FilePath | WritableFile,
    *,
    alignment: int = 64,
    checksum: bool = True,
    progress: Progress | None = None,
    wait: Literal[False],
) -> Saving: ...


def save(
    obj: Any,
    f: FilePath | WritableFile,
    *,
    alignment: int = 64,
    checksum: bool = True,
    progress: Progress | None = None,
    wait: bool = True,
) -> Saving | None:
    """Save an object as ``torch.save`` does: every ``torch.load`` since PyTorch 1.6 reads the file.

    An old file of that name stays as it is until the new one is whole and on the disk, and is then replaced in one
    step. An exception, a full disk or ``kill -9`` leaves the old file. Tensors that are mapped from it keep their
    bytes, so a checkpoint can be saved over itself. Unchanged bytes of a mapped file are copied from file to
    file, as references to the same blocks where the file system supports that.

    Parameters
    ----------
    obj : object
        Anything that ``torch.save`` takes. Tensors on other devices come to the CPU one by one, and so do the tensors
        of placeholders (``zerocopy.lazy_load``) that are converted on the way.
    f : str, PathLike or binary file object
        A file object is written to from its current position.
    alignment : int
        The offsets of storages in the file are multiples of this number: a power of two from 64 to 2 MiB. With the
        block size of the file system (mostly 4096) or more, copies of a file can share their blocks. GPUDirect Storage
        needs such an alignment too.
    checksum : bool
        Whether storages get a CRC-32: ``zerocopy verify`` and ``unzip -t`` check it, ``torch.load`` does not.
    progress : callable, optional
        Called with the number of bytes of storages that are written, and the number of all. With ``wait=False`` a
        thread calls it, ten times a second at most. It may not save to the same path.
    wait : bool
        True: return when the file is on the disk. ``torch.save`` does not wait for the disk, so it returns sooner.
        False: return as soon as a snapshot of the object is taken, and write it in the background. Tensors may be
        written to from then on. A file object, a pipe and a terminal are written to before this returns in any case.

    Returns
    -------
    None or Saving
        With ``wait=False`` a :class:`zerocopy.Saving`.

    Raises
    ------
    OSError
        The operating system refused: no room, no permission, a directory is in the way. With ``wait=False``
        ``Saving.wait`` raises it.
    ValueError
        `alignment` is not a power of two from 64 to 2 MiB.
    RuntimeError
        Tensors of several dtypes over one storage: torch cannot load such a file.
    Exception
        Any exception of pickling the object.

    See Also
    --------
    zerocopy.Writer : Saves an object that memory cannot hold at once.

    Notes
    -----
    The same object gives the same bytes. The file's mode and owner are kept; a new file's mode follows the umask. A
    symbolic link stays, and the file that it leads to is replaced.

    Examples
    --------
    >>> import tempfile, pathlib, torch, zerocopy
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.pt"
    >>> zerocopy.save({"weight": torch.arange(4.0)}, path)
    >>> torch.load(path)
    {'weight': tensor([0., 1., 2., 3.])}
    >>> weight = torch.ones(2)
    >>> saving = zerocopy.save({"weight": weight}, path, wait=False)
    >>> _ = weight.zero_()
    >>> saving.wait()
    >>> torch.load(path)
    {'weight': tensor([1., 1.])}
    """
    if not (isinstance(f, (str, os.PathLike)) or hasattr(f, "write")):
        raise AttributeError(
            "expected f, the second argument, to be a string, a path, or a file object with a 'write' attribute, "
            f"got {type(f).__name__}"
        )
    return write(obj, f, alignment=alignment, checksum=checksum, progress=progress, wait=wait)


def write(
    obj: Any,
    f: Any,
    *,
    alignment: int = SMALLEST_ALIGNMENT,
    checksum: bool = True,
    progress: Progress | None = None,
    syncs: bool = True,
    wait: bool = True,
) -> Saving | None:
    """Save an object, or a ``PickleWithStorages``, as :func:`save` does. `syncs`: whether to wait for the disk."""
    checked_alignment(alignment)
    require_progress(progress)
    _torch.log_usage("torch.save")
    parts = obj if isinstance(obj, PickleWithStorages) else PickledObject(obj)
    if not wait and isinstance(f, (str, os.PathLike)) and not is_special(path_of_file(f)):
        return background.begin(parts, f, alignment, checksum, progress, syncs)
    with target_of(f, syncs=syncs) as target:
        counted = None if progress is None else Counted(progress, parts.total)
        parts.write(target, alignment, checksum, counted)
    return None if wait else ended(f, parts.total)


@contextlib.contextmanager
def target_of(f: Any, *, counts_from_end: bool = False, syncs: bool = True) -> Iterator[Target]:
    """Yield the target of a save: a new file that takes the name at the end, or the pipe or device itself."""
    if not isinstance(f, (str, os.PathLike)):
        yield f
        if hasattr(f, "flush"):
            f.flush()
    elif is_special(path := path_of_file(f)):
        # Without a buffer: it would still hold bytes after the device has refused them.
        with path.open("wb", buffering=0) as file:
            yield _Device(file, os.fspath(path))
    else:
        with replacing(path, counts_from_end=counts_from_end, syncs=syncs) as new:
            yield new


class _Device:
    """Writes to a pipe, a terminal, ..., and adds its name to errors."""

    def __init__(self, file: FileIO, name: str) -> None:
        self._file, self._name = file, name

    def write(self, data: bytes | memoryview) -> int:
        with naming(self._name):
            size = self._file.write(data)
            if size is None:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return size
