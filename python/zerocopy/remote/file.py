"""A file on another machine as a seekable file object, which is read by ranges."""

from __future__ import annotations

import io
import mmap
import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

#: The bytes of a request, and how many requests are in flight, where much is read.
REQUEST = 8 << 20
THREADS = 8


def without_password(url: str) -> str:
    """Return a URL without the name and password of a user, and any other path as it is."""
    return re.sub("://[^/]*@", "://", url)


class Ranges(Protocol):
    """The bytes of a file of known size, by ranges. Any thread may ask."""

    @property
    def size(self) -> int:
        """The number of its bytes."""

    @property
    def is_whole(self) -> bool:
        """Whether only the whole can be read: the server knows no ranges."""

    def read(self, begin: int, end: int) -> bytes:
        """Return exactly these bytes. Raise ``OSError``: ESTALE if the file has changed since it was opened."""

    def read_whole(self, memory: memoryview) -> None:
        """Fill memory of the file's size from its beginning to its end."""

    def require_unchanged(self) -> None:
        """Raise ``OSError`` (ESTALE) if the file has changed since it was opened."""


class RemoteFile(io.RawIOBase):
    """A file on another machine.

    Attributes
    ----------
    name : str
        Its URL, without a password.
    size : int
        The number of its bytes.
    """

    is_far = True  # each read waits for the network

    def __init__(self, name: str, ranges: Ranges) -> None:
        self.name, self.size, self._ranges, self._at = name, ranges.size, ranges, 0

    def __repr__(self) -> str:
        return f"<RemoteFile {self.name}, {self.size} bytes>"

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Return exactly these bytes. Raise ``OSError`` if there are fewer."""
        return self._ranges.read(offset, offset + nbytes) if nbytes else b""

    def require_unchanged(self) -> None:
        """Raise ``OSError`` (ESTALE) if the file is not what it was when it was opened."""
        self._ranges.require_unchanged()

    def rest(self) -> memoryview:
        """Return memory of its own with all from the position to the end, which is requested in parts."""
        begin, self._at = self._at, self.size
        size = max(0, self.size - begin)
        memory = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE) if size else b"")
        if self._ranges.is_whole and begin == 0:
            self._ranges.read_whole(memory)
        elif size:
            self._fill(memory, begin)
        self._ranges.require_unchanged()
        return memory

    def _fill(self, memory: memoryview, offset: int) -> None:
        def fill(at: int) -> None:
            part = memory[at : at + REQUEST]
            part[:] = self._ranges.read(offset + at, offset + at + len(part))

        with ThreadPoolExecutor(THREADS, "zerocopy-remote") as threads:
            tasks = [threads.submit(fill, at) for at in range(0, len(memory), REQUEST)]
            try:
                for task in tasks:
                    task.result()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position, as any file object."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise ValueError(f"negative seek position {start + offset}")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer, and return how many bytes."""
        with memoryview(buffer).cast("B") as memory:
            count = max(0, min(len(memory), self.size - self._at))
            memory[:count] = self.read_at(self._at, count)
        self._at += count
        return count

    def readall(self) -> bytes:
        """Read to the end."""
        return bytes(self.rest())
