"""Kinds of rows: the sides of a row, its columns, and its goals. The rows themselves are in `rows`."""

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
class Goal:
    """A bound that one column must keep.

    Attributes
    ----------
    column : str
        One of COLUMNS, "private", "peak", "resident", "read", "attaches" or "pss".
    at_least, at_most : float, optional
        The bound.
    unit : str
        The unit of the bound: "ms", "MB" or "/s" of our side; empty for the median of peer/ours.
    since : tuple of int
        The first torch release for which the goal was set; earlier ones are measured and not judged.
    """

    column: str
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""
    since: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        bound = f">= {self.at_least:.4g}" if self.at_least is not None else f"<= {self.at_most:.4g}"
        return f"{bound} {self.unit}".rstrip()

    def met(self, value: float) -> bool:
        """Say whether a value keeps the bound."""
        return value >= self.at_least if self.at_least is not None else value <= (self.at_most or 0)


@dataclass(frozen=True)
class TimeCase:
    """Two sides timed in turn, or ours alone.

    ``check_ends`` compares only the ends of each storage with torch.load's: memory cannot hold the file.
    ``most_rounds`` is for rows that take long.
    """

    name: str
    ours: Side
    peer: Side | None
    goals: tuple[Goal, ...] = ()
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
    goals: tuple[Goal, ...] = ()


@dataclass(frozen=True)
class UseCase:
    """Memory and page cache that one use of a file takes, each side in a process of its own; see `use.py`.

    ``columns`` are of "peak", "resident" and "read"; for the last the file is dropped from the page cache before.
    """

    name: str
    ours: Side
    peer: Side | None
    columns: tuple[str, ...]
    goals: tuple[Goal, ...] = ()


@dataclass(frozen=True)
class ClientsCase:
    """Results of several clients at once; see `clients.py`. ``column`` is "attaches" or "pss"."""

    name: str
    ours: Side
    column: str
    goals: tuple[Goal, ...]
    peer: Side | None = None


Case = TimeCase | MemoryCase | UseCase | ClientsCase
