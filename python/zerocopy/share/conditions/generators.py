"""The states of the generators of random numbers that a process has: Python's, NumPy's and torch's for the CPU."""

from __future__ import annotations

import base64
import functools
import hashlib
import pickle
import random
import sys
from typing import Any, Self

import torch

from zerocopy import _torch
from zerocopy.process.replacements import Replacements

#: A pickled state of each generator, by its name.
States = dict[str, bytes]


def states() -> States:
    """Return the states of all generators. NumPy's is left out where NumPy is not imported."""
    found = {
        "Python": pickle.dumps(random.getstate()),
        "torch": bytes(_torch.bytes_of(_torch.untyped_of(torch.get_rng_state()))),
    }
    if _has_numpy():
        found["NumPy"] = pickle.dumps(sys.modules["numpy"].random.get_state())
    return found


def set_states(found: States) -> None:
    """Set the generators to states that `states` returned, here or in another process."""
    random.setstate(pickle.loads(found["Python"]))
    torch.set_rng_state(torch.frombuffer(bytearray(found["torch"]), dtype=torch.uint8))
    if "NumPy" in found:
        import numpy as np

        np.random.set_state(pickle.loads(found["NumPy"]))


class Use:
    """Records which generators are used within its block: drawn from, seeded, or read (state or seed)."""

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self._replaced = Replacements()

    def __enter__(self) -> Self:
        self._before = states()
        for module, name, generator in _asking():
            self._replaced.replace(module, name, functools.partial(self._noting, generator))
        return self

    def _noting(self, generator: str, function: Any) -> Any:
        @functools.wraps(function)
        def note(*args: Any, **kwargs: Any) -> Any:
            self._asked.add(generator)
            return function(*args, **kwargs)

        return note

    def __exit__(self, *_: object) -> None:
        self._replaced.restore()
        now = states()
        moved = {name for name, state in self._before.items() if now[name] != state}
        if "NumPy" in now and "NumPy" not in self._before and not _is_fresh(now["NumPy"]):
            moved.add("NumPy")
        self.names = sorted(moved | self._asked)


def _asking() -> list[tuple[Any, str, str]]:
    """Return the functions that tell a generator's state: module, name, generator."""
    found: list[tuple[Any, str, str]] = [(random, "getstate", "Python")]
    for module in (torch, torch.random):
        found += [(module, name, "torch") for name in ("get_rng_state", "initial_seed")]
    if _has_numpy():
        found.append((sys.modules["numpy"].random, "get_state", "NumPy"))
    return found


def digest(found: States) -> str:
    """Return a text that is the same for equal states."""
    return hashlib.blake2b(repr(sorted(found.items())).encode(), digest_size=20).hexdigest()


def as_body(found: States) -> dict[str, str]:
    """Return states as JSON can have them."""
    return {name: base64.b85encode(state).decode() for name, state in found.items()}


def from_body(body: dict[str, str]) -> States:
    """Return the states that `as_body` described."""
    return {name: base64.b85decode(text) for name, text in body.items()}


def _has_numpy() -> bool:
    return "numpy.random" in sys.modules  # looking it up in the package would import it


def _is_fresh(state: bytes) -> bool:
    """Return whether nothing has happened to NumPy's generator since the import seeded it: it stands at its end."""
    position: Any = pickle.loads(state)[2]
    return int(position) == 624
