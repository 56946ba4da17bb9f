"""The rows, one entry each. A new file is added to `files.MAKERS`, a new loader to `loaders.LOADERS`."""

from __future__ import annotations

from dataclasses import dataclass

from .loaders import LOADERS

COLUMNS = ("ready", "touch", "consume")


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
        "ready", "touch", "consume" or "private".
    at_least, at_most : float, optional
        The bound on the median of peer/ours; for "private", on our own megabytes.
    since : tuple of int
        The first torch release for which the goal was set; earlier ones are measured and not judged.
    """

    column: str
    at_least: float | None = None
    at_most: float | None = None
    since: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        bound = f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"
        return bound + (" MB" if self.column == "private" else "")

    def met(self, value: float) -> bool:
        """Say whether a value keeps the bound."""
        return value >= self.at_least if self.at_least is not None else value <= (self.at_most or 0)


@dataclass(frozen=True)
class TimeCase:
    """Two sides timed in turn.

    ``check_ends`` compares only the ends of each storage with torch.load's: memory cannot hold the file.
    """

    name: str
    ours: Side
    peer: Side
    goals: tuple[Goal, ...] = ()
    columns: tuple[str, ...] = COLUMNS
    check_ends: bool = False


@dataclass(frozen=True)
class MemoryCase:
    """Private memory of each further copy, all copies alive, each side in a process of its own."""

    name: str
    ours: Side
    peer: Side
    copies: tuple[int, int]
    goals: tuple[Goal, ...] = ()


def _against(peer: str, file: str, *goals: Goal) -> TimeCase:
    return TimeCase(f"{file.partition('.')[0]}/{peer}", Side("zerocopy", file), Side(peer, file), goals)


CASES: tuple[TimeCase | MemoryCase, ...] = (
    _against("torch", "bert.pt", Goal("ready", at_least=300)),
    _against("torch-mmap", "bert.pt", Goal("ready", at_least=30)),
    _against("torch-mmap-trusted", "bert.pt"),
    TimeCase(
        "bert/notebook",
        Side("zerocopy", "bert.pt"),
        Side("notebook", "bert.h5"),
        (Goal("ready", at_least=20),),
    ),
    _against("torch", "llm.pt", Goal("ready", at_least=2000), Goal("touch", at_least=80)),
    _against("torch-mmap", "llm.pt"),
    _against("torch", "moe.pt"),
    _against("torch-mmap", "moe.pt", Goal("ready", at_least=40)),
    _against("torch", "lora.pt", Goal("ready", at_least=60, since=(2, 13))),
    _against("torch-mmap", "lora.pt"),
    *(
        TimeCase(
            f"memory/{file.partition('.')[0]}",
            Side("patched-memory", file),
            Side("torch-memory", file),
            (Goal("ready", at_least=1),),
            columns=("ready",),
        )
        for file in ("storage.pt", "small.pt")
    ),
    TimeCase(
        "size/16GiB-over-1GiB",
        Side("zerocopy", "sparse-1GiB.pt"),
        Side("zerocopy", "sparse-16GiB.pt"),
        (Goal("ready", at_most=1.2),),
        columns=("ready",),
        check_ends=True,
    ),
    MemoryCase(
        "copies/torch",
        Side("zerocopy", "bert.pt"),
        Side("torch", "bert.pt"),
        copies=(1000, 4),
        goals=(Goal("private", at_most=0.1),),
    ),
    # 500 of the peer's: each of its copies keeps a file descriptor, and 1024 are what a process usually gets.
    MemoryCase(
        "copies/notebook", Side("zerocopy", "bert.pt"), Side("notebook", "bert.h5"), copies=(1000, 500)
    ),
)
