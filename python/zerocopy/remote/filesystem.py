"""Files of the file systems that fsspec and its plugins know: object stores, model hubs, and others."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any

from zerocopy.errors import UnsupportedError
from zerocopy.remote.file import without_password

# What an entry says of the version of its file, by the file systems' various names.
_OF_VERSION = (
    "etag",
    "ETag",
    "md5Hash",
    "generation",
    "VersionId",
    "mtime",
    "last_modified",
    "LastModified",
    "last_commit",
)

# Many file systems raise errors that have only a text.
_NUMBERS = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES, TimeoutError: errno.ETIMEDOUT}


@contextlib.contextmanager
def _naming(url: str) -> Iterator[None]:
    """Add a number and the URL to an ``OSError`` that lacks one of them."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is not None:
            raise
        by_class = (number for kind, number in _NUMBERS.items() if isinstance(error, kind))
        number = error.errno or next(by_class, errno.EIO)
        reason = os.strerror(number) if number == errno.ENOENT else error.strerror or str(error)
        raise OSError(number, reason, url) from error


class FilesystemRanges:
    """A file by its fsspec URL: see `Ranges`."""

    is_whole = False

    def __init__(self, url: str) -> None:
        self._url = without_password(url)
        try:
            import fsspec
        except ImportError:
            raise UnsupportedError(
                f"{self._url}: expected the package fsspec, which reads such URLs: install it"
            ) from None
        try:
            with _naming(self._url):
                self._files, self._path = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:  # a plugin that is not installed, an unknown scheme
            raise UnsupportedError(f"{self._url}: {error}") from None
        self._about = self._ask()
        self.size = self._about[0]

    def read(self, begin: int, end: int) -> bytes:
        """Return exactly these bytes."""
        with _naming(self._url):
            content: bytes = self._files.cat_file(self._path, start=begin, end=end)
        if len(content) != end - begin:
            raise OSError(
                errno.ESTALE,
                f"got {len(content)} bytes of {begin} to {end}: the file was cut since it was opened",
                self._url,
            )
        return content

    def read_whole(self, memory: memoryview) -> None:
        """Fill memory of the file's size."""
        memory[:] = self.read(0, self.size)

    def require_unchanged(self) -> None:
        """Raise ``OSError`` (ESTALE) if the file has changed since it was opened."""
        if self._ask() != self._about:
            raise OSError(errno.ESTALE, "the file changed since it was opened", self._url)

    def _ask(self) -> tuple[int, list[Any]]:
        with _naming(self._url):
            self._files.invalidate_cache()
            entry = self._files.info(self._path)
        if entry.get("type") == "directory":
            raise IsADirectoryError(errno.EISDIR, "is a folder: end its URL with a slash", self._url)
        if entry.get("size") is None:
            raise UnsupportedError(f"{self._url}: expected a file of known size")
        return int(entry["size"]), [entry.get(name) for name in _OF_VERSION]
