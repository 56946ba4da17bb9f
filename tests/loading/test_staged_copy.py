"""A staged copy gives the object of torch.load, on the device.

The device is simulated in ordinary memory. Tests that need a real one are in tests/gpu.
"""

from __future__ import annotations

import gc
import io
import json
import logging
import threading
import weakref
from pathlib import Path
from typing import Any

import page_cache
import pytest
import torch
from archives import big_endian
from conftest import TIED_STATE, Saver, lies_in_mapping, maps_of, stock_load
from containers import CONTAINERS
from equality import assert_same, storage_bytes, untyped
from example_states import large_state, state_of_all_sizes
from safetensors_files import bytes_of
from simulated_device import SimulatedDevice

import zerocopy
from zerocopy import _core
from zerocopy.loading.device import pinned_ring, staging

MIB = 1 << 20


def few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned_ring, "_MAX_SLOTS", 3)


# ------------------------------------------------------------------------------------ the same object


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_same_object(tmp_path: Path, simulated: type[SimulatedDevice], container: str) -> None:
    state, path = state_of_all_sizes() | TIED_STATE, tmp_path / "checkpoint.pt"
    path.write_bytes(CONTAINERS[container](state))
    for weights_only in (True, False):
        simulated.copies.clear()
        loaded = zerocopy.load(path, weights_only=weights_only)
        assert_same(loaded, state)
        assert not any(lies_in_mapping(tensor.data_ptr(), path) for tensor in loaded.values())
        assert len(simulated.copies) < len(state) / 10, "small tensors come together"
        assert loaded["tied"].data_ptr() == loaded["weight"].data_ptr() + 40


def test_kinds_of_tensors(save: Saver, simulated: type[SimulatedDevice]) -> None:
    complex_ = torch.arange(6.0).to(torch.complex64)
    state = {
        "flags": [complex_.conj(), torch._neg_view(complex_)],
        "strides": torch.arange(20.0).view(4, 5).t()[1:, ::2],
        "grad": torch.ones(3, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "sparse": torch.eye(3).to_sparse(),
        "scalar": torch.tensor(3),
        "empty": [torch.empty(0), torch.empty(2, 0, 3, dtype=torch.int8)],
        "half": torch.arange(5).bfloat16(),
    }
    path = save(state)
    assert_same(zerocopy.load(path), stock_load(path))
    assert len(simulated.allocations) == 1


def test_odd_places_are_set_right(tmp_path: Path, simulated: type[SimulatedDevice]) -> None:
    """In a .safetensors file tensors follow each other without a gap, so that few lie as a device wants them."""
    tensors = {f"{i:04}": torch.arange(i % 91, dtype=torch.int8) for i in range(3000)}
    tensors |= {f"x{i}": torch.arange(300_001 + i, dtype=torch.int16) for i in range(5)}
    entries, data = {}, io.BytesIO()
    for name, tensor in tensors.items():
        begin = data.tell()
        data.write(bytes_of(tensor))
        dtype = {torch.int8: "I8", torch.int16: "I16"}[tensor.dtype]
        entries[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, data.tell()]}
    header = json.dumps(entries).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + data.getvalue())
    loaded = zerocopy.load(path)
    assert_same(loaded, tensors)
    whole = {tensor.data_ptr() % 64 for tensor in loaded.values() if tensor.numel()}
    assert len(whole) == 1, "all begin at multiples of 64 from the allocation's beginning"
    assert len(simulated.allocations) == 1 and len(simulated.copies) < 60


def test_what_has_to_be_made_first(tmp_path: Path, simulated: type[SimulatedDevice]) -> None:
    swapped = tmp_path / "big.pt"
    tensors = [torch.arange(70_000, dtype=torch.float32), torch.arange(5, dtype=torch.int16)]
    swapped.write_bytes(big_endian(tensors))
    assert_same(zerocopy.load(swapped), tensors)
    assert len(simulated.copies) >= 2


@pytest.mark.parametrize(("backend", "shift"), [("auto", 1), ("mmap", 0), ("pread", 4096), ("direct", 1)])
def test_from_anywhere(
    save: Saver, tmp_path: Path, simulated: type[SimulatedDevice], backend: str, shift: int
) -> None:
    path, shifted = save(state_of_all_sizes()), tmp_path / "shifted.pt"
    shifted.write_bytes(bytes(shift) + path.read_bytes())
    with shifted.open("rb") as file:
        file.seek(shift)
        assert_same(zerocopy.load(file, backend=backend), stock_load(path))
    if backend == "mmap":
        assert_same(zerocopy.load(io.BytesIO(path.read_bytes())), stock_load(path))
    assert simulated.copies


