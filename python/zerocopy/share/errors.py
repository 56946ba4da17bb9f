"""What the model server's side raises. It knows no torch."""

from __future__ import annotations

from zerocopy.errors import Error


class ServerError(Error, RuntimeError):
    """The model server is gone, or refuses; or its loader died, or took too long."""


class FrameError(Exception):
    """What came over the socket is not a frame: the connection is of no use any more."""
