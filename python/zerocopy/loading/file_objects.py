"""File objects that are read by position, in pieces, and only where bytes are needed.

::

    core ── read(offset, nbytes) ─→ PieceReader ── read_at(offset, nbytes) ─→ SeekableFile ── seek, read ─→ file object
                                    keeps pieces                              one thread at a time

``zerocopy.remote.RemoteFile``, of a file on another machine, takes the place of ``SeekableFile``; and ``BufferFile``,
of bytes in memory.
"""

from __future__ import annotations

import errno
import inspect
import io
import mmap
import os
import stat
from collections.abc import Callable
from typing import Any

from zerocopy.display import shown
from zerocopy.errors import ClosedError
from zerocopy.process.fork_safe import ForkSafeLock
from zerocopy.remote import RemoteFile

#: The fewest bytes that one read gets, and the number of bytes read at the end, where archives have their directories.
PIECE = 1 << 16
TAIL = 1 << 17
FAR_TAIL = 1 << 18
_LEAD = 1 << 10  # small records lie side by side, and the last is often asked for first
_MAX_PIECE = 1 << 20
_MAX_PIECES = 64  # that are kept

# Going back in these begins anew: each is read once, to its end.
_DECOMPRESSING = {
    ("zipfile", "ZipExtFile"),
    ("_compression", "BaseStream"),
    ("compression._common._streams", "BaseStream"),
}

# File objects that only wrap another one, and the attribute that holds the wrapped one.
_WRAPPERS = {
    ("tempfile", "_TemporaryFileWrapper"): "file",
    ("fsspec.implementations.local", "LocalFileOpener"): "f",
}

# Sizes of the pieces in which a file object is read, if it is not simply a file.
_FIRST_READ, _MAX_READ = 1 << 16, 1 << 23


class SeekableFile:
    """The rest of a seekable file object. Its own position stays what it is."""

    is_far = False

    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name, self._lock = file, name, ForkSafeLock()
        self._begin = file.tell()
        self.size = max(0, self._end() - self._begin)

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return exactly these bytes. Raise ``OSError`` if there are fewer."""
        with self._lock.held():
            here = self._position()
            try:
                self._file.seek(self._begin + offset)
                return self._read(nbytes)
            finally:
                self._file.seek(here)

    def require_unchanged(self) -> None:
        """Raise ``OSError`` (ESTALE) if the file has another size than when it was opened."""
        if self._end() - self._begin != self.size:
            raise OSError(errno.ESTALE, "the file changed since it was opened", self._name)

    def _read(self, nbytes: int) -> bytes:
        pieces: list[bytes] = []
        while nbytes:
            piece = self._file.read(nbytes)
            if piece is None:
                raise BlockingIOError(
                    errno.EAGAIN, "no bytes yet: expected a file that waits for them", self._name
                )
            if not isinstance(piece, bytes):
                raise TypeError(
                    f"{shown(self._name)}: expected read() to return bytes, got {type(piece).__name__}"
                )
            if not piece:
                raise OSError(errno.ESTALE, "the file was cut since it was opened", self._name)
            pieces.append(piece)
            nbytes -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _end(self) -> int:
        with self._lock.held():
            here = self._position()
            try:
                self._file.seek(0, os.SEEK_END)
                return int(self._file.tell())
            finally:
                self._file.seek(here)

    def _position(self) -> int:
        if getattr(self._file, "closed", False):
            raise ClosedError(
                f"{self._name}: the file object was closed, and lazy tensors read from it: keep it open"
            )
        return int(self._file.tell())


class BufferFile:
    """The bytes of a buffer, for a `PieceReader`."""

    is_far = False

    def __init__(self, buffer: Any) -> None:
        view = memoryview(buffer)
        self._bytes = view.cast("B") if view.nbytes else memoryview(b"")
        self.size = view.nbytes

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return exactly these bytes."""
        return bytes(self._bytes[offset : offset + nbytes])

    def require_unchanged(self) -> None:
        """Do nothing: nobody knows when memory changes."""


