"""What the model server's side raises. It knows no torch."""

from __future__ import annotations

from zerocopy.errors import Error


class ServerError(Error, RuntimeError):
    """The model server is gone, or refuses; or its loader died, or took too long."""


class FrameError(Exception):
    """What came over the socket is not a frame: the connection is of no use any more."""


class RunHere(Exception):
    """A call that only the caller's own process can make, and why."""

    def __init__(self, reason: str, is_usual: bool) -> None:
        super().__init__(reason)
        self.is_usual = is_usual  # and no reason for a warning
