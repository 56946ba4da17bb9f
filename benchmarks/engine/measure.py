"""The timing core: two loaders in turn, round by round, the same for every row.

A round is A B. Timed is the call that returns the object ("ready"; "cold" if the files are not in the page cache), or
that and the reading of one byte of each page ("touch"), or that and the reading of every byte ("consume";
"cold-consume" if the files are not in the page cache). "second" is a "touch" of pages that others brought into the page
cache. Each column has loads of its own, so that none finds pages that another one mapped. Finding the storages lies
between the two timed parts and is not timed. The collector is off while timing; the result dies after it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter_ns
from typing import Any

from ..data.objects import spans_of
from .kernels import Kernels

MIN_ROUNDS, MAX_ROUNDS, ENOUGH_SECONDS = 9, 51, 1.0

#: The reading of each column that reads.
READING = {"touch": "touch", "consume": "consume", "cold-consume": "consume", "second": "touch"}

Call = Callable[[], Any]


@dataclass
class Series:
    """The seconds of both sides, round by round, and what follows from them. A row may have no peer."""

    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Peer over ours, of each round."""
        return [peer / ours for ours, peer in zip(self.ours, self.peer, strict=False)]

    def summary(self) -> dict[str, Any]:
        """Return everything the report and the JSON file need."""
        ratios = self.ratios
        return {
            "ours": median(self.ours),
            "ours_min": min(self.ours),
            "peer": median(self.peer) if self.peer else None,
            "peer_min": min(self.peer, default=None),
            "ratio": median(ratios) if ratios else None,
            "ratio_min": min(ratios, default=None),
            "ratio_max": max(ratios, default=None),
            "rounds": len(self.ours),
            "ours_rounds": self.ours,
            "peer_rounds": self.peer,
        }


def interleave(
    ours: Call,
    peer: Call | None,
    column: str,
    kernels: Kernels | None,
    rounds: int = MIN_ROUNDS,
    more: bool = True,
    before: Callable[[int], object] = lambda side: None,
) -> Series:
    """Time two calls in turn.

    Parameters
    ----------
    ours, peer : callable
        Return the loaded object. Without a peer ours is timed alone.
    column : str
        "ready", "cold", or one in which something is read.
    kernels : Kernels or None
        The readers; not needed for "ready" and "cold".
    rounds : int
        Rounds at least.
    more : bool
        Go on, up to 51 rounds, until a second was timed: short calls are noisy.
    before : callable
        Called before each call, with 0 if it is ours and else 1, and not timed.
    """
    series = Series()
    sides = [(ours, series.ours)] + ([(peer, series.peer)] if peer else [])
    for call, _ in sides:
        once(call, column, kernels)  # imports, caches and lazy initialisation of either side
    while len(series.ours) < rounds or (more and _wants_more(series)):
        gc.collect()
        for side, (call, seconds) in enumerate(sides):
            before(side)
            seconds.append(once(call, column, kernels))
    return series


def _wants_more(series: Series) -> bool:
    return len(series.ours) < MAX_ROUNDS and sum(series.ours) + sum(series.peer) < ENOUGH_SECONDS


def once(call: Call, column: str, kernels: Kernels | None) -> float:
    """Time one call and the reading that the column asks for, in seconds."""
    gc.disable()
    try:
        start = perf_counter_ns()
        result = call()
        elapsed = perf_counter_ns() - start
        if column in READING:
            assert kernels is not None
            read = getattr(kernels, READING[column])
            prepared = kernels.prepare(spans_of(result))
            start = perf_counter_ns()
            read(*prepared)
            elapsed += perf_counter_ns() - start
        return elapsed / 1e9
    finally:
        gc.enable()