class PieceReader:
    """Reads a file in pieces of at least 64 KiB, and keeps the last ones: most hold several headers.

    The pieces of a file that is read from front to back get longer, up to 1 MiB.
    """

    def __init__(self, file: SeekableFile | BufferFile | RemoteFile) -> None:
        self.file, self.size, self.is_far = file, file.size, file.is_far
        self._tail = FAR_TAIL if self.is_far else TAIL
        self._lock = ForkSafeLock()
        self._pieces: dict[int, bytes] = {}  # by their starts; the oldest is the first

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return exactly these bytes."""
        found = []
        while nbytes:
            part = self._kept(offset, nbytes)
            if not part:
                if (nbytes >= PIECE and offset + nbytes < self.size) or nbytes > self._tail:
                    found.append(self.file.read_at(offset, nbytes))
                    break
                part = self._piece(offset, nbytes)[:nbytes]
            found.append(part)
            offset, nbytes = offset + len(part), nbytes - len(part)
        return found[0] if len(found) == 1 else b"".join(found)

    def require_unchanged(self) -> None:
        """Raise ``OSError`` (ESTALE) if the file changed since it was opened."""
        self.file.require_unchanged()

    def _kept(self, offset: int, nbytes: int) -> bytes:
        """Return as many of the first bytes as one kept piece has."""
        with self._lock.held():
            for start, piece in reversed(self._pieces.items()):
                if start <= offset < start + len(piece):
                    return piece[offset - start : offset - start + nbytes]
        return b""

    def _piece(self, offset: int, nbytes: int) -> bytes:
        """Read a piece that begins before an offset, and ends at the next piece or the end of the file at the latest.

        Return the bytes from the offset on.
        """
        with self._lock.held():
            before = max((start for start in self._pieces if start <= offset), default=0)
            earlier = len(self._pieces.get(before, b""))
            following = min((start for start in self._pieces if start > offset), default=None)
        goes_on = 0 <= offset - before - earlier <= PIECE
        length = min(2 * earlier, _MAX_PIECE) if earlier and goes_on else PIECE
        start, end = max(offset - _LEAD, before + earlier), offset + max(nbytes, length)
        limit, room = (self.size, self._tail) if following is None else (following, PIECE)
        if end >= limit:
            end, start = limit, max(before + earlier, min(start, limit - room))
        piece = self.file.read_at(start, end - start)
        with self._lock.held():
            self._pieces[start] = piece
            if len(self._pieces) > _MAX_PIECES:
                del self._pieces[next(iter(self._pieces))]
        return piece[offset - start :]


def reader_of(file: Any, name: str) -> PieceReader | None:
    """Return a reader of the rest of a file object; None if it has to be read from front to back."""
    if isinstance(file, io.TextIOBase) or not (hasattr(file, "seek") and hasattr(file, "tell")):
        return None
    if any((each.__module__, each.__qualname__) in _DECOMPRESSING for each in type(file).__mro__):
        return None
    try:
        return PieceReader(file if isinstance(file, RemoteFile) else SeekableFile(file, name))
    except (OSError, ValueError, TypeError):  # it cannot seek, or not from its end
        return None


def buffer_of(f: Any) -> Any:
    """Return a buffer, and the bytes of an ``mmap.mmap`` from its position on; None for any other file object."""
    if isinstance(f, mmap.mmap) and type(f).read is mmap.mmap.read:
        begin = f.tell()
        f.seek(0, os.SEEK_END)
        return memoryview(f)[begin:]
    if hasattr(f, "read"):
        return None
    try:
        memoryview(f).release()
    except TypeError:
        raise _is_no_input(f) from None
    return f


def _is_no_input(f: Any) -> TypeError:
    return TypeError(f"expected a path, a binary file object or a buffer, got {type(f).__name__}")


def position_of(f: Any) -> int | None:
    """Return the position of a file object; None for a path, a buffer, a pipe, a socket."""
    if not (hasattr(f, "tell") and hasattr(f, "seek")):
        return None
    try:
        return int(f.tell())
    except OSError:
        return None


def rest_of(f: Any) -> Any:
    """Return the bytes that are left to read in a file object."""
    content = "" if isinstance(f, io.TextIOBase) else _content_of(f)
    if isinstance(content, str):
        raise TypeError(f"{shown(name_of(f))} is open in text mode; open it with 'rb'")
    if content is None:
        raise BlockingIOError(
            errno.EAGAIN, f"{name_of(f)} has no bytes yet: expected a file that waits for them"
        )
    return content


def _content_of(f: Any) -> Any:
    if type(f) is io.BytesIO:  # getbuffer() would copy bytes that the object only shares
        return memoryview(f.getvalue())[f.tell() :]
    # A subclass of Python's io classes may override read(), and inherit a readinto() that does not use it.
    if isinstance(f, io.IOBase) or not hasattr(f, "readinto"):
        try:
            return f.read()
        except TypeError:
            if _takes_nothing(f.read):
                raise  # the error comes from within read()
            raise _is_no_input(f) from None
    content, piece = bytearray(), bytearray(_FIRST_READ)
    while got := f.readinto(piece):
        if not 0 < got <= len(piece):
            raise ValueError(
                f"{shown(name_of(f))}: readinto() returned {got}, given room for {len(piece)} bytes"
            )
        content += memoryview(piece)[:got]
        if got == len(piece) < _MAX_READ:
            piece = bytearray(2 * len(piece))
    return content


def _takes_nothing(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


def name_of(f: Any) -> str:
    """Return the name of `f` in messages."""
    if isinstance(f, (str, os.PathLike)):
        return os.fsdecode(f)
    name = getattr(f, "name", None)
    return name if isinstance(name, str) else f"<{type(f).__name__}>"


def unwrapped(f: Any) -> Any:
    """Return the file object that another one wraps, or `f` itself."""
    kind = type(f)
    inner = _WRAPPERS.get((kind.__module__, kind.__qualname__))
    return f if inner is None else getattr(f, inner)


def is_plain_file(f: Any) -> bool:
    """Return whether the bytes of a file object are those of its descriptor. Those of a gzip file are not."""
    raw = f.raw if type(f) in (io.BufferedReader, io.BufferedRandom) else f
    return type(raw) is io.FileIO and f.seekable() and stat.S_ISREG(os.fstat(raw.fileno()).st_mode)
