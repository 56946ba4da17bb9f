"""Opens the file at a path or URL, a file object, a buffer, or a part of one of these, for reads at an offset."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from typing import Any

from zerocopy import remote
from zerocopy.loading import file_objects


class Trouble(Exception):
    """A file cannot be read, or has a format that is not a checkpoint's."""


class OpenFile:
    """A regular file that is read at an offset. Reads never block, and raise an exception if the file shrinks."""

    part: tuple[int, int] | None = None  # offset and size of a part that stands for the whole
    is_far = False  # each read waits for another machine
    start = 0  # where in the `content` the file begins

    def __init__(self, path: str) -> None:
        if "\0" in path:
            raise Trouble("embedded null byte")
        if remote.is_url(path):
            raise Trouble("is a URL: ls, show, scan, verify, explain, diff, report and convert take it")
        self.path = path
        self.content: Any = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.descriptor: Any = self.content
        status = os.fstat(self.descriptor)
        self.size = status.st_size
        why = (
            "is a directory: give one of its files" if stat.S_ISDIR(status.st_mode)
            else "is not a regular file" if not stat.S_ISREG(status.st_mode)
            else "the file is empty" if not self.size
            else ""
        )  # fmt: skip
        if why:
            self.close()
            raise Trouble(why)

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the file, fewer only at its end."""
        pieces = []
        while size > 0 and (piece := os.pread(self.descriptor, size, offset)):
            pieces.append(piece)
            offset += len(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pieces(self, offset: int, size: int, length: int = 1 << 20) -> Iterator[bytes]:
        """Yield bytes of the file piece by piece."""
        end = offset + size
        while offset < end:
            piece = self.read(offset, min(length, end - offset))
            if not piece:
                raise Trouble(f"the file ends at {offset}: it became shorter")
            yield piece
            offset += len(piece)


class ObjectFile(OpenFile):
    """A file on another machine, a file object or a buffer.

    Its `descriptor` is a reader object, which the core uses like a file descriptor. Its `content` is what tensors are
    made of: a descriptor, of which the file begins at `start`, a buffer, or the reader.
    """

    def __init__(
        self, name: str, reader: file_objects.PieceReader, content: Any = None, start: int = 0
    ) -> None:
        self.path, self.start = name, start
        self.descriptor, self.content = reader, reader if content is None else content
        self.size, self.is_far = reader.size, reader.is_far
        if not self.size:
            raise Trouble("the file is empty")

    def close(self) -> None:
        """Do nothing: connections close with the last reference, and a file object is the caller's."""

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the file, fewer only at its end."""
        return self.descriptor.read(offset, min(size, self.size - offset)) if offset < self.size else b""


def open_file(f: Any) -> OpenFile:
    """Open a file, by its path or URL; or the rest of a file object, or a buffer."""
    if remote.is_url(f):
        f = remote.RemotePath(f)
    if isinstance(f, remote.RemotePath):
        return ObjectFile(f.url, file_objects.PieceReader(f.open()))
    if isinstance(f, (str, os.PathLike)):
        return OpenFile(os.fsdecode(f))
    f = file_objects.unwrapped(f)
    name, buffer = file_objects.name_of(f), file_objects.buffer_of(f)
    if buffer is None:
        reader = None if type(f) is io.BytesIO else file_objects.reader_of(f, name)
        if reader is not None:
            is_plain = file_objects.is_plain_file(f)
            return ObjectFile(name, reader, f.fileno() if is_plain else None, f.tell() if is_plain else 0)
        buffer = file_objects.rest_of(f)
    return ObjectFile(name, file_objects.PieceReader(file_objects.BufferFile(buffer)), buffer)


def size_of(path: str) -> int:
    """Return the size of a file, by its path or URL."""
    return remote.RemotePath(path).open().size if remote.is_url(path) else os.stat(path).st_size


class FilePart(OpenFile):
    """A part of an open file that is read like a file of its own: offsets count from its start."""

    def __init__(self, whole: OpenFile, offset: int, size: int) -> None:
        self.path, self.descriptor, self.size = whole.path, whole.descriptor, size
        self.part, self.offset = (offset, size), offset
        self._whole = whole

    def close(self) -> None:
        """Do nothing: the whole file owns the descriptor."""

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the part, fewer only at its end."""
        return self._whole.read(self.offset + offset, min(size, self.size - offset))
