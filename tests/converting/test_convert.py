"""``zerocopy.convert``: .pt as HDF5, whole or not at all, in little memory."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import deflated
from conftest import Child, Saver, stock_load
from equality import assert_same

import zerocopy

h5py = pytest.importorskip("h5py")

STATE = {f"layer.{i}": torch.full((1000 * i + 1,), float(i)) for i in range(30)}


@pytest.mark.parametrize("name", ["m.h5", "m.hdf5"])
@pytest.mark.parametrize("state", [STATE, {}, {"empty": torch.empty(0)}, {"half": torch.ones(3).half()}])
def test_equal(save: Saver, tmp_path: Path, name: str, state: Any) -> None:
    path = save(state)
    zerocopy.convert(path, tmp_path / name)
    assert_same(zerocopy.load(tmp_path / name), stock_load(path))
    assert all(storage.how == "mapped" for storage in zerocopy.explain(tmp_path / name).storages)


def test_deflated_records_are_inflated(save: Saver, tmp_path: Path) -> None:
    zerocopy.convert(deflated(save(STATE)), str(tmp_path / "m.h5"))
    assert_same(zerocopy.load(tmp_path / "m.h5"), STATE)
    assert {storage.how for storage in zerocopy.explain(tmp_path / "m.h5").storages} == {"mapped"}


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


def test_progress(save: Saver, tmp_path: Path) -> None:
    said: list[tuple[int, int]] = []
    zerocopy.convert(save(STATE), tmp_path / "m.h5", progress=lambda *numbers: said.append(numbers))
    assert said == sorted(said) and said[-1][0] == said[-1][1] >= sum(4 * t.numel() for t in STATE.values())


# ----------------------------------------------------------------------- whole or not at all


def test_convert_over_a_mapped_file_keeps_the_mapping(save: Saver, tmp_path: Path) -> None:
    target = tmp_path / "m.h5"
    zerocopy.convert(save({"w": torch.zeros(100_000)}, "old.pt"), target)
    target.chmod(0o640)
    old = zerocopy.load(target)
    zerocopy.convert(save({"w": torch.ones(3)}, "new.pt"), target)
    assert old["w"].sum() == 0 and zerocopy.load(target)["w"].sum() == 3
    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("fault", ["damaged", "interrupted", "absent"])
def test_failed_conversion_leaves_no_file(save: Saver, tmp_path: Path, fault: str) -> None:
    target, source = tmp_path / "m.h5", save(STATE)
    target.write_bytes(b"as it was")

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    if fault == "damaged":
        packed = deflated(source)
        content = bytearray(packed.read_bytes())
        content[content.index(b"data/29") + 40] ^= 0xFF
        source.write_bytes(content)
    elif fault == "absent":
        source.unlink()
    kinds = {"damaged": zerocopy.FormatError, "interrupted": KeyboardInterrupt, "absent": FileNotFoundError}
    before = set(tmp_path.iterdir())
    with pytest.raises(kinds[fault]):
        zerocopy.convert(source, target, progress=interrupt if fault == "interrupted" else None)
    assert target.read_bytes() == b"as it was" and set(tmp_path.iterdir()) == before


MEMORY = """
    import re, sys, zerocopy
    def peak():
        return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
    def anonymous():
        return int(re.search(r"Anonymous:\\s*(\\d+)", open("/proc/self/smaps_rollup").read())[1])
    zerocopy.convert(sys.argv[2], sys.argv[2] + ".h5")  # imports, caches
    before, most = anonymous(), 0
    def look(done, total):
        global most
        most = max(most, anonymous())
    start = peak()
    zerocopy.convert(sys.argv[1], sys.argv[1] + ".h5", progress=look)
    print(most - before, peak() - start)
"""


@pytest.mark.plain_memory("its allocator keeps what is freed, and its shadow counts as memory")
@pytest.mark.parametrize("packed", [False, True])
def test_memory_is_a_few_pieces(save: Saver, forked: Child, packed: bool) -> None:
    big = save({"w": torch.arange(1 << 23)}, "big.pt")  # 64 MiB in one storage
    big = deflated(big) if packed else big
    done = forked(MEMORY, big, save(STATE, "small.pt"))
    private, peak = map(int, done.stdout.split())
    assert private < 24 << 10 and peak < 40 << 10, f"{private} kB, at the peak {peak} kB"
