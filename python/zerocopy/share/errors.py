"""Exceptions of the model server's processes. Importing them does not import torch."""

from __future__ import annotations

from zerocopy.errors import Error


class ServerError(Error, RuntimeError):
    """The model server is gone, or refuses; or its loader died, or took too long."""


class FrameError(Exception):
    """The socket delivered something other than a frame, so the connection cannot be used any more."""


class RunHere(Exception):
    """A call that only the caller's own process can make, and why."""

    def __init__(self, reason: str, is_usual: bool) -> None:
        super().__init__(reason)
        self.is_usual = is_usual  # and no reason for a warning
