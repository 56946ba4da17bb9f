"""Tensors of other layouts than dense, and torch's less common rebuild functions, with parts that do not fit."""

from __future__ import annotations

from attacks.attack import Family
from attacks.quantized import QUANTIZED_TENSORS
from attacks.rebuilds import REBUILT
from attacks.sparse import SPARSE

SPARSE_AND_QUANTIZED = Family("Sparse and quantized tensors", (*SPARSE, *QUANTIZED_TENSORS))
REBUILDS = Family("Rebuild functions", REBUILT)
