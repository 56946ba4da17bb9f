"""An HTTP server of the test's own on the loopback, with ranges, latency, and faults on request."""

from __future__ import annotations

import http.server
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

#: Answers a request itself and returns True, or leaves it to the server.
Fault = Callable[["Handler"], bool]


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET from a folder."""

    protocol_version = "HTTP/1.1"
    server: HttpServer

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def answer(self, status: int, headers: dict[str, str], content: bytes = b"") -> None:
        """Send a whole answer."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        self.server.sent += len(content)

    def do_GET(self) -> None:
        """Send a file or a range of it."""
        server = self.server
        server.requests.append((self.path, self.headers.get("Range", "")))
        server.headers.append(dict(self.headers))
        time.sleep(server.delay)
        if not (server.faults and server.faults[0](self)):
            self.answer(*self._range())

    def _range(self) -> tuple[int, dict[str, str], bytes]:
        name = unquote(re.sub(r"^\w+://[^/]*", "", self.path).partition("?")[0])
        path = self.server.folder / name.lstrip("/")
        if not path.is_file():
            return 404, {}, b""
        status = path.stat()
        size, etag = status.st_size, f'"{status.st_mtime_ns:x}-{status.st_size:x}"'
        if self.headers.get("If-Match", etag) != etag:
            return 412, {}, b""
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found is None or not self.server.has_ranges:
            return 200, {"ETag": etag}, path.read_bytes()
        begin, end = int(found[1]), min(int(found[2]) + 1, size)
        if begin >= size:
            return 416, {"Content-Range": f"bytes */{size}"}, b""
        with path.open("rb") as file:
            file.seek(begin)
            content = file.read(end - begin)
        return 206, {"ETag": etag, "Content-Range": f"bytes {begin}-{end - 1}/{size}"}, content


class HttpServer(http.server.ThreadingHTTPServer):
    """Serves a folder.

    Attributes
    ----------
    requests : list of (path, range)
    headers : list of dict
        Of each request.
    sent : int
        Bytes of content.
    faults : list of Fault
        The first is asked at each request.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.delay, self.has_ranges = folder, 0.0, True
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.faults: list[Fault] = []
        self.sent = 0

    def url(self, name: str, user: str = "") -> str:
        """Return the URL of a file."""
        return f"http://{user}127.0.0.1:{self.server_port}/{name}"

    def forget(self) -> None:
        """Count from zero."""
        self.requests.clear()
        self.headers.clear()
        self.sent = 0

    def handle_error(self, *_: Any) -> None:
        """Print nothing: clients go away."""


@contextmanager
def serving(folder: Path) -> Iterator[HttpServer]:
    """Serve a folder in threads of this process."""
    with HttpServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
