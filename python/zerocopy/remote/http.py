"""Files of HTTP servers, by range requests (RFC 9110, section 14) over connections that stay open.

Proxies, certificates and passwords come from where curl and requests take them: ``http_proxy``, ``https_proxy``,
``all_proxy``, ``no_proxy``; ``REQUESTS_CA_BUNDLE``, ``CURL_CA_BUNDLE``, ``SSL_CERT_FILE``; the URL.
"""

from __future__ import annotations

import base64
import errno
import functools
import http.client
import os
import re
import ssl
import time
import urllib.request
from collections.abc import Callable
from typing import NamedTuple, TypeVar
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from zerocopy import _version
from zerocopy.errors import UnsupportedError
from zerocopy.remote.file import without_password

#: The bytes of the first request: most headers are shorter.
BEGINNING = 1 << 18
_TIMEOUT = 30.0  # seconds without an answer
_ATTEMPTS = 5
_FIRST_PAUSE = 0.1  # seconds, doubled each time
_MAX_PAUSE = 30.0
_MAX_REDIRECTS = 10
_REDIRECTS = (301, 302, 303, 307, 308)
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_KEPT = "/%?:@!$&'()*+,;=[]~"  # characters that an address may have, or that were quoted already
_Connection = http.client.HTTPConnection
_Result = TypeVar("_Result")


class _Retry(Exception):
    """A failed answer; another attempt may succeed."""

    def __init__(self, reason: str, pause: float = 0.0) -> None:
        super().__init__(reason)
        self.pause = pause


class _Version(NamedTuple):
    """What a server says of the content of a file; the same for the same content."""

    size: int
    etag: str
    modified: str

    def differs(self, other: _Version) -> bool:
        """Return whether another answer is about another content."""
        if self.size != other.size:
            return True
        return self.etag != other.etag if self.etag or other.etag else self.modified != other.modified


