"""``zerocopy.gds`` with a GPU; which of its ways is taken is the machine's affair, and the results are the same."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import stock_load
from equality import untyped

import zerocopy
from zerocopy.gds import cufile

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

BLOCK = 4096


@pytest.fixture(params=["as it is", "without cuFile"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways, also where cuFile is there."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*without GPUDirect Storage")
        if request.param == "as it is":
            yield request.param
        else:
            monkeypatch.setattr(cufile, "refusal", lambda: "the test says so")
            yield request.param


def state() -> dict[str, Any]:
    base = torch.arange(3_000_001, dtype=torch.float32, device="cuda")
    return {
        "weight": base,
        "tied": base,
        "view": base[7:100],
        "cpu": torch.arange(70_000.0),
        "half": torch.randn(777, 33, device="cuda").half(),
        "bytes": torch.arange(5, dtype=torch.uint8, device="cuda"),
        "large": torch.randint(1 << 30, (5_000, 4_000), device="cuda"),
        "empty": torch.empty(0, device="cuda"),
        "step": 7,
    }


def require_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[name].cpu(), value.cpu()) and found[name].dtype == value.dtype, name
        else:
            assert found[name] == value


def test_saved_and_loaded(tmp_path: Path) -> None:
    expected, path = state(), tmp_path / "model.pt"
    zerocopy.gds.save(expected, path)
    require_equal(stock_load(path, map_location="cpu"), expected)
    for device in ("cuda", "auto", 0, torch.device("cuda", 0)):
        found = zerocopy.gds.load(path, device)
        require_equal(found, expected)
        assert all(value.device.type == "cuda" for value in found.values() if isinstance(value, torch.Tensor))
        assert found["weight"].data_ptr() == found["tied"].data_ptr() == found["view"].data_ptr() - 28
    require_equal(zerocopy.gds.load(path, "cpu"), expected)


def test_save_waits_for_running_kernels(tmp_path: Path) -> None:
    made = torch.zeros(20_000_000, device="cuda")
    for _ in range(50):
        made += 1
    zerocopy.gds.save({"made": made}, tmp_path / "model.pt")
    assert stock_load(tmp_path / "model.pt", map_location="cpu")["made"].eq(50).all()


def test_other_files(tmp_path: Path) -> None:
    plain = {name: value.clone() for name, value in state().items() if name not in ("step", "tied", "view")}
    path = tmp_path / "stock.pt"  # 64-byte alignment
    torch.save(plain, path)
    require_equal(zerocopy.gds.load(path), plain)
    torch.save(plain, path, _use_new_zipfile_serialization=False)
    require_equal(zerocopy.gds.load(path), plain)
    zerocopy.save({name: value.cpu() for name, value in plain.items()}, path)
    for name, options in (("model.safetensors", {}), ("shards", {"max_shard_size": "50MB"})):
        zerocopy.convert(path, tmp_path / name, **options)
        found = zerocopy.gds.load(tmp_path / name)
        require_equal({name: found[name] for name in plain}, plain)


def test_files(tmp_path: Path) -> None:
    data = torch.arange(10 * BLOCK + 5, device="cuda").remainder(251).to(torch.uint8)
    storage = untyped(data)
    with zerocopy.gds.GdsFile(tmp_path / "bytes", os.O_RDWR | os.O_CREAT) as file:
        for offset in (0, 100, 3 * BLOCK):
            file.save_storage(storage, offset)
            found = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cuda")
            file.load_storage(untyped(found), offset)
            assert torch.equal(found, data)
        with pytest.raises(zerocopy.FormatError, match="file ends before byte"):
            file.load_storage(storage, 4 * BLOCK)


def test_available_agrees_with_the_transfer(tmp_path: Path, way: str) -> None:
    found = zerocopy.gds.available(tmp_path)
    assert found.reason and found.ok == (found.mode == "direct")
    assert found.mode == "posix" or way == "as it is"
    storage = torch.UntypedStorage(1 << 20, device="cuda")
    if found.mode == "posix":
        return
    zerocopy.gds.save({"w": torch.ones(1 << 20, device="cuda")}, tmp_path / "w.pt", require=found.mode)
    assert zerocopy.gds.load(tmp_path / "w.pt", require=found.mode)["w"].eq(1).all()
    if found.ok:
        zerocopy.gds.register_buffer(storage)
        zerocopy.gds.deregister_buffer(storage)


def test_no_room_on_the_device(tmp_path: Path) -> None:
    """Nothing stays allocated, and the message says how much was wanted."""
    free, _ = torch.cuda.mem_get_info()
    path = safetensors_of_size(tmp_path / "sparse.safetensors", free + (1 << 33))
    before = torch.cuda.memory_allocated()
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"bytes( \(.* GiB\))? are needed on cuda:0"):
        zerocopy.gds.load(path)
    assert torch.cuda.memory_allocated() == before


def safetensors_of_size(path: Path, size: int) -> Path:
    """Make a file of one tensor, which is a hole on the disk."""
    header = f'{{"w":{{"dtype":"U8","shape":[{size}],"data_offsets":[0,{size}]}}}}'.encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + size)
    return path


def test_devices(tmp_path: Path) -> None:
    zerocopy.gds.save({"w": torch.ones(5)}, tmp_path / "model.pt")
    with pytest.raises(zerocopy.UnsupportedError, match="CUDA devices"):
        zerocopy.gds.load(tmp_path / "model.pt", f"cuda:{torch.cuda.device_count()}")
    last = torch.device("cuda", torch.cuda.device_count() - 1)
    assert zerocopy.gds.load(tmp_path / "model.pt", last)["w"].device == last
