"""Parts of HDF5 datasets that are not mapped: as h5py itself reads them, and without the rest."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Child

import zerocopy

h5py = pytest.importorskip("h5py")

SHAPE = (20, 9, 11)
VALUES = np.arange(20 * 9 * 11, dtype="f4").reshape(SHAPE)
KINDS = {
    "chunks": {"data": VALUES, "chunks": (3, 4, 5)},
    "deflated": {"data": VALUES, "chunks": (3, 4, 5), "compression": "gzip"},
    "single": {"data": VALUES[:4, :3, :4], "chunks": (1, 1, 1)},
    "big-endian": {"data": VALUES.astype(">f4")},
    "thin": {"data": VALUES[:1, :, None], "chunks": (1, 2, 1, 3)},
    "never written": {"shape": SHAPE, "dtype": "f4", "chunks": (2, 3, 4), "fillvalue": 3},
    "sparse": {"shape": (2000, 9, 11), "dtype": "f4", "chunks": (2, 3, 4), "fillvalue": 7},
}


def _index(shape: tuple[int, ...], choice: random.Random) -> tuple[Any, ...]:
    parts: list[Any] = []
    for size in shape[: choice.randint(0, len(shape))]:
        first, last = sorted(choice.randint(-size - 1, size + 1) for _ in range(2))
        kinds: list[list[Any]] = [
            [slice(None)],
            [None, slice(None)],
            [slice(first, last, choice.choice([None, 1, 2, 3, 5]))],
            [choice.randrange(-size, size) if size else slice(None)],
        ]
        parts += choice.choice(kinds)
    return (*parts, ...) if choice.random() < 0.3 else tuple(parts)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_those_of_the_whole(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", **KINDS[kind])
        if kind == "sparse":
            made[100:103, 2:5, 3:9] = np.random.rand(3, 3, 6)
        whole = torch.from_numpy(np.asarray(made[()]).astype("f4"))
    choice = random.Random(kind)
    with zerocopy.open(path) as checkpoint:
        part = checkpoint.get_slice("x")
        for _ in range(60):
            index = _index(tuple(whole.shape), choice)
            found, read = part[index], checkpoint.read({"x": index})["x"]
            assert found.shape == whole[index].shape, index
            assert torch.equal(found, whole[index]) and torch.equal(read, whole[index]), index


IN_LITTLE_MEMORY = """
    import resource, sys, zerocopy
    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with zerocopy.open(sys.argv[1]) as checkpoint:
        before = peak()
        part = checkpoint.get_slice("x")
        print(part[5:7, :3].tolist(), part[5 : 5 + 4 * 10**6 : 10**6, 0].tolist())
        print(checkpoint.read({"x": (slice(5, 6), slice(0, 3))})["x"].tolist())
        assert peak() - before < 64e6, peak() - before
"""


@pytest.mark.plain_memory("it takes more memory")
@pytest.mark.parametrize("is_written", [True, False])
def test_part_of_a_dataset_that_is_larger_than_memory(
    tmp_path: Path, forked: Child, is_written: bool
) -> None:
    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", shape=(10**7, 10**6), dtype="f4", chunks=(100, 100))
        if is_written:
            made[5, :3] = [1, 2, 3]
    done = forked(IN_LITTLE_MEMORY, path)
    row = [1.0, 2.0, 3.0] if is_written else [0.0, 0.0, 0.0]
    assert done.stdout == f"{[row, [0.0] * 3]} {[row[0], 0.0, 0.0, 0.0]}\n{[row]}\n", done.stderr