def test_sharded(tmp_path: Path, simulated: type[SimulatedDevice]) -> None:
    shards = {"one.pt": {"a": torch.arange(5.0)}, "two.pt": {"b": torch.ones(2_000_000)}}
    for name, shard in shards.items():
        torch.save(shard, tmp_path / name)
    index = {"weight_map": {"a": "one.pt", "b": "two.pt"}}
    (tmp_path / "model.bin.index.json").write_text(json.dumps(index))
    assert_same(zerocopy.load(tmp_path), {"a": shards["one.pt"]["a"], "b": shards["two.pt"]["b"]})
    lazy = zerocopy.lazy_load(tmp_path, device="cpu")
    assert torch.equal(lazy["b"].materialize(), shards["two.pt"]["b"])
    assert len(simulated.allocations) == 3 and len(simulated.blocks) <= 4


@pytest.mark.parametrize("weights_only", [True, False])
def test_functions_choose_first(save: Saver, simulated: type[SimulatedDevice], weights_only: bool) -> None:
    path = save(TIED_STATE)
    kept = zerocopy.load(path, lambda storage, tag: storage, weights_only=weights_only)
    assert lies_in_mapping(kept["weight"].data_ptr(), path) and not simulated.copies
    left = zerocopy.load(path, lambda storage, tag: None, weights_only=weights_only)
    assert_same(left, TIED_STATE)
    assert not lies_in_mapping(left["weight"].data_ptr(), path) and simulated.copies


# ------------------------------------------------------------------------------------ memory


def test_storages_are_their_records(save: Saver, simulated: type[SimulatedDevice]) -> None:
    path = save(TIED_STATE)
    loaded = zerocopy.load(path)
    assert [untyped(loaded[name]).nbytes() for name in ("weight", "tied", "bias")] == [8000, 8000, 12]
    assert untyped(loaded["weight"])._cdata == untyped(loaded["tied"])._cdata
    saved = io.BytesIO()
    torch.save(loaded["bias"], saved)
    assert len(saved.getvalue()) < 4000, "what is saved is the record, not the allocation"
    with pytest.raises(RuntimeError, match="resiz"):
        untyped(loaded["bias"]).resize_(100)


def test_one_allocation_that_goes_with_its_last_tensor(save: Saver, simulated: type[SimulatedDevice]) -> None:
    loaded = zerocopy.load(save(large_state()))
    assert len(simulated.allocations) == 1
    assert simulated.allocations[0] < 20 * (377_003 * 4 + 4096)
    last = loaded.pop("layer.3")[5:9]
    del loaded
    gc.collect()
    assert last.tolist() == [8.0, 9.0, 10.0, 11.0]
    storage = untyped(last)
    del last
    assert storage.nbytes() == 377_003 * 4 and len(simulated.alive) == 1
    del storage
    assert not simulated.alive


