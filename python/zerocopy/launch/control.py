"""Lists and ends the fork servers of warm starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zerocopy.launch import records, sockets

_TIMEOUT = 5.0


def status() -> Iterator[dict[str, Any]]:
    """Yield the status of each fork server, with its ``socket``. Remove sockets without a server."""
    for place in records.sockets():
        answer = _ask(place, "status")
        if answer is not None:
            yield {**answer, "socket": place}


def stop(place: str) -> int | None:
    """Ask a fork server to end once its programs have ended. Return its process, or None without a server."""
    answer = _ask(place, "stop")
    return None if answer is None else int(answer["pid"])


def stop_all() -> list[int]:
    """Ask all fork servers of this user to end once their programs have ended. Return their processes."""
    return [pid for place in list(records.sockets()) if (pid := stop(place)) is not None]


def _ask(place: str, op: str) -> dict[str, Any] | None:
    with contextlib.suppress(OSError):
        connection = sockets.connect(place, _TIMEOUT)
        if connection is None:
            Path(place).unlink(missing_ok=True)
            return None
        with connection:
            sockets.receive(connection)
            sockets.send(connection, {"op": op})
            answer, _ = sockets.receive(connection)
            return answer if "pid" in answer else None
    return None
