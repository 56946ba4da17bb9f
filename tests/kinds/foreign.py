"""Objects of NumPy and torch beside tensors: arrays, scalars, storages, dtypes, devices, generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from kinds.kind import REPACKED, Group, Kind


def numpy_names() -> list[Any]:
    """Return what a file of an array names, under the module that wrote it."""
    core = np.core if np.__version__.startswith("1.") else np._core
    dtypes = {type(np.dtype(code)) for code in "fdlU"}
    return [core.multiarray._reconstruct, core.multiarray.scalar, np.ndarray, np.dtype, *dtypes]


def structured() -> np.ndarray:
    return np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")])


NUMPY = Group(
    "NumPy",
    (
        Kind("array", lambda: np.arange(6.0).reshape(2, 3)),
        Kind("array, allowed", lambda: {"a": np.arange(6.0).reshape(2, 3)}, allow=numpy_names),
        Kind("array in Fortran's order", lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3))),
        Kind("array, 0-dim and empty", lambda: [np.array(2.5), np.empty((0, 3))]),
        Kind("arrays of other dtypes", lambda: [np.arange(3).astype(code) for code in "?bBhHiIqQefdFD"]),
        Kind("array of big-endian numbers", lambda: np.arange(3, dtype=">i4")),
        Kind("array of strings", lambda: np.array(["a", "äö"])),
        Kind("array of dates", lambda: np.array(["2020-01-02"], dtype="datetime64[D]")),
        Kind("array of records", structured),
        Kind("array of objects", lambda: np.array([1, "a", None], dtype=object)),
        Kind("masked array", lambda: np.ma.masked_array([1.0, 2.0], [True, False])),
        Kind("array in several places", lambda: [(made := np.arange(3)), made]),
        Kind(
            "scalars", lambda: [np.float32(0.1), np.int64(3), np.bool_(True), np.float64("nan"), np.str_("a")]
        ),
        Kind("scalar, allowed", lambda: {"best": np.float64(0.5)}, allow=numpy_names),
        Kind("dtype", lambda: [np.dtype("f4"), np.dtype([("a", "i4")])]),
        Kind("generator of random numbers", lambda: np.random.default_rng(3)),
        Kind("state of the random numbers", lambda: np.random.RandomState(3).get_state()),
    ),
)


def storages() -> list[Any]:
    """Return a typed storage of each class that torch.save writes."""
    return [torch.arange(3).to(dtype).storage() for dtype in (torch.float32, torch.int64, torch.bfloat16)]


def filled(nbytes: int) -> Any:
    storage = torch.UntypedStorage(nbytes)
    storage.fill_(7)
    return storage


def generator() -> torch.Generator:
    made = torch.Generator()
    made.manual_seed(3)
    return made


def all_dtypes() -> list[torch.dtype]:
    found = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return [found[name] for name in sorted(found)]


TORCH = Group(
    "torch's own values",
    (
        Kind("bare tensor", lambda: torch.arange(3.0)),
        Kind("typed storage", lambda: torch.arange(3.0).storage()),
        Kind("typed storages", storages),
        Kind("untyped storage", lambda: filled(12)),
        Kind("untyped storage of no bytes", lambda: torch.UntypedStorage(0)),
        Kind("untyped storage, in several places", lambda: [(made := filled(12)), {"again": made}]),
        Kind("Size", lambda: [torch.Size([]), torch.Size([2, 3, 2**40])]),
        Kind("Size of a tensor", lambda: {"shape": torch.ones(2, 3).shape, "weight": torch.ones(2)}),
        Kind("every dtype", all_dtypes),
        Kind("device", lambda: [torch.device("cpu"), torch.device("cuda", 1), torch.device("meta")]),
        Kind("layout", lambda: [torch.strided, torch.sparse_coo, torch.sparse_csr]),
        Kind("memory format", lambda: torch.channels_last),
        Kind("qscheme", lambda: [torch.per_tensor_affine, torch.per_channel_symmetric]),
        Kind("Generator", generator, placed=REPACKED),
        Kind("finfo", lambda: torch.finfo(torch.float32)),
        Kind(
            "states of random generators",
            lambda: {"torch": torch.Generator().get_state(), "python": random.Random(3).getstate()},
        ),
    ),
)
