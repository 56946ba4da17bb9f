"""The catalog of calls that ``share`` is compared on: ``CASES``, by name."""

from share_catalog import (
    diffusion,
    identity,
    modules,
    objects,
    programs,
    seeds,
    sources,
    states,
    tensors,
    training,
    transformer,
)
from share_catalog.case import CASES, Case

__all__ = [
    "CASES",
    "Case",
    "diffusion",
    "identity",
    "modules",
    "objects",
    "programs",
    "seeds",
    "sources",
    "states",
    "tensors",
    "training",
    "transformer",
]
