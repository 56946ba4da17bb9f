"""An HDF5 file as h5py reads it: as bytes, and not by its path."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any

from zerocopy.errors import Error, FormatError
from zerocopy.loading.file_objects import PieceReader


class FileImage(io.RawIOBase):
    """A file as h5py reads it.

    It is not opened by its path: libhdf5 would lock it, and would open the path again for the program only in the same
    way. So zerocopy and the program do not hinder each other.
    """

    def __init__(self, descriptor: int, start: int, name: str) -> None:
        """Take over a descriptor; the file begins at `start`."""
        self._descriptor, self._start, self._name = descriptor, start, name
        self._size = max(0, os.fstat(descriptor).st_size - start)
        self._at = 0
        self.fault: OSError | None = None  # the last error: libhdf5 reports only its text

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to another position."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, room: Any) -> int:
        """Fill the room with what is here; behind the file's end with zeros, as libhdf5's own driver does."""
        with memoryview(room) as view, view.cast("B") as left:
            size = wanted = left.nbytes
            while wanted and (got := self._read(left[size - wanted :])):
                wanted -= got
            left[size - wanted :] = bytes(wanted)
        return size

    def _read(self, room: memoryview) -> int:
        try:
            got = os.preadv(self._descriptor, [room], self._start + self._at)
        except OSError as error:
            self.fault = OSError(error.errno, error.strerror, self._name)
            raise
        self._at += got
        return got

    def close(self) -> None:
        """Close the descriptor."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()


class ObjectImage(FileImage):
    """A file object, read by position."""

    def __init__(self, reader: PieceReader, name: str) -> None:
        self._reader, self._name, self._size, self._at = reader, name, reader.size, 0
        self.fault = None

    def _read(self, room: memoryview) -> int:
        got = max(0, min(room.nbytes, self._size - self._at))
        try:
            room[:got] = self._reader.read(self._at, got)
        except OSError as error:
            self.fault = error
            raise
        self._at += got
        return got

    def close(self) -> None:
        """Do nothing: the caller owns the file object."""
        io.RawIOBase.close(self)


Image = io.BytesIO | FileImage


@contextlib.contextmanager
def faults(image: Image) -> Iterator[None]:
    """Raise errors of libhdf5 about a file as FormatError, and those of the system as OSError."""
    if isinstance(image, FileImage):
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
        fault = getattr(image, "fault", None)
        if fault is not None:
            raise fault from error
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise FormatError(_said(error)) from error


def _said(error: BaseException) -> str:
    text = error.args[0] if error.args else ""
    return f"hdf5: {ascii(str(text))[1:-1][:300]}"
