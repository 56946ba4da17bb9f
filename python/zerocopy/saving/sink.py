"""Targets of an archive: a new file, or any object with a ``write`` method. Bytes are appended."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import io
import os
import struct
from collections.abc import Callable
from typing import Any, Protocol

from zerocopy.process.os_errors import CUT, naming

PIECE = 16 << 20
_BEGUN_TOGETHER = 1 << 20
_SYNC_FILE_RANGE_WRITE = 2

#: Called with the bytes that were written since the last call.
Written = Callable[[int], object]


def unnoticed(_: int) -> None:
    """Stand for a caller that does not count what is written."""


class Sink(Protocol):
    """The interface through which an archive is written."""

    position: int  # from where the archive begins

    def write(self, data: memoryview, written: Written = unnoticed) -> None:
        """Append bytes."""

    def skip(self, size: int) -> None:
        """Append zeros."""

    def share(self, source: int, offset: int, size: int, written: Written) -> bool:
        """Append bytes of a file, by its descriptor, as references to the same blocks. False: nothing was appended."""

    def copy(self, source: int, offset: int, size: int, written: Written) -> int:
        """Append bytes of a file, by its descriptor, as many as can be taken from it without reading them."""


class FileSink:
    """A file that only we write to.

    Parameters
    ----------
    descriptor : int
        It stands at its beginning.
    name : str
        The name in error messages.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self.position = 0
        self._begun = 0  # up to here the disk was told to write
        self._descriptor, self._name = descriptor, name

    def write(self, data: memoryview, written: Written = unnoticed) -> None:
        """Append bytes."""
        at = 0
        while at < data.nbytes:
            with naming(self._name):
                size = os.write(self._descriptor, data[at : at + PIECE])
            self._advance(size)
            at += size
            written(size)

    def skip(self, size: int) -> None:
        """Append zeros: a hole, which takes no room on the disk."""
        with naming(self._name):
            os.lseek(self._descriptor, size, os.SEEK_CUR)
        self.position += size

    def share(self, source: int, offset: int, size: int, written: Written) -> bool:
        """Append bytes of another file as references to the same blocks, but for parts of a block at both ends.

        False if it cannot be: another file system, one that does not know how, or the bytes are at another place within
        a block than they would be here.
        """
        block = os.fstat(self._descriptor).st_blksize
        head = -offset % block
        body = (size - head) // block * block
        if (offset - self.position) % block or body <= 0:
            return False
        request = _CLONE_RANGE.pack(source, offset + head, body, self.position + head)
        try:
            fcntl.ioctl(self._descriptor, _FICLONERANGE, request)
        except OSError:  # whatever it is, the bytes can be copied, or that says why not
            return False
        with naming(self._name):
            for begin, end in ((0, head), (head + body, size)):
                _copy_part(self._descriptor, self.position + begin, source, offset + begin, end - begin)
            self.position += size
            os.lseek(self._descriptor, self.position, os.SEEK_SET)
        written(size)
        return True

    def copy(self, source: int, offset: int, size: int, written: Written) -> int:
        """Append bytes of another file within the kernel."""
        ways = [_copy_file_range, os.sendfile]
        done = 0
        while done < size and ways:
            with naming(self._name):
                try:
                    piece = ways[0](self._descriptor, source, offset + done, min(size - done, PIECE))
                except OSError as error:
                    if error.errno not in _CANNOT:
                        raise
                    del ways[0]
                    continue
                if piece == 0:
                    raise OSError(errno.ESTALE, CUT)
            self._advance(piece)
            done += piece
            written(piece)
        return done

    def _advance(self, size: int) -> None:
        # The disk begins to write now, not when all is there: else it would do nothing until the fsync. It is told of
        # small pieces together, since it writes whole blocks.
        self.position += size
        if self.position - self._begun >= _BEGUN_TOGETHER:
            begin_writing(self._descriptor, self._begun, self.position - self._begun)
            self._begun = self.position


# linux/fs.h: _IOW(0x94, 13, struct file_clone_range)
_FICLONERANGE, _CLONE_RANGE = 0x4020940D, struct.Struct("qQQQ")


def _copy_part(target: int, at: int, source: int, offset: int, size: int) -> None:
    """Copy less than a block."""
    content = os.pread(source, size, offset)
    if len(content) < size:
        raise OSError(errno.ESTALE, CUT)
    while content:
        done = os.pwrite(target, content, at)
        content, at = content[done:], at + done


# They cannot copy between these two files: other file systems, a kernel or a file system that does not know how.
_CANNOT = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


def _copy_file_range(target: int, source: int, offset: int, size: int) -> int:
    return os.copy_file_range(source, target, size, offset)


def begin_writing(descriptor: int, offset: int, size: int) -> None:
    """Have the disk begin to write a part of a file, and do not wait for it."""
    _sync_file_range(descriptor, offset, size, _SYNC_FILE_RANGE_WRITE)


def _found_sync_file_range() -> Callable[..., int]:
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is None:  # it is a hint: nothing is lost without it
        return lambda *_: 0
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_sync_file_range = _found_sync_file_range()


class StreamSink:
    """A sink over any object with a ``write`` method: a file object, a pipe, a socket's file.

    Parameters
    ----------
    file : object
        It has the method.
    name : str, optional
        The name in error messages; without one errors are raised unchanged.
    """

    def __init__(self, file: Any, name: str | None = None) -> None:
        self.position = 0
        self._file, self._name = file, name

    def write(self, data: memoryview, written: Written = unnoticed) -> None:
        """Append bytes."""
        at = 0
        while at < data.nbytes:
            piece = data[at : at + PIECE]
            with naming(self._name):
                size = self._file.write(piece)
            if (
                size is None
            ):  # what has no more to say than that it took all; a raw file that would block has not
                if isinstance(self._file, io.RawIOBase):
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
                size = piece.nbytes
            at += size
            self.position += size
            written(size)

    def skip(self, size: int) -> None:
        """Append zeros."""
        zeros = memoryview(bytes(min(size, PIECE)))
        while size:
            piece = zeros[:size]
            self.write(piece)
            size -= piece.nbytes

    def share(self, source: int, offset: int, size: int, written: Written) -> bool:
        """Return False: a stream cannot share blocks with a file."""
        return False

    def copy(self, source: int, offset: int, size: int, written: Written) -> int:
        """Copy nothing: all that it takes is bytes in memory."""
        return 0
