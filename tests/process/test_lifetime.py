"""A mapping lives exactly as long as its tensors, whatever becomes of the file and the loader."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import Child, Saver, maps_of
from equality import untyped

import zerocopy

BOTH = pytest.mark.parametrize("weights_only", [True, False])
STATE = {f"layer.{i}": torch.full((3000,), float(i)) for i in range(20)}


@pytest.fixture
def path(save: Saver) -> Path:
    return save(STATE)


@BOTH
def test_unmapped_when_the_last_tensor_goes(path: Path, weights_only: bool) -> None:
    loaded = zerocopy.load(path, weights_only=weights_only)
    view = loaded["layer.7"][10:20].detach()
    del loaded
    gc.collect()
    assert len(maps_of(path)) == 1
    assert view.tolist() == [7.0] * 10
    storage = untyped(view)
    del view
    assert len(maps_of(path)) == 1
    del storage
    gc.collect()
    assert maps_of(path) == []


def test_safe_globals_of_one_thread_are_not_those_of_another(save: Saver) -> None:
    path = save(Path("x"))
    with zerocopy.safe_globals([type(Path("x"))]), ThreadPoolExecutor(1) as pool:
        assert zerocopy.load(path) == Path("x")
        assert pool.submit(zerocopy.load, path).exception() is not None


def test_fork_after_load(path: Path, forked_whole: Child) -> None:
    code = """
        import os, sys, zerocopy
        loaded = zerocopy.load(sys.argv[1])
        loaded["layer.2"].fill_(5)
        forked = os.fork()
        if forked == 0:
            fine = loaded["layer.2"][0].item() == 5 and loaded["layer.3"][0].item() == 3
            loaded["layer.3"].fill_(9)
            del loaded
            fine = fine and zerocopy.load(sys.argv[1])["layer.3"][0].item() == 3
            os._exit(0 if fine else 1)
        assert os.waitpid(forked, 0)[1] == 0
        assert loaded["layer.3"][0].item() == 3
        del loaded
        print("fine")
    """
    done = forked_whole(code, path)
    assert done.stdout.strip() == "fine", done.stderr
