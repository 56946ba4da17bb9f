"""An HDF5 file as h5py reads it: as bytes, and not by its path."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from typing import Any

from zerocopy.errors import Error, FormatError
from zerocopy.loading import diagnosis
from zerocopy.loading.file_objects import PIECE, PieceReader
from zerocopy.process.os_errors import naming


class Image(io.RawIOBase):
    """A file as h5py reads it.

    It is not opened by its path: libhdf5 would lock it, and would open the path again for the program only in the same
    way. So zerocopy and the program do not hinder each other.
    """

    def __init__(
        self, size: int, read: Callable[[int, memoryview], int], release: Callable[[], None] | None = None
    ) -> None:
        """Make an image of `size` bytes. ``read(offset, room)`` copies some of them into memory, and returns how many.

        `release` is called when it is closed.
        """
        self._size, self._read, self._release = size, read, release
        self._at = 0
        self._head = diagnosis.HEAD
        self.fault: OSError | None = None  # the last error: libhdf5 reports only its text

    @classmethod
    def of_descriptor(cls, descriptor: int, start: int, name: str) -> Image:
        """Take over a descriptor; the file begins at `start`."""

        def read(offset: int, room: memoryview) -> int:
            with naming(name):
                return os.preadv(descriptor, [room], start + offset)

        size = max(0, os.fstat(descriptor).st_size - start)
        return cls(size, read, lambda: os.close(descriptor))

    @classmethod
    def of_buffer(cls, buffer: Any) -> Image:
        """Return the image of a file that is in memory."""
        flat = memoryview(buffer).cast("B")

        def read(offset: int, room: memoryview) -> int:
            found = flat[offset : offset + room.nbytes]
            room[: found.nbytes] = found
            return found.nbytes

        return cls(flat.nbytes, read, flat.release)

    @classmethod
    def of_reader(cls, reader: PieceReader) -> Image:
        """Return the image of a file object that is read by position. The caller keeps the object."""

        def read(offset: int, room: memoryview) -> int:
            got = max(0, min(room.nbytes, reader.size - offset))
            room[:got] = reader.read(offset, got)
            return got

        image = cls(reader.size, read)
        image._head = PIECE
        return image

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to another position."""
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if not 0 <= at < 1 << 63:
            raise ValueError(f"no file has a byte at {at:#x}")
        self._at = at
        return at

    def readinto(self, room: Any) -> int:
        """Fill the room with what is here; behind the file's end with zeros, as libhdf5's own driver does."""
        with memoryview(room) as view, view.cast("B") as left:
            size = wanted = left.nbytes
            try:
                while wanted and (got := self._read(self._at, left[size - wanted :])):
                    wanted -= got
                    self._at += got
            except OSError as error:
                self.fault = error
                raise
            left[size - wanted :] = bytes(wanted)
        return size

    def sample(self) -> diagnosis.FileSample:
        """Return the first and last bytes, and close."""
        with self:
            head = self.read(min(self._size, self._head))
            self.seek(max(0, self._size - diagnosis.TAIL))
            return diagnosis.FileSample(head, self.read(min(self._size, diagnosis.TAIL)), self._size)

    def close(self) -> None:
        """Close the descriptor, or release the buffer, that is read."""
        if not self.closed and self._release is not None:
            self._release()
        super().close()


@contextlib.contextmanager
def faults(image: Image) -> Iterator[None]:
    """Raise errors of libhdf5 about a file as FormatError, and those of the system as OSError."""
    image.fault = None
    try:
        yield
    except Error:
        raise
    except (
        OSError,
        RuntimeError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        NotImplementedError,
        OverflowError,  # of an address that is none in any file
    ) as error:
        if image.fault is not None:
            raise image.fault from error
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise FormatError(_said(error)) from error


def _said(error: BaseException) -> str:
    text = error.args[0] if error.args else ""
    return f"hdf5: {ascii(str(text))[1:-1][:300]}"
