"""Datasets of HDF5 files that h5py reads: written in part or never, in many chunks, over the bytes of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Child

import zerocopy
from zerocopy.cli import main
from zerocopy.loading.formats import hdf5_dataset

h5py = pytest.importorskip("h5py")
numpy = pytest.importorskip("numpy")


def loaded_as_by_h5py(path: Path, folder: Path) -> None:
    """Assert that loading, slicing and converting a file's dataset "x" give what h5py gives."""
    with h5py.File(path) as file:
        wanted = torch.from_numpy(file["x"][()].astype(file["x"].dtype.newbyteorder("=")))
    assert torch.equal(zerocopy.load(path)["x"], wanted)
    with zerocopy.open(path) as checkpoint:
        assert torch.equal(checkpoint.get_slice("x")[...], wanted)
    zerocopy.convert(path, folder / "new.safetensors")
    assert torch.equal(zerocopy.load(folder / "new.safetensors")["x"], wanted)


@pytest.mark.parametrize(
    ("dtype", "fill", "written"),
    [("u1", None, 0), (">i2", 1, 1), ("<f4", 1, 5), ("<c8", None, 5), ("?", 1, 0)],
)
def test_dataset_that_was_written_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, fill: int | None, written: int
) -> None:
    monkeypatch.setattr(hdf5_dataset, "_SPARSE", 2)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        data = file.create_dataset(
            "x", (11, 7, 5), dtype, chunks=(2, 3, 4), fillvalue=fill and numpy.ones((), dtype)[()]
        )
        for i in range(written):
            data[2 * i, i, :4] = numpy.arange(i, i + 4).astype(dtype)
        data[10, 6, 4:] = written > 3
    loaded_as_by_h5py(tmp_path / "f.h5", tmp_path)


@pytest.mark.parametrize("shape", [(300,), (20, 15), (1, 300), (300, 1), (4, 1, 80)])
@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}])
def test_more_chunks_than_one_read_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], options: Any
) -> None:
    monkeypatch.setattr(hdf5_dataset, "_MOST_CHUNKS", 32)
    values = numpy.arange(numpy.prod(shape), dtype="i4").reshape(shape)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=tuple(min(2, size) for size in shape), **options)
    loaded_as_by_h5py(tmp_path / "f.h5", tmp_path)
    assert main(["verify", str(tmp_path / "f.h5")]) == 0


def test_dataset_of_millions_of_chunks_that_was_never_written(tmp_path: Path, forked: Child) -> None:
    """libhdf5 takes some hundred bytes for each chunk, whether it is there or not."""
    path = tmp_path / "f.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (1 << 24,), "u1", chunks=(1,), fillvalue=7)
        file["y"] = 1.5
    code = """
        import resource, sys, zerocopy
        zerocopy.load(sys.argv[2])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        x = zerocopy.load(sys.argv[1])["x"]
        print(bool((x == 7).all()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    with h5py.File(tmp_path / "small.h5", "w") as file:
        file.create_dataset("x", (3,), "u1", chunks=(1,))
    done = forked(code, path, tmp_path / "small.h5")
    assert done.returncode == 0, done.stderr
    is_filled, kilobytes = done.stdout.split()
    assert is_filled == "True" and int(kilobytes) < 80_000


@pytest.mark.parametrize("written", [False, True])
def test_verify_reads_what_is_in_the_file_alone(tmp_path: Path, written: bool) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        data = file.create_dataset("x", (1 << 42,), "f4", chunks=(1 << 10,))
        if written:
            data[1 << 41] = 5
    assert main(["verify", str(tmp_path / "f.h5")]) == 0


def over_one_place(path: Path, count: int) -> None:
    """Write big-endian datasets that all lie over the same bytes."""
    size = 1 << 16
    with h5py.File(path, "w") as file:
        first = file.create_dataset("0", data=numpy.ones(size // 4, ">f4"))
        place = first.id.get_offset()
        for i in range(1, count):
            file.create_dataset(str(i), (size // 4,), ">f4")
    nowhere, length = b"\xff" * 8, size.to_bytes(8, "little")
    content = path.read_bytes()
    assert content.count(nowhere + length) == count - 1
    path.write_bytes(content.replace(nowhere + length, place.to_bytes(8, "little") + length))


@pytest.mark.parametrize("entry", [zerocopy.load, zerocopy.lazy_load, zerocopy.open])
def test_datasets_that_share_bytes_are_refused(tmp_path: Path, entry: Any) -> None:
    over_one_place(tmp_path / "f.h5", 20)
    with pytest.raises(zerocopy.FormatError, match="share bytes"):
        entry(tmp_path / "f.h5")


def test_dataset_in_another_file_is_refused_when_its_data_are_used(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:
        file["here"] = numpy.arange(3, dtype="f4")
        file.create_dataset("elsewhere", (4,), "f4", external=[(str(tmp_path / "other"), 0, 16)])
    (tmp_path / "other").write_bytes(bytes(16))
    with zerocopy.open(path) as checkpoint:
        assert checkpoint["here"].tolist() == [0, 1, 2]
        assert checkpoint.info("elsewhere").shape == (4,)
        with pytest.raises(
            zerocopy.UnsupportedError, match=r"m\.h5.*'elsewhere' has its data in other files"
        ):
            checkpoint["elsewhere"].sum()
    assert zerocopy.lazy_load(path)["here"].sum() == 3
    with pytest.raises(zerocopy.UnsupportedError, match=r"m\.h5.*'elsewhere' has its data in other files"):
        zerocopy.load(path)
