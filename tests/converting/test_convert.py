"""``zerocopy.convert``: .pt as HDF5."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
from archives import deflated
from conftest import Saver
from equality import assert_same

import zerocopy

h5py = pytest.importorskip("h5py")

STATE = {f"layer.{i}": torch.full((1000 * i + 1,), float(i)) for i in range(30)}


def test_hdf5_holds_what_the_source_holds(save: Saver, tmp_path: Path) -> None:
    for name in ("m.h5", "m.hdf5"):
        for state in (STATE, {"empty": torch.empty(0)}, {"half": torch.ones(3).half()}):
            path = save(state)
            for source in (path, deflated(path)):
                zerocopy.convert(source, tmp_path / name)
                assert_same(zerocopy.load(tmp_path / name), state)
                assert all(storage.how == "mapped" for storage in zerocopy.explain(tmp_path / name).storages)


def test_converted_hdf5_has_page_aligned_storages_and_a_table(save: Saver, tmp_path: Path) -> None:
    """Bytes by h5py; storages on pages of their own; a table that says what h5py says."""
    path = save(STATE)
    zerocopy.convert(path, tmp_path / "m.h5")
    with h5py.File(tmp_path / "m.h5") as file, zipfile.ZipFile(path) as archive:
        table = {key: (offset, size) for key, offset, size in file["offsets_table"][...].tolist()}
        storages = file["archive/data"]
        assert len(table) == len(storages) == len(STATE)
        for key, data in storages.items():
            assert table[int(key)] == (data.id.get_offset(), data.shape[0])
            assert table[int(key)][0] % 4096 == 0
            (name,) = (name for name in archive.namelist() if name.endswith(f"/data/{key}"))
            assert data[...].tobytes() == archive.read(name)
    sizes = sum(tensor.numel() * 4 for tensor in STATE.values())
    assert (tmp_path / "m.h5").stat().st_size < sizes + (len(STATE) + 16) * 4096


@pytest.mark.slow("five thousand storages")
def test_very_many_small_storages_take_no_page_each(save: Saver, tmp_path: Path) -> None:
    state = {f"{i}": torch.tensor([i, -i]) for i in range(5000)}
    zerocopy.convert(save(state), tmp_path / "m.h5")
    assert_same(zerocopy.load(tmp_path / "m.h5"), state)
    explained = zerocopy.explain(tmp_path / "m.h5").storages
    assert {storage.how for storage in explained} == {"mapped"}
    assert all(storage.offset % 64 == 0 for storage in explained)
    assert (tmp_path / "m.h5").stat().st_size < 5000 * 1000


def test_classes_are_not_looked_at(save: Saver, tmp_path: Path) -> None:
    path = save(torch.nn.Linear(2, 3))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"torch.nn.modules.linear", b"turch.nn.modules.linear"))
    zerocopy.convert(path, tmp_path / "m.h5")
    with pytest.raises(ModuleNotFoundError, match="turch"):
        zerocopy.load(tmp_path / "m.h5", weights_only=False)
