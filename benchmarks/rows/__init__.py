"""The rows, a file an area: what is compared, by which loaders.

An area has ``LOADERS``, by name, and ``CASES``. A row may name loaders of other areas.
"""

from __future__ import annotations

from ..engine.cases import Case
from ..engine.loader import LOADERS
from . import (
    cold,
    distributed,
    far,
    floor,
    gpu,
    module,
    opening,
    parts,
    placeholders,
    safetensors,
    script,
    share,
    warm,
    whole,
    writing,
)

__all__ = ["AREAS", "CASES", "LOADERS"]

AREAS = (  # in the order of the table
    whole,
    floor,
    opening,
    safetensors,
    placeholders,
    script,
    module,
    parts,
    cold,
    writing,
    share,
    distributed,
    warm,
    far,
    gpu,
)
CASES: tuple[Case, ...] = tuple(case for area in AREAS for case in area.CASES)
for area in AREAS:
    LOADERS.update(area.LOADERS)
