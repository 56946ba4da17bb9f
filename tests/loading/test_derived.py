"""Loaded tensors can be copied, pickled, saved, resized and shared."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Child, Saver, lies_in_mapping, saved_bytes, stock_load
from equality import assert_same, untyped

import zerocopy

BOTH = pytest.mark.parametrize("weights_only", [True, False])
SIZE = 200_000
STATE = {
    "big": torch.arange(float(SIZE)),
    "small": torch.arange(4.0),
    "parameter": torch.nn.Parameter(torch.ones(2)),
}


@pytest.fixture
def path(save: Saver) -> Path:
    return save(STATE)


@pytest.fixture(params=[True, False], ids=["safe", "trusting"])
def loaded(path: Path, request: Any) -> Any:
    return zerocopy.load(path, weights_only=request.param)


def test_pickle(loaded: Any) -> None:
    assert_same(pickle.loads(pickle.dumps(loaded)), STATE)
    assert len(pickle.dumps(loaded["small"])) < 4096, "not the whole file"


def test_deepcopy(loaded: Any, path: Path) -> None:
    copied = copy.deepcopy({**loaded, "tied": loaded["small"][1:]})
    assert_same(copied, {**STATE, "tied": STATE["small"][1:]})
    assert not lies_in_mapping(copied["small"].data_ptr(), path)
    copied["small"].zero_()
    assert loaded["small"].tolist() == [0, 1, 2, 3]


def test_save_again(loaded: Any, path: Path) -> None:
    again = saved_bytes(loaded)
    assert_same(stock_load(io.BytesIO(again)), STATE)
    assert abs(len(again) - path.stat().st_size) < 8192
    assert len(saved_bytes(loaded["small"])) < 8192, "one record, not the whole file"
    legacy = saved_bytes(loaded["small"], _use_new_zipfile_serialization=False)
    assert len(legacy) < 4096 and torch.equal(stock_load(io.BytesIO(legacy)), STATE["small"])


def test_growing_is_refused_and_changes_no_data(loaded: Any) -> None:
    for name in ("big", "small"):
        storage = untyped(loaded[name])
        with pytest.raises(RuntimeError, match="resiz"):
            loaded[name].view(-1).resize_(SIZE * 10)
        with pytest.raises(RuntimeError, match="resiz"):
            storage.resize_(SIZE * 100)
        assert_same(loaded[name], STATE[name])


def test_shrinking_works(loaded: Any) -> None:
    assert loaded["big"].resize_(2, 2).tolist() == [[0, 1], [2, 3]]


def test_share_memory(loaded: Any, path: Path) -> None:
    tensor = loaded["small"].share_memory_()
    assert tensor.is_shared() and not lies_in_mapping(tensor.data_ptr(), path)
    assert_same(tensor, STATE["small"])
    assert lies_in_mapping(loaded["big"].data_ptr(), path)


def test_numpy(loaded: Any, path: Path) -> None:
    array = loaded["small"].numpy()
    assert array.ctypes.data == loaded["small"].data_ptr()
    array[2] = 9
    assert loaded["small"].tolist() == [0, 1, 9, 3]
    del loaded
    assert np.array_equal(array, [0, 1, 9, 3])
    assert torch.from_numpy(array).sum() == 13


def test_sent_to_a_worker_process(path: Path, forked: Child) -> None:
    code = """
        import sys, torch, torch.multiprocessing as mp, zerocopy
        def double(tensor, answers):
            answers.put((tensor * 2).sum().item())
        if __name__ == "__main__":
            context = mp.get_context("fork")
            answers = context.SimpleQueue()
            tensor = zerocopy.load(sys.argv[1])["small"]
            worker = context.Process(target=double, args=(tensor, answers))
            worker.start()
            print(answers.get())
            worker.join()
    """
    done = forked(code, path)
    assert done.stdout.strip() == "12.0", done.stderr
