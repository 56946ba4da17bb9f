"""A mapping lives exactly as long as its tensors, whatever becomes of the file and the loader."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Child, Saver, lies_in_mapping, maps_of, saved_bytes
from equality import assert_same, untyped

import zerocopy

BOTH = pytest.mark.parametrize("weights_only", [True, False])
STATE = {f"layer.{i}": torch.full((3000,), float(i)) for i in range(20)}


@pytest.fixture
def path(save: Saver) -> Path:
    return save(STATE)


@BOTH
def test_one_mapping_and_no_descriptor(path: Path, weights_only: bool) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    loaded = zerocopy.load(path, weights_only=weights_only)
    assert len(maps_of(path)) == 1
    assert all(lies_in_mapping(tensor.data_ptr(), path) for tensor in loaded.values())
    assert len({untyped(tensor)._cdata for tensor in loaded.values()}) == len(STATE), "one storage a record"
    assert set(Path("/proc/self/fd").iterdir()) == before


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


@BOTH
def test_nothing_stays_mapped_after_a_failed_load(path: Path, weights_only: bool) -> None:
    def place(storage: Any, tag: str) -> Any:
        raise RuntimeError("no place")

    with pytest.raises(RuntimeError, match="no place"):
        zerocopy.load(path, place, weights_only=weights_only)
    gc.collect()
    assert maps_of(path) == []


def test_outlives_unlink(path: Path) -> None:
    loaded = zerocopy.load(path)
    path.unlink()
    gc.collect()
    assert_same(loaded, STATE)
    loaded["layer.3"].add_(1)
    assert loaded["layer.3"][0] == 4


def test_outlives_its_file_object(path: Path) -> None:
    with path.open("rb") as file:
        loaded = zerocopy.load(file)
    assert_same(loaded, STATE)


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


class TestBufferOwners:
    """A storage over a buffer holds it, and lets it go with the last tensor."""

    class Bytes(bytearray):
        """A bytearray that can be watched."""

    def test_released_with_the_last_tensor(self) -> None:
        buffer = self.Bytes(64)
        watch = weakref.ref(buffer)
        tensor = torch.empty(0, dtype=torch.int32).set_(zerocopy.untyped_storage(buffer), 0, (16,), (1,))
        view = tensor[3:5].view(2, 1)
        del buffer, tensor
        gc.collect()
        assert watch() is not None and view.tolist() == [[0], [0]]
        del view
        assert watch() is None

    @pytest.mark.parametrize("mode", ["r", "r+"])
    def test_load_over_a_buffer(self, mode: str) -> None:
        buffer = self.Bytes(
            saved_bytes({"a": torch.ones(4, dtype=torch.uint8), "b": torch.zeros(2, dtype=torch.int8)})
        )
        watch = weakref.ref(buffer)
        loaded = zerocopy.load(buffer, mode=mode)
        del buffer
        kept = loaded["b"]
        del loaded
        gc.collect()
        assert watch() is not None and kept.tolist() == [0, 0]
        del kept
        gc.collect()
        assert watch() is None