class HttpRanges:
    """A file by its HTTP URL: see `Ranges`."""

    def __init__(self, url: str) -> None:
        self._url = url.partition("#")[0]
        self._place = self._url  # where redirects led
        self._idle: list[tuple[int, tuple[str, str], _Connection]] = []
        self._version: _Version | None = None
        self._beginning = b""
        self.size, self.is_whole = 0, False
        self._beginning = self._request(0, BEGINNING)

    def read(self, begin: int, end: int) -> bytes:
        """Return exactly these bytes."""
        if end <= len(self._beginning):
            return self._beginning[begin:end]
        if self.is_whole:
            raise self._error(
                errno.EOPNOTSUPP, begin, end, "status 200: the server knows no ranges; load the whole"
            )
        return self._request(begin, end)

    def read_whole(self, memory: memoryview) -> None:
        """Fill memory of the file's size by one request without a range."""
        self._retried(0, len(memory), lambda: self._fill(memory))

    def require_unchanged(self) -> None:
        """Raise ``OSError`` (ESTALE) if the file has changed since it was opened. Each answer was compared already."""

    def _request(self, begin: int, end: int) -> bytes:
        return self._retried(begin, end, lambda: self._attempt(begin, end))

    def _retried(self, begin: int, end: int, attempt: Callable[[], _Result]) -> _Result:
        """Return the result of an attempt; of a later one after faults that may pass."""
        for number in range(_ATTEMPTS):
            try:
                return attempt()
            except (_Retry, TimeoutError, ConnectionError, http.client.HTTPException) as error:
                last = error
            except OSError as error:
                if error.filename is not None:
                    raise
                # Of a name that is not found, the number is negative.
                known = error.errno if error.errno and error.errno > 0 else errno.EHOSTUNREACH
                raise self._error(known, begin, end, str(error)) from None
            if number + 1 < _ATTEMPTS:
                pause = _FIRST_PAUSE * 2**number
                time.sleep(min(_MAX_PAUSE, max(pause, last.pause if isinstance(last, _Retry) else 0)))
        raise self._error(
            errno.EIO, begin, end, f"{str(last) or type(last).__name__}, after {_ATTEMPTS} attempts"
        )

    def _fill(self, memory: memoryview) -> None:
        response, _, connection = self._answer({})
        try:
            length = response.headers.get("Content-Length", "")
            if response.status != 200 or not length.isdigit():
                raise _Retry(f"status {response.status}")
            self._compare(response, int(length), 0, len(memory))
            at = 0
            while at < len(memory) and (got := response.readinto(memory[at:])):
                at += got
            if at < len(memory):
                raise _Retry(f"got {at} bytes")
        finally:
            connection.close()

    def _attempt(self, begin: int, end: int) -> bytes:
        headers = {"Range": f"bytes={begin}-{end - 1}"}
        known = self._version
        if known is not None:
            if known.etag and not known.etag.startswith("W/"):
                headers["If-Match"] = known.etag
            elif known.modified and not known.etag:
                headers["If-Unmodified-Since"] = known.modified
        response, key, connection = self._answer(headers)
        content = None
        try:
            count = self._accept(response, begin, end)
            if not count:
                return b""
            content = response.read(count)
            if len(content) != count:
                raise _Retry(f"got {len(content)} bytes")
            return content
        finally:
            if content is None or not response.isclosed() or response.will_close:
                connection.close()
            else:
                self._idle.append((os.getpid(), key, connection))

    def _accept(self, response: http.client.HTTPResponse, begin: int, end: int) -> int:
        """Compare an answer with the first one. Return how many bytes of it are the range. Raise for a wrong answer."""
        status = response.status
        if status in _TRANSIENT:
            after = response.headers.get("Retry-After", "")
            raise _Retry(f"status {status}", float(after) if after.isdigit() else 0.0)
        if status in (404, 410):
            raise self._error(errno.ENOENT, begin, end, f"status {status}: no such file")
        if status in (401, 403, 407):
            if self._place != self._url:  # a signed address that a redirect gave, and that has expired
                self._place = self._url
                raise _Retry(f"status {status}")
            raise self._error(errno.EACCES, begin, end, f"status {status}: not allowed")
        if status == 412:
            raise self._error(errno.ESTALE, begin, end, "status 412: the file changed since it was opened")
        found = _RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
        if status == 416 and found and found[3] == "0" and self._version is None:
            return self._compare(response, 0, begin, end)
        if status == 206 and found and found[1] and found[3] != "*" and int(found[1]) == begin:
            return self._compare(response, int(found[3]), begin, end)
        length = response.headers.get("Content-Length", "")
        if status == 200 and length.isdigit() and (self._version is None or self.is_whole):
            self.is_whole = int(length) > end
            count = self._compare(response, int(length), begin, end)
            return 0 if self.is_whole else count
        if status in (200, 206) and not length.isdigit():  # in chunks, or to the end of the connection
            reason = (
                f"status {status}: the server does not tell the file's length; download it first (curl -o)"
            )
            raise self._error(errno.EOPNOTSUPP, begin, end, reason)
        raise self._error(errno.EIO, begin, end, f"status {status}, which is not the range")

    def _compare(self, response: http.client.HTTPResponse, size: int, begin: int, end: int) -> int:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise self._error(errno.EIO, begin, end, "the server sends it compressed")
        headers = response.headers
        version = _Version(size, headers.get("ETag", ""), headers.get("Last-Modified", ""))
        if self._version is not None and self._version.differs(version):
            raise self._error(errno.ESTALE, begin, end, "the file changed since it was opened")
        self._version, self.size = version, size
        return max(0, min(end, size) - begin)

    def _error(self, number: int, begin: int, end: int, reason: str) -> OSError:
        return OSError(number, f"bytes {begin} to {end}: {reason}", without_password(self._url))

    def _answer(
        self, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, tuple[str, str], _Connection]:
        """Request the file, and follow redirects. Return the answer, whose content was not read."""
        place = self._place
        for _ in range(_MAX_REDIRECTS):
            parts = urlsplit(place)
            key = (parts.scheme, parts.netloc)
            connection = self._connection(key)
            response = self._exchange(connection, parts, headers)
            if response.status not in _REDIRECTS:
                self._place = place
                return response, key, connection
            place = urljoin(place, response.headers.get("Location", ""))
            connection.close()
            if urlsplit(place).scheme not in ("http", "https"):
                raise self._error(errno.EIO, 0, 0, f"a redirect to {without_password(place)}")
        raise self._error(errno.ELOOP, 0, 0, f"more than {_MAX_REDIRECTS} redirects")

    def _exchange(
        self, connection: _Connection, parts: SplitResult, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_KEPT)
        own = {"Accept-Encoding": "identity", "User-Agent": f"zerocopy/{_version.__version__}", **headers}
        if parts.username is not None:
            own["Authorization"] = _basic(parts)
        proxy = _proxy_of(parts)
        if proxy is not None and parts.scheme == "http":  # of https the connection is a tunnel through it
            host = parts.netloc.rpartition("@")[2]
            target, own["Host"] = f"http://{host}{target}", host
            if proxy.username is not None:
                own["Proxy-Authorization"] = _basic(proxy)
        for is_last in (False, True):
            reused = connection.sock is not None
            try:
                connection.request("GET", target, headers=own)
                return connection.getresponse()
            except (ConnectionError, http.client.BadStatusLine):
                connection.close()
                if is_last or not reused:  # the server may have closed a connection that was idle
                    raise
            except ssl.SSLError as error:
                connection.close()
                raise OSError(errno.EPROTO, str(error), without_password(self._url)) from None
            except BaseException:
                connection.close()
                raise
        raise AssertionError

    def _connection(self, key: tuple[str, str]) -> _Connection:
        while True:
            try:
                process, of, connection = self._idle.pop()
            except IndexError:
                return _connect(urlsplit(f"{key[0]}://{key[1]}"))
            if of == key and process == os.getpid():
                return connection


def _connect(parts: SplitResult) -> _Connection:
    proxy = _proxy_of(parts)
    near = parts if proxy is None else proxy
    host, port = near.hostname or "", near.port
    if parts.scheme == "http":
        return _Connection(host, port, timeout=_TIMEOUT)
    connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=_certificates())
    if proxy is not None:
        headers = {} if proxy.username is None else {"Proxy-Authorization": _basic(proxy)}
        connection.set_tunnel(parts.hostname or "", parts.port or 443, headers)
    return connection


def _proxy_of(parts: SplitResult) -> SplitResult | None:
    proxies = urllib.request.getproxies()
    address = proxies.get(parts.scheme) or proxies.get("all")
    if not address or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxy = urlsplit(address if "://" in address else f"http://{address}")
    if proxy.scheme != "http":
        raise UnsupportedError(f"{without_password(address)}: expected an http:// proxy")
    return proxy


@functools.cache
def _certificates() -> ssl.SSLContext:
    bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    if not bundle:
        return ssl.create_default_context()
    is_folder = os.path.isdir(bundle)
    return ssl.create_default_context(
        capath=bundle if is_folder else None, cafile=None if is_folder else bundle
    )


def _basic(parts: SplitResult) -> str:
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"
