"""Kinds of rows: the sides of a row, and its columns. The rows themselves are in `rows`."""

from __future__ import annotations

from dataclasses import dataclass

from .loader import LOADERS

COLUMNS = ("ready", "touch", "consume", "cold", "cold-consume", "second", "attach")


@dataclass(frozen=True)
class Side:
    """A loader and the file it is given, both by name."""

    loader: str
    file: str

    def __str__(self) -> str:
        return f"{LOADERS[self.loader].label} {self.file}"


@dataclass(frozen=True)
class TimeCase:
    """Two sides timed in turn, or ours alone.

    ``check_ends`` compares only the ends of each storage with torch.load's: memory cannot hold the file.
    ``most_rounds`` is for rows that take long.
    """

    name: str
    ours: Side
    peer: Side | None
    columns: tuple[str, ...] = ("ready", "touch", "consume")
    check_ends: bool = False
    most_rounds: int = 51


@dataclass(frozen=True)
class MemoryCase:
    """Private memory of each further copy, all copies alive, each side in a process of its own."""

    name: str
    ours: Side
    peer: Side
    copies: tuple[int, int]


@dataclass(frozen=True)
class UseCase:
    """Memory and page cache that one use of a file takes, each side in a process of its own; see `use.py`.

    ``columns`` are of "peak", "resident" and "read"; for the last the file is dropped from the page cache before.
    """

    name: str
    ours: Side
    peer: Side | None
    columns: tuple[str, ...]


@dataclass(frozen=True)
class ClientsCase:
    """Results of several clients at once; see `clients.py`. ``column`` is "attaches" or "pss"."""

    name: str
    ours: Side
    column: str
    peer: Side | None = None


Case = TimeCase | MemoryCase | UseCase | ClientsCase
