"""An entry of the catalog."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

#: Of data that torch copies into a form of its own, which may depend on the processor.
REPACKED = "as torch packs it"
WHERE_ALIGNED = "zero-copy where aligned"

Maker = Callable[[], Any]
Writer = Callable[[Any, Path], None]


@dataclass(frozen=True)
class Kind:
    """One kind of object, or one way to write it.

    Parameters
    ----------
    name : str
        Unique in the catalog; a row of docs/reference/objects.md.
    make : callable
        Returns the object. It must not fail where `needs` is there.
    needs : str
        Names that a release must have (``"torch.float8_e5m2 torch.nn.Buffer"``).
    write : callable
        Writes the object to a path.
    allow : callable, optional
        Returns what ``weights_only=True`` is told to allow: classes, or pairs (object, name in the file).
    expected : callable, optional
        The expected object, if stock torch of this release did not write the file.
    placed : str
        The table's word for the data, if it differs between runs or processors.
    same : callable, optional
        Compares instead of ``assert_same``, which cannot look into programs.
    """

    name: str
    make: Maker
    needs: str = ""
    write: Writer = torch.save
    allow: Callable[[], list[Any]] | None = None
    expected: Maker | None = None
    placed: str = ""
    same: Callable[[Any, Any], None] | None = None

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    def is_there(self) -> bool:
        """Return whether the running release has what the object needs."""
        return all(map(has, self.needs.split()))


@dataclass(frozen=True)
class Group:
    """A section of docs/reference/objects.md."""

    title: str
    kinds: tuple[Kind, ...]


def has(path: str) -> bool:
    """Return whether ``package.module.name`` is there, in a package that can be imported."""
    try:
        pkgutil.resolve_name(path)
    except (ImportError, AttributeError):
        return False
    return True


def write_bytes(content: bytes, path: Path) -> None:
    """Write a file that was made by hand."""
    path.write_bytes(content)


def saving(**options: Any) -> Writer:
    """Return ``torch.save`` with options."""
    return lambda made, path: torch.save(made, path, **options)
