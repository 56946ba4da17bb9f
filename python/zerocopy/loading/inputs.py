"""From what the user gives (path, file object, buffer) to an archive."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from zerocopy import display, remote
from zerocopy._native import _C
from zerocopy.display import shown
from zerocopy.errors import Error, FormatError, UnsupportedError
from zerocopy.loading import backends, diagnosis, file_objects
from zerocopy.loading.file_objects import name_of as name_of
from zerocopy.loading.file_objects import position_of as position_of
from zerocopy.loading.file_objects import rest_of
from zerocopy.loading.formats import hdf5
from zerocopy.loading.formats.hdf5_stream import Image
from zerocopy.loading.formats.model_folder import located as located

Backend = str

_MODES = ("c", "r", "r+")
_MAX_PATH = 4096
_WITHOUT_WAITING = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # for a writer of a pipe


def open_archive(
    f: Any, mode: str = "c", backend: Backend = "auto", *, windows: bool = False, by_position: bool = False
) -> _C.Archive:
    """Open a checkpoint without reading its data.

    A path, or an unwrapped file object of a real file, is mapped or read as the backend says: mapped as a whole, or in
    `windows`, each of which is unmapped with its last storage. Buffers and :class:`mmap.mmap` objects are used as they
    are. Other file objects are read to their end. With `by_position`, those that can seek are read only where something
    is needed.
    """
    if mode not in _MODES:
        raise ValueError(f"mode must be 'c', 'r' or 'r+', not {mode!r}")
    if isinstance(f, (str, os.PathLike)):
        path = encoded(f)
        sys.audit("open", name_of(f), "rb", os.O_RDONLY)  # the event that Python's own open() raises
        name, strategy = name_of(f), backends.strategy_for(path, backend, windows=windows)
        try:
            archive = _attempt(
                lambda listing: _C.Archive.open(path, mode, strategy.name, strategy.threads, listing),
                lambda: Image.of_descriptor(os.open(path, _WITHOUT_WAITING), 0, name),
                name,
                path,
            )
        except OSError as error:
            _refuse_pipe(path, error)
            raise
        backends.note(name, archive, strategy)
        return archive
    f = file_objects.unwrapped(remote.opened(f))
    if (buffer := file_objects.buffer_of(f)) is not None:
        return _open_buffer(buffer, mode, "")
    name = name_of(f)
    if file_objects.is_plain_file(f):
        start, descriptor = f.tell(), f.fileno()
        strategy = backends.strategy_for(descriptor, backend, windows=windows)
        archive = _attempt(
            lambda listing: _C.Archive.open_descriptor(
                descriptor, start, name, mode, strategy.name, strategy.threads, listing
            ),
            lambda: Image.of_descriptor(os.dup(descriptor), start, name),
            name,
            descriptor,
        )
        backends.note(name, archive, strategy)
        return archive
    if mode == "r+":
        raise ValueError(
            f"{shown(name)}: mode 'r+' needs a path, a file object of a plain file, or a buffer: use mode 'c'"
        )
    reader = file_objects.reader_of(f, name) if by_position and type(f) is not io.BytesIO else None
    if reader is not None:
        return _attempt(
            lambda listing: _C.Archive.open_object(reader, listing),
            lambda: Image.of_reader(reader),
            name,
        )
    if isinstance(f, remote.RemoteFile):
        return _open_buffer(f.rest(), "r", name)  # in mode "r" only misaligned records are copied
    # The bytes may still belong to the file object (BytesIO), so mode "c" copies those that are used.
    return _open_buffer(rest_of(f), "c", name)


def encoded(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a path. Raise ``ValueError`` for a null byte, where the system would cut the path."""
    found = os.fsencode(path)
    if b"\0" in found:
        raise ValueError("embedded null byte")
    return found


def open_parts(path: str, mode: str, backend: Backend, *, windows: bool, total: int) -> _C.MultiArchiveFile:
    """Open a file that contains archives one after the other, of a checkpoint of `total` bytes."""
    sys.audit("open", path, "rb", os.O_RDONLY)
    encoded = os.fsencode(path)
    strategy = backends.strategy_for(encoded, backend, windows=windows)
    parts = _C.MultiArchiveFile(encoded, mode, strategy.name, strategy.threads, total)
    backends.note(path, None, strategy)
    return parts


def _refuse_pipe(path: bytes, error: OSError) -> None:
    if error.errno == errno.EINVAL and stat.S_ISFIFO(Path(os.fsdecode(path)).stat().st_mode):
        reason = "a pipe is read through a file object: open it in mode 'rb', and pass that"
        raise OSError(errno.EINVAL, reason, os.fsdecode(path)) from None


def _open_buffer(buffer: Any, mode: str, name: str) -> _C.Archive:
    if mode == "r+" and memoryview(buffer).readonly:
        raise ValueError(
            f"{shown(name or name_of(buffer))}: mode 'r+' writes to the buffer, which is read-only: use mode 'c'"
        )
    try:
        return _attempt(
            lambda listing: _C.Archive.open_buffer(buffer, mode, listing),
            lambda: Image.of_buffer(buffer),
            name,
        )
    except diagnosis.UnknownFormatError as error:
        if (
            isinstance(buffer, bytes)
            and os.fsdecode(buffer[:_MAX_PATH]).isprintable()
            and len(buffer) <= _MAX_PATH
        ):
            error.args = (f"{error}. Bytes are the content of a file: of a path, pass os.fsdecode(path)",)
        raise


def _attempt(
    opened: Callable[[_C.Listing], _C.Archive],
    image: Callable[[], Image],
    name: str,
    file: bytes | int | None = None,
) -> _C.Archive:
    """Open a file. If that fails, look at its ends to say what it is. h5py knows more about HDF5 than the core."""
    try:
        return opened(None)
    except Error as error:
        seen = image().sample()
        if not hdf5.recognises(seen.head, name):
            raise diagnosis.diagnose(seen, error) from None
        if isinstance(error, FormatError) and str(error).startswith("hdf5"):
            raise
    with hdf5.staying(file):
        archive = opened(hdf5.listing(image()))
    if lost := hdf5.numbers_left_out(archive.left_out):
        warnings.warn(
            f"{name or 'this HDF5 file'}: left out {display.count(len(lost), 'dataset')} of numbers that no tensor "
            f"holds: {display.listed(map(display.shown, lost), 10)}",
            UserWarning,
            stacklevel=6,  # the caller of load or open
        )
    return archive


@contextlib.contextmanager
def descriptor_of(path: str | bytes | os.PathLike[str]) -> Iterator[int]:
    """Open a path for a block, without waiting for a pipe: a later read reports that it is not a file."""
    descriptor = os.open(path, _WITHOUT_WAITING)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def binary_file(f: Any, begin: int | None) -> Iterator[BinaryIO]:
    """Return the user's argument as a binary file object, at `begin` if it was read from."""
    if isinstance(f, (str, os.PathLike)):
        with Path(f).open("rb") as file:
            yield file
    elif isinstance(f, remote.RemotePath):
        yield io.BufferedReader(f.open())
    elif not hasattr(f, "read"):
        yield io.BytesIO(f)
    elif begin is None:
        raise UnsupportedError("this format needs a file object that can seek")
    else:
        f.seek(begin)
        yield f
