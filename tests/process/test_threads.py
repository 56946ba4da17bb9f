"""Threads that load at once, good files and bad ones: each gets what it would get alone."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Saver, maps_of, saved_bytes
from equality import assert_same

import zerocopy

THREADS, LOADS = 8, 60
# More than 100 records: then a thread reads the local headers.
STATE = {f"layer.{i}": torch.full((30,), float(i)) for i in range(120)}

Load = Callable[[], Any]


def ways(path: Path) -> list[Load]:
    content = path.read_bytes()
    return [
        lambda: zerocopy.load(path),
        lambda: zerocopy.load(path, backend="pread"),
        lambda: zerocopy.load(path, weights_only=False),
        lambda: zerocopy.load(content),
        lambda: zerocopy.load(io.BytesIO(content)),
        lambda: zerocopy.load(bytearray(content), mode="r"),
    ]


@pytest.fixture(params=["zip", pytest.param("legacy", marks=pytest.mark.slow("repeats zip"))])
def path(request: Any, save: Saver) -> Path:
    return save(STATE, _use_new_zipfile_serialization=request.param == "zip")


def test_good_and_bad_files_at_once(path: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.pt"
    bad.write_bytes(path.read_bytes()[:-20])
    good_ways, bad_ways = ways(path), ways(bad)

    def work(i: int) -> None:
        if i % 3 == 0:
            with pytest.raises(zerocopy.FormatError):
                bad_ways[i % len(bad_ways)]()
        else:
            assert_same(good_ways[i % len(good_ways)](), STATE)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(LOADS)))
    gc.collect()
    assert maps_of(path) == maps_of(bad) == []


def test_tensors_that_go_on_other_threads(path: Path) -> None:
    """A storage of a mapping, and of a buffer whose owner needs the interpreter, are let go wherever."""
    held: list[Any] = []

    def work(i: int) -> None:
        held.append(zerocopy.load(path) if i % 2 else zerocopy.load(bytearray(saved_bytes(STATE)), mode="r"))
        if i % 4 == 3:
            held.pop(0)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(LOADS)))
        list(pool.map(lambda _: held.pop(), range(len(held))))
    gc.collect()
    assert maps_of(path) == []
