"""Archives that torch.save did not write as they are: zipped anew, unaligned, deflated, big-endian."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import assembler
import pytest
import strategies
import torch
from archives import big_endian, rezip
from attacks.zip_parts import ONES, offsets
from conftest import lies_in_mapping, saved_bytes
from equality import assert_same

import zerocopy

BOTH = pytest.mark.parametrize("weights_only", [True, False])

STATE: dict[str, Any] = {
    "double": torch.arange(5, dtype=torch.float64),
    "half": torch.arange(7, dtype=torch.float16),
    "bytes": torch.arange(9, dtype=torch.uint8),
    "complex": torch.full((3,), 1 - 2j, dtype=torch.complex128),
    "empty": torch.empty(0),
    "tied": [torch.ones(1000)] * 2,
}


def test_any_alignment(tmp_path: Path) -> None:
    """A record's name pushes the next record's data to any offset; torch's kernels want aligned pointers."""
    path = tmp_path / "a.pt"
    for shift in range(1, 17):
        with zipfile.ZipFile(io.BytesIO(saved_bytes(STATE))) as source, zipfile.ZipFile(path, "w") as target:
            target.writestr("archive/" + "x" * shift, b"")
            for name in source.namelist():
                target.writestr(name, source.read(name))
        loaded = zerocopy.load(path)
        assert_same(loaded, STATE)
        for tensor in (loaded["double"], loaded["half"], loaded["complex"], loaded["tied"][0]):
            assert tensor.data_ptr() % min(tensor.element_size(), 8) == 0


def test_big_endian_of_newer_dtypes() -> None:
    """Storages of bytes, which torch writes for newer dtypes: only the tensors over them tell what to swap."""
    tensors = [strategies.filled(dtype, 12, seed=i) for i, dtype in enumerate(strategies.DTYPES)]
    untyped = [tensor for tensor in tensors if _written_as_bytes(tensor)]
    if not untyped:
        pytest.skip("this release has none")
    content = big_endian(untyped)
    assert_same(zerocopy.load(content), untyped)
    assert_same(zerocopy.load(content, weights_only=False), untyped)
    # Where pickle reads it, a storage is met before the tensors over it.
    with pytest.raises(zerocopy.UnsupportedError, match="big-endian"):
        zerocopy.load(content, map_location=lambda storage, _: storage, weights_only=False)


def _written_as_bytes(tensor: torch.Tensor) -> bool:
    return b"_rebuild_tensor_v3" in saved_bytes(tensor)


@BOTH
def test_big_endian_ties_are_swapped_once(weights_only: bool) -> None:
    base = torch.arange(6.0)
    swapped = big_endian([base])
    with zipfile.ZipFile(io.BytesIO(swapped)) as archive:
        data = archive.read("archive/data/0")
    content = rezip(saved_bytes([base, base[2:], base.view(2, 3).t()]), byteorder=b"big", **{"data/0": data})
    assert_same(zerocopy.load(content, weights_only=weights_only), [base, base[2:], base.view(2, 3).t()])


def test_archive_of_any_root_name(tmp_path: Path) -> None:
    for name in ("model.v1.2.pt", "no_suffix", "näme.pt", "two words.pt", "line\nbreak.pt", "-.pt", " .pt"):
        torch.save(STATE, tmp_path / name)
        assert_same(zerocopy.load(tmp_path / name), STATE)


def test_records_that_nobody_asked_for(tmp_path: Path) -> None:
    content = rezip(saved_bytes(STATE), **{"extra/readme.txt": b"hello", "data/999": b"unused"})
    assert_same(zerocopy.load(content), STATE)


def test_a_storage_of_a_tebibyte(tmp_path: Path) -> None:
    """The file is a hole there, of which nothing is read. The storage's size takes more than 32 bits."""
    size = 2**40
    last = assembler.tensor(assembler.storage(numel=size // 4), size // 4 - 1, (1,))
    big = assembler.Entry("archive/data/0", b"", local={"flags": 8}, central={"flags": 8})
    big.central |= {"size": ONES, "stored_size": ONES, "extra": assembler.zip64(size, size)}
    records = [*assembler.entries(assembler.pickle(last), {}), big]
    begins = offsets(records)[-1]
    directory = len(assembler.archive(records)) - begins - 22
    ends = {"offset64": begins + size, "record_at": begins + size + directory}
    content = assembler.archive(records, offset=ONES, wide=ends)
    path = tmp_path / "a.pt"
    try:
        with path.open("wb") as file:
            file.write(content[:begins])
            file.seek(size, io.SEEK_CUR)
            file.write(content[begins:])
    except OSError as error:
        pytest.skip(f"this file system takes no file of a tebibyte: {error}")
    loaded = zerocopy.load(path, backend="mmap")
    assert loaded.tolist() == [0.0]
    assert lies_in_mapping(loaded.data_ptr(), path)


@pytest.mark.parametrize("text", ["5g", "5X", "5GB", "G", "-1", "9999999999T"])
def test_bound_of_inflated_bytes_that_is_no_size(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = rezip(saved_bytes(STATE), zipfile.ZIP_DEFLATED)
    monkeypatch.setenv("ZEROCOPY_MAX_INFLATED", "1M")
    assert_same(zerocopy.load(content), STATE)
    monkeypatch.setenv("ZEROCOPY_MAX_INFLATED", text)
    with pytest.raises(ValueError, match="ZEROCOPY_MAX_INFLATED must be a number of bytes"):
        zerocopy.load(content)
