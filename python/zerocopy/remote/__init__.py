"""Files on other machines, by their URLs.

::

    core ── read ─→ PieceReader ── read_at ─→ RemoteFile ── read ─→ HttpRanges        http(s)://, by http.client
                    keeps pieces              a file object         FilesystemRanges  s3://, hf://, ..., by fsspec
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from zerocopy.remote.file import Ranges, without_password
from zerocopy.remote.file import RemoteFile as RemoteFile

_SCHEME = "[A-Za-z][A-Za-z0-9+.-]*"
_URL = re.compile(f"(?:{_SCHEME}::)*{_SCHEME}://")  # also of fsspec's chains: simplecache::https://host/a.pt


class RemotePath:
    """The URL of a file, with the methods of ``Path`` that callers here use. Making one sends no request."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._file: RemoteFile | None = None

    def __str__(self) -> str:
        return self.url

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    @property
    def name(self) -> str:
        """The part behind the last slash, without a query."""
        return self.url.split("?", 1)[0].rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        return PurePosixPath(self.name).suffix

    @property
    def is_folder(self) -> bool:
        """Return whether the URL names a folder: it ends with a slash."""
        return not self.name

    def beside(self, name: str) -> RemotePath:
        """Return the file of another name in the same folder, with the same query."""
        address, mark, query = self.url.partition("?")
        return RemotePath(f"{address.rpartition('/')[0]}/{name}{mark}{query}")

    def exists(self) -> bool:
        """Return whether the file exists. This requests its beginning."""
        try:
            self.open()
        except FileNotFoundError:
            return False
        return True

    def open(self) -> RemoteFile:
        """Request the beginning of the file, once.

        Raises
        ------
        OSError
            There is no such file (ENOENT), it may not be read (EACCES), or it cannot be reached.
        zerocopy.UnsupportedError
            No installed package knows this kind of URL.
        """
        if self._file is None:
            self._file = RemoteFile(without_password(self.url), _ranges(self.url))
        return self._file


def is_url(path: Any) -> bool:
    """Return whether a path is a URL."""
    return isinstance(path, str) and _URL.match(path) is not None


def opened(f: Any) -> Any:
    """Return the file object of a URL or a `RemotePath`, and anything else as it is."""
    if is_url(f):
        f = RemotePath(f)
    return f.open() if isinstance(f, RemotePath) else f


def _ranges(url: str) -> Ranges:
    if urlsplit(url).scheme in ("http", "https") and "::" not in url:
        from zerocopy.remote.http import HttpRanges

        return HttpRanges(url)
    from zerocopy.remote.filesystem import FilesystemRanges

    return FilesystemRanges(url)
