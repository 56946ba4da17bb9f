"""The staged copy on a real GPU. `scripts/gpu-check` runs these; without a CUDA device they are skipped."""

from __future__ import annotations

import gc
import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TIED_STATE, Child, Saver, outcome, stock_load
from equality import assert_same, untyped
from example_states import large_state, state_of_all_sizes

import zerocopy
from zerocopy.loading.device import pinned_ring, staging

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

BOTH = pytest.mark.parametrize("weights_only", [True, False])


def on_cpu(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu() for name, tensor in state.items()}


def assert_equal(ours: Any, stock: Any) -> None:
    assert ours.keys() == stock.keys()
    for name, tensor in stock.items():
        mine = ours[name]
        assert (type(mine), mine.device, mine.dtype) == (type(tensor), tensor.device, tensor.dtype), name
        assert (mine.stride(), mine.requires_grad) == (tensor.stride(), tensor.requires_grad), name
        assert untyped(mine).nbytes() == untyped(tensor).nbytes() and torch.equal(mine, tensor), name


@BOTH
@pytest.mark.parametrize("backend", ["auto", "pread", "direct"])
@pytest.mark.parametrize("place", ["cuda", "cuda:0", torch.device("cuda"), {"cpu": "cuda:0"}], ids=str)
def test_as_torch_loads(save: Saver, place: Any, backend: str, weights_only: bool) -> None:
    path = save(state_of_all_sizes() | TIED_STATE)
    ours = zerocopy.load(path, place, backend=backend, weights_only=weights_only)
    assert_equal(ours, stock_load(path, map_location=place))
    assert ours["tied"].data_ptr() == ours["weight"].data_ptr() + 40


def test_saved_from_there_and_saved_again(save: Saver) -> None:
    state = {name: tensor.cuda() for name, tensor in state_of_all_sizes().items()}
    path = save(state)
    ours = zerocopy.load(path)
    assert_equal(ours, stock_load(path))
    one = io.BytesIO()
    torch.save(ours["small.9"], one)
    assert len(one.getvalue()) < 4000
    assert_same(zerocopy.load(path, "cpu"), on_cpu(state))


def test_operations_and_gradients(save: Saver) -> None:
    path = save(
        {"w": torch.nn.Parameter(torch.randn(64, 32)), "c": torch.randn(8).to(torch.complex64).conj()}
    )
    loaded = zerocopy.load(path, "cuda")
    (loaded["w"] @ torch.ones(32, 4, device="cuda")).sum().backward()
    assert loaded["w"].grad.shape == (64, 32) and loaded["w"].is_leaf
    assert torch.equal(loaded["c"].cpu(), stock_load(path)["c"])
    with torch.no_grad():
        loaded["w"].zero_()
    assert loaded["w"].sum() == 0 and loaded["c"].abs().sum() > 0


def test_many_times_through_a_small_ring(save: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned_ring, "_MAX_SLOTS", 3)
    path = save(large_state())
    before = None
    for _ in range(20):
        assert_same(on_cpu(zerocopy.load(path, "cuda")), large_state())
        gc.collect()
        before = before or torch.cuda.memory_allocated()
        assert torch.cuda.memory_allocated() == before
    assert sum(ring.nbytes for ring in pinned_ring._rings.values()) <= 128 << 20


def test_behind_work_that_is_under_way(save: Saver) -> None:
    """Memory that the allocator gives may still be read by kernels of the one who had it."""
    path = save({"w": torch.ones(1 << 24)})
    for _ in range(10):
        a = torch.full((1 << 24,), 2.0, device="cuda")
        for _ in range(20):
            a = a * 1.0
        total = a.sum()
        del a
        loaded = zerocopy.load(path, "cuda")
        assert total.item() == 2.0 * (1 << 24) and loaded["w"].sum().item() == 1 << 24


def test_lazily_with_a_cast(save: Saver) -> None:
    path = save(large_state() | {"half": torch.arange(9)})
    lazy = zerocopy.lazy_load(path, device="cuda", dtype=torch.bfloat16)
    real = lazy["layer.3"].materialize()
    assert real.is_cuda and torch.equal(real.cpu(), large_state()["layer.3"].bfloat16())
    assert lazy["half"].materialize().dtype is torch.int64


def test_safetensors_and_shards(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(large_state(), tmp_path / "m.safetensors")
    assert_same(on_cpu(zerocopy.load(tmp_path / "m.safetensors", "cuda")), large_state())
    index = {"weight_map": dict.fromkeys(large_state(), "m.safetensors")}
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps(index))
    assert_same(on_cpu(zerocopy.load(tmp_path, "cuda")), large_state())


def test_no_room(save: Saver) -> None:
    path = save({"w": torch.ones(1 << 24)})
    free = torch.cuda.mem_get_info()[0]
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    hog = torch.empty(torch.cuda.mem_get_info()[0] - (48 << 20), dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.cuda.OutOfMemoryError, match=f"^{1 << 26} bytes"):
        zerocopy.load(path, "cuda")
    del hog
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before and torch.cuda.mem_get_info()[0] >= free - (64 << 20)
    assert zerocopy.load(path, "cuda")["w"].sum() == 1 << 24


def test_a_device_that_is_not_there(save: Saver) -> None:
    path = save(large_state())
    place = f"cuda:{torch.cuda.device_count()}"
    stock = outcome(lambda: stock_load(path, map_location=place))
    assert stock[0] == "error" and outcome(lambda: zerocopy.load(path, place)) == stock


def test_storages_in_memory_and_threads(save: Saver) -> None:
    storages = [untyped(tensor) for tensor in large_state().values()]
    assert all(
        torch.equal(torch.tensor([], dtype=torch.float32, device="cuda").set_(moved).cpu(), tensor)
        for moved, tensor in zip(staging.move(storages, "cuda"), large_state().values(), strict=True)
    )
    path, loaded = save(large_state()), [None] * 4
    threads = [
        threading.Thread(target=lambda i=i: loaded.__setitem__(i, zerocopy.load(path, "cuda")))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for state in loaded:
        assert_same(on_cpu(state), large_state())


BROKEN = """
    import sys, torch, zerocopy
    from zerocopy.loading.device import devices
    class Broken(devices.Cuda):
        def stream(self):
            stream = super().stream()
            copy, count = stream.copy, [0]
            def failing(target, source):
                count[0] += 1
                if count[0] == 3:  # an index out of range on the device: the context is lost
                    torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")].cpu()
                copy(target, source)
            stream.copy = failing
            return stream
    devices.KINDS["cuda"] = Broken
    try:
        zerocopy.load(sys.argv[1], "cuda")
        print("loaded")
    except RuntimeError as error:
        print("CUDA error" in str(error))
"""


def test_an_error_of_the_device_in_the_middle(save: Saver, child: Child) -> None:
    done = child(BROKEN, save(large_state()), timeout=300)
    assert done.stdout.split() == ["True"] and done.returncode == 0, done.stderr
