"""``zerocopy.skip_data`` and ``zerocopy.storage_offsets``: files whose bytes come later."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import safetensors_files
import torch
from conftest import Saver, mappings, saved_bytes, stock_load
from equality import assert_same, storage_bytes, untyped

import zerocopy

BASE = torch.arange(2000.0)
STATE = {"weight": BASE, "view": BASE[10:20], "bias": torch.ones(3), "empty": torch.empty(0), "step": 7}
HAS_SKIP = hasattr(torch.serialization, "skip_data")


def fill(path: Path, state: dict[str, Any]) -> None:
    """Write the tensors' storages where the file has room for them."""
    offsets = zerocopy.storage_offsets(path)
    with zerocopy.open(path) as checkpoint, path.open("r+b") as file:
        for info in checkpoint.tensors():
            extent = offsets[info.storage]
            file.seek(extent.offset)
            assert file.write(storage_bytes(untyped(state[info.name]))) == extent.size


@pytest.mark.parametrize("alignment", [64, 4096])
def test_reserve_and_fill(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "model.pt"
    with zerocopy.skip_data():
        zerocopy.save(STATE, path, alignment=alignment)
    empty = stock_load(path)
    assert empty["step"] == 7 and not empty["weight"].any()
    fill(path, STATE)
    assert_same(stock_load(path), STATE)
    assert_same(zerocopy.load(path), STATE)


def test_room_is_no_data(tmp_path: Path) -> None:
    with zerocopy.skip_data():
        zerocopy.save({"w": torch.ones(1 << 24)}, tmp_path / "model.pt")
        with zerocopy.Writer(tmp_path / "early.pt") as writer:
            writer.save([writer.store_early(torch.ones(1 << 24)), torch.ones(3)])
    for path in tmp_path.iterdir():
        assert path.stat().st_size > 1 << 26 > path.stat().st_blocks * 512 << 8
    assert not stock_load(tmp_path / "early.pt")[1].any()


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("load", [zerocopy.load, zerocopy.lazy_load])
def test_load_makes_storages_that_have_no_data(save: Saver, load: Any, weights_only: bool) -> None:
    path = save(STATE)
    with zerocopy.skip_data():
        loaded = load(path, weights_only=weights_only)
        assert loaded["step"] == 7 and loaded["weight"].shape == (2000,)
        assert loaded["view"].data_ptr() == loaded["weight"].data_ptr() + 40
        loaded["weight"].zero_()
    assert_same(zerocopy.load(path), STATE)
    assert not any(str(path) in line for line in mappings())


def test_blocks_nest_and_end(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with pytest.raises(KeyError), zerocopy.skip_data():
        with zerocopy.skip_data():
            zerocopy.save(STATE, path)
            assert not stock_weight(path).any()
        zerocopy.save(STATE, path)
        assert not stock_weight(path).any()
        raise KeyError
    zerocopy.save(STATE, path)
    assert stock_weight(path).any()


def stock_weight(path: Path) -> torch.Tensor:
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data/0"))
        with path.open("rb") as file:
            file.seek(zerocopy.storage_offsets(path)["0"].offset)
            return torch.frombuffer(
                bytearray(file.read(archive.getinfo(name).file_size)), dtype=torch.float32
            )


@pytest.mark.skipif(not HAS_SKIP, reason="this release has none")
def test_torchs_own_block_is_heeded(tmp_path: Path) -> None:
    with torch.serialization.skip_data():
        zerocopy.save(STATE, tmp_path / "ours.pt")
    with zerocopy.skip_data():
        torch.save(STATE, tmp_path / "torchs.pt")
    for name in ("ours.pt", "torchs.pt"):
        fill(tmp_path / name, STATE)
        assert_same(stock_load(tmp_path / name), STATE)


@pytest.mark.slow("FakeTensorMode takes seconds to import")
def test_fake_tensors(tmp_path: Path) -> None:
    if not HAS_SKIP:
        with pytest.raises(zerocopy.UnsupportedError, match=r"2\.6"):
            zerocopy.skip_data(True).__enter__()
        return
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        state = {"weight": torch.empty(2000), "bias": torch.empty(3)}
    with zerocopy.skip_data(materialize_fake_tensors=True):
        zerocopy.save(state, tmp_path / "model.pt")
    fill(tmp_path / "model.pt", {name: STATE[name] for name in state})
    assert_same(stock_load(tmp_path / "model.pt"), {name: STATE[name] for name in state})


# ----------------------------------------------------------------------------- where the bytes are


@pytest.mark.parametrize("write", [torch.save, zerocopy.save])
def test_offsets(tmp_path: Path, write: Any) -> None:
    path = tmp_path / "model.pt"
    write(STATE, path)
    content, offsets = path.read_bytes(), zerocopy.storage_offsets(path)
    loaded = {"0": STATE["weight"], "1": STATE["bias"], "2": STATE["empty"]}
    assert {key: content[at : at + size] for key, (at, size) in offsets.items()} == {
        key: storage_bytes(untyped(tensor)) for key, tensor in loaded.items()
    }
    assert offsets["0"] == zerocopy.Extent(offsets["0"].offset, 8000)
    assert zerocopy.storage_offsets(io.BytesIO(content)) == zerocopy.storage_offsets(content) == offsets
    with zerocopy.open(path) as checkpoint:
        assert checkpoint.info("view").offset == offsets[checkpoint.info("view").storage].offset + 40


def test_offsets_of_other_formats(tmp_path: Path) -> None:
    legacy = tmp_path / "legacy.pt"
    torch.save({"w": BASE}, legacy, _use_new_zipfile_serialization=False)
    [(at, size)] = zerocopy.storage_offsets(legacy).values()
    assert legacy.read_bytes()[at : at + size] == storage_bytes(untyped(BASE))
    safe = tmp_path / "m.safetensors"
    header = {"w": safetensors_files.entry(shape=(2000,), offsets=(0, 8000))}
    safe.write_bytes(safetensors_files.file(header, storage_bytes(untyped(BASE))))
    [(at, size)] = zerocopy.storage_offsets(safe).values()
    assert safe.read_bytes()[at : at + size] == storage_bytes(untyped(BASE))
    zerocopy.convert(safe, tmp_path / "shards", max_shard_size="4KB")
    with pytest.raises(zerocopy.UnsupportedError, match=r"one of several: .*00001-of-00001"):
        zerocopy.storage_offsets(tmp_path / "shards")
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["w"] = BASE.numpy()
    [(at, size)] = zerocopy.storage_offsets(tmp_path / "m.h5").values()
    assert (tmp_path / "m.h5").read_bytes()[at : at + size] == storage_bytes(untyped(BASE))
    with h5py.File(tmp_path / "m.h5", "a") as file:
        file.create_dataset("chunked", data=BASE.numpy(), chunks=(100,))
    with pytest.raises(zerocopy.UnsupportedError, match=r"'chunked' do not have an offset .* is chunked"):
        zerocopy.storage_offsets(tmp_path / "m.h5")


def test_storage_offsets_of_deflated_files_raises(tmp_path: Path) -> None:
    packed = tmp_path / "packed.pt"
    with zipfile.ZipFile(io.BytesIO(saved_bytes(STATE))) as old, zipfile.ZipFile(packed, "w", 8) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    with pytest.raises(zerocopy.UnsupportedError, match="deflated"):
        zerocopy.storage_offsets(packed)
    with pytest.raises(FileNotFoundError):
        zerocopy.storage_offsets(tmp_path / "nothing.pt")
    (tmp_path / "bad.pt").write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(zerocopy.FormatError, match=r"bad\.pt"):
        zerocopy.storage_offsets(os.fsdecode(tmp_path / "bad.pt"))


def test_storage_offsets_of_a_torchscript_archive_are_refused(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "program.pt")
    with pytest.raises(zerocopy.UnsupportedError, match="TorchScript"):
        zerocopy.storage_offsets(tmp_path / "program.pt")
