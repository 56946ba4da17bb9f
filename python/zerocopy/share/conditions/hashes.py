"""Lets a result hold numbers that ``hash()`` returned, although they differ from process to process.

Python hashes texts and bytes with a secret of the process (``PYTHONHASHSEED``), so each client would compute another
number than the loader did. transformers keeps such a number in a ``GenerationConfig``, and compares it before each
generation. A loader records the explicit calls of ``hash``, with the objects that were hashed. In the result, a number
that such a call returned is written as :class:`HashOf`, and each client computes its own.
"""

from __future__ import annotations

import builtins
from typing import Any, NamedTuple, Self

from zerocopy.process.replacements import Replacements

#: Further calls are not recorded, because hashed objects stay in memory until the result is written.
MAX_NOTED = 65536
# A smaller number in a result may as well be an ordinary integer, so it is not replaced.
_LEAST = 1 << 32


class HashOf(NamedTuple):
    """Stands in a skeleton for the hash of an object."""

    hashed: Any


class Hashes:
    """Records the results of ``hash`` within its block, for texts, bytes, and tuples and frozen sets of these."""

    def __init__(self) -> None:
        self._noted: dict[int, Any] = {}
        self._replaced = Replacements()

    def __enter__(self) -> Self:
        self._replaced.replace(builtins, "hash", self._noting)
        return self

    def _noting(self, original: Any) -> Any:
        noted = self._noted

        def hash(obj: object, /) -> int:
            number: int = original(obj)
            if abs(number) >= _LEAST and len(noted) < MAX_NOTED and _is_secret(obj):
                noted[number] = obj
            return number

        return hash

    def __exit__(self, *_: object) -> None:
        self._replaced.restore()

    def __bool__(self) -> bool:
        return bool(self._noted)

    def name_of(self, obj: Any) -> HashOf | None:
        """Return the stand-in of a number that ``hash`` has returned; None for anything else."""
        return HashOf(self._noted[obj]) if type(obj) is int and obj in self._noted else None


def here(name: Any) -> int:
    """Return the number that `name` stands for in this process."""
    if not isinstance(name, HashOf):
        raise LookupError(f"{name!r} stands for nothing")
    return hash(name.hashed)


def _is_secret(obj: object) -> bool:
    """Return whether an object's hash differs from process to process, and each process can compute it."""
    kind = type(obj)
    if kind is tuple or kind is frozenset:
        return all(map(_is_plain, obj)) and any(map(_is_secret, obj))  # type: ignore[call-overload]
    return kind is str or kind is bytes


def _is_plain(obj: object) -> bool:
    kind = type(obj)
    if kind is tuple or kind is frozenset:
        return all(map(_is_plain, obj))  # type: ignore[call-overload]
    return kind in (str, bytes, int, float, complex, bool)
