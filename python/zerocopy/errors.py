"""The exceptions that zerocopy raises, apart from ``OSError`` and ``pickle.UnpicklingError``."""

from zerocopy.display import shown


class Error(Exception):
    """Base of zerocopy's own exceptions."""

    def __str__(self) -> str:
        return shown(super().__str__(), None, keep="\n")


class FormatError(Error, ValueError):
    """The bytes contradict the format: truncated, overlapping, out of range, absurd."""


class UnsupportedError(Error, NotImplementedError):
    """Legal, but not something that zerocopy, or the running PyTorch, can do."""


class ClosedError(Error, ValueError):
    """A checkpoint was closed, and something of it is wanted that was not loaded before."""


class CacheError(Error, RuntimeError):
    """The folder of kept results cannot be used: it is another user's, or open to others."""
