"""Return whether this process is a worker of the model server."""

from __future__ import annotations

_is_worker = False


def become_worker() -> None:
    """Note that this process computes results: nothing in a worker goes to the server."""
    global _is_worker
    _is_worker = True


def is_worker() -> bool:
    """Return whether this process computes a result for the server."""
    return _is_worker
