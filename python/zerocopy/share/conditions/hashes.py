"""Lets a result hold numbers that ``hash()`` gave: each process computes its own.

Python hashes texts and bytes with a secret of the process (``PYTHONHASHSEED``), so that a number which the loader
computed is another one in every client. transformers keeps such a number in a ``GenerationConfig``, and compares it
before each generation. A loader notes the explicit calls of ``hash`` and what was hashed; in the result a number that
one of them returned is written as :class:`HashOf`.
"""

from __future__ import annotations

import builtins
from typing import Any, NamedTuple, Self

from zerocopy.process.replacements import Replacements

#: More calls than that are not noted: what is hashed is kept until the result is written.
MAX_NOTED = 65536
# A hash below is as likely a number that means itself.
_LEAST = 1 << 32


class HashOf(NamedTuple):
    """Stands in a skeleton for a number."""

    hashed: Any


class Hashes:
    """Notes within its block what ``hash`` returns for texts, bytes, and tuples and frozen sets of such."""

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
    """Return whether an object's hash is another in each process, and the object can be hashed there too."""
    kind = type(obj)
    if kind is tuple or kind is frozenset:
        return all(map(_is_plain, obj)) and any(map(_is_secret, obj))  # type: ignore[call-overload]
    return kind is str or kind is bytes


def _is_plain(obj: object) -> bool:
    kind = type(obj)
    if kind is tuple or kind is frozenset:
        return all(map(_is_plain, obj))  # type: ignore[call-overload]
    return kind in (str, bytes, int, float, complex, bool)
