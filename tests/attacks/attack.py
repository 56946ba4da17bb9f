"""An entry of the catalog of attacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import assembler
import torch
import torch._weights_only_unpickler as torchs_list

#: A module on the path of the process that loads: importing it, or calling what it has, leaves a CANARY.
TRAP = "zerocopy_test_trap"
#: The file that a payload makes, in the working folder of the process that loads. It must never be there.
CANARY = "canary"

MEBIBYTE = 2**20


class Expected(Enum):
    """Answers of `zerocopy.load` to an input."""

    EQUAL = "loads, equal"
    LOADS = "loads"
    FORMAT = "FormatError"
    REFUSED = "UnpicklingError"
    UNSUPPORTED = "UnsupportedError"
    TORCH = "torch's own error"  # what the running torch raises for the same file


def good() -> Any:
    """Return what the pickle of :func:`assembler.good` stands for."""
    return {"weight": torch.arange(float(assembler.NUMEL))}


@dataclass(frozen=True)
class Attack:
    """One file that is hostile, faulty, or odd but valid, and what loading it comes to.

    Parameters
    ----------
    name : str
        Says what is wrong with the file. Unique in its family.
    make : callable
        Returns the file's bytes, the same ones each time.
    expected : Expected
        The answer of ``zerocopy.load`` on every release of torch; but see `needs`.
    says : tuple of str
        Parts that the message must have besides the file's name: the refused globals, the record.
    value : callable
        Returns what EQUAL is equal to.
    memory : int
        Bytes that loading may take at most, beyond what the process had.
    seconds : float
        Processor time that loading may take at most, of a slow machine.
    weights_only : bool
        Handed to the loader. A payload of a trusted file does run: such an entry has none.
    map_location : str, optional
        Handed to the loader.
    needs : str
        The path of a global that the file names and only some releases have on their list. On the others the file is
        REFUSED for it: see :meth:`here`.
    """

    name: str
    make: Callable[[], bytes]
    expected: Expected
    says: tuple[str, ...] = ()
    value: Callable[[], Any] = good
    memory: int = 64 * MEBIBYTE
    seconds: float = 2
    weights_only: bool = True
    needs: str = ""
    map_location: str | None = None

    def here(self) -> Attack:
        """Return what the attack comes to on the running release of torch."""
        if not self.needs or not self.weights_only or self.needs in _torchs_globals():
            return self
        return replace(self, expected=Expected.REFUSED, says=(self.needs,))

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


@functools.cache
def _torchs_globals() -> set[str]:
    """Return what torch allows, by its list and by what it has registered itself."""
    registered = getattr(torch.serialization, "get_safe_globals", list)()
    return {
        *torchs_list._get_allowed_globals(),
        *(f"{each.__module__}.{each.__qualname__}" for each in registered),
    }


@dataclass(frozen=True)
class Family:
    """Attacks on one part of the reader."""

    title: str
    attacks: tuple[Attack, ...]