def test_the_ring_is_small_and_used_again(
    save: Saver, simulated: type[SimulatedDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    few_slots(monkeypatch)
    path, simulated.delay = save(large_state()), 0.002
    for _ in range(3):  # a slot that is filled before it was copied away would be seen in the result
        assert_same(zerocopy.load(path), large_state())
    slots = {address - address % 4096 for address, _, _ in simulated.copies}
    assert len(slots) == 3 < len(simulated.copies) / 3
    assert sum(pinned_ring.BLOCKS) <= 128 * MIB
    taken = len(simulated.blocks)
    zerocopy.load(path)
    assert len(simulated.blocks) == taken


def test_small_loads_lock_little(save: Saver, simulated: type[SimulatedDevice]) -> None:
    zerocopy.load(save(TIED_STATE))
    [ring] = pinned_ring._rings.values()
    assert ring.nbytes <= 2 * MIB + 4096 and len(simulated.copies) == 1


def test_loads_of_several_threads(
    save: Saver, simulated: type[SimulatedDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    few_slots(monkeypatch)
    paths = [save(large_state(), "a.pt"), save(state_of_all_sizes(), "b.pt")]
    loaded: list[Any] = [None] * 6
    threads = [
        threading.Thread(target=lambda i=i: loaded.__setitem__(i, zerocopy.load(paths[i % 2])))
        for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, result in enumerate(loaded):
        assert_same(result, [large_state, state_of_all_sizes][i % 2]())
    assert len(pinned_ring._rings) == 1


# ------------------------------------------------------------------------------------ the page cache


def test_what_is_in_memory_is_read_there_and_the_rest_past_it(
    save: Saver, simulated: type[SimulatedDevice]
) -> None:
    path = save(large_state())
    pages = path.stat().st_size // page_cache.PAGE
    page_cache.drop(path)
    assert_same(zerocopy.load(path, weights_only=True), large_state())
    if len(page_cache.resident(path)) > pages / 2:
        pytest.skip("this file system refuses O_DIRECT")
    assert len(page_cache.resident(path)) < pages / 4
    path.read_bytes()
    assert_same(zerocopy.load(path), large_state())
    assert len(page_cache.resident(path)) > pages * 0.9


def test_nothing_is_read_ahead_on_a_network(
    save: Saver,
    simulated: type[SimulatedDevice],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(_core, "file_system_of_path", lambda path: ("NFS", True))
    path = save(large_state())
    with caplog.at_level(logging.INFO, "zerocopy"):
        assert_same(zerocopy.load(path, "cpu"), large_state())
    [line] = [record.getMessage() for record in caplog.records if record.name == "zerocopy"]
    assert "part by part as it is used, on a network" in line


# ------------------------------------------------------------------------------------ lazily


def test_placeholders_use_the_staged_copy(save: Saver, simulated: type[SimulatedDevice]) -> None:
    path = save(large_state() | TIED_STATE)
    lazy = zerocopy.lazy_load(path, device="cpu")
    assert not simulated.copies and not simulated.allocations
    weight = lazy["weight"].materialize()
    assert torch.equal(weight, TIED_STATE["weight"]) and len(simulated.allocations) == 1
    assert lazy["tied"].materialize().data_ptr() == weight.data_ptr() + 40, "ties are ties"
    assert len(simulated.allocations) == 1
    for i in range(20):
        assert torch.equal(lazy[f"layer.{i}"] + 0, large_state()[f"layer.{i}"])
    assert len(simulated.allocations) == 21 and len(simulated.blocks) <= 2
    assert isinstance(lazy["parameter"].materialize(), torch.nn.Parameter)


def test_placeholder_dtype_is_cast_on_the_device(save: Saver, simulated: type[SimulatedDevice]) -> None:
    path = save(large_state())
    lazy = zerocopy.lazy_load(path, device="cpu", dtype=torch.bfloat16)
    real = lazy["layer.7"].materialize()
    assert real.dtype is torch.bfloat16 and torch.equal(real, large_state()["layer.7"].bfloat16())
    assert simulated.allocations == [377_003 * 4], "what travels is as it is in the file"
    assert not [line for line in maps_of(path) if "r--p" in line]


# ------------------------------------------------------------------------------------ the ring


@pytest.mark.parametrize("is_pinned", [True, False])
def test_page_locked_memory_is_never_given_back(
    save: Saver, simulated: type[SimulatedDevice], monkeypatch: pytest.MonkeyPatch, is_pinned: bool
) -> None:
    """Its allocator would end the process where CUDA refuses: in a forked child, with a broken device."""
    path = save(TIED_STATE)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda block: is_pinned)
    zerocopy.load(path)
    [ring] = pinned_ring._rings.values()
    pages = weakref.ref(ring._blocks[0])
    pinned_ring._rings.clear()
    del ring
    gc.collect()
    assert (pages() is not None) == is_pinned


@pytest.mark.slow("imports fake tensors")
def test_a_dispatch_mode_leaves_nothing_behind(save: Saver, simulated: type[SimulatedDevice]) -> None:
    """Tensors are real under fake ones too, as on the CPU; what the ring keeps serves the next load."""
    fake_tensors = pytest.importorskip("torch._subclasses.fake_tensor")
    path = save(large_state())
    with fake_tensors.FakeTensorMode():
        under = zerocopy.load(path)
    assert_same(under, large_state())
    assert_same(zerocopy.load(path), large_state())


# ------------------------------------------------------------------------------------ what is in memory


def test_storages_in_memory(save: Saver, simulated: type[SimulatedDevice]) -> None:
    mapped = zerocopy.load(save(large_state()), lambda storage, tag: storage)
    storages = [untyped(tensor) for tensor in mapped.values()]
    storages += [untyped(torch.empty(0)), untyped(torch.arange(7))]
    moved = staging.move(storages, "cpu")
    assert [storage_bytes(storage) for storage in moved] == [storage_bytes(storage) for storage in storages]
    assert [storage.nbytes() for storage in moved] == [storage.nbytes() for storage in storages]
    assert len(simulated.allocations) == 1
    assert staging.move([], "cpu") == []


def test_a_part_keeps_the_whole(simulated: type[SimulatedDevice]) -> None:
    first, second = staging.move([untyped(torch.arange(7)), untyped(torch.arange(9))], "cpu")
    assert len(simulated.alive) == 1
    del first
    assert len(simulated.alive) == 1 and storage_bytes(second) == storage_bytes(untyped(torch.arange(9)))
    del second
    assert not simulated.alive
