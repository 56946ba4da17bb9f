"""The tar archives of before PyTorch 0.1.10: with weights_only=False they load as ever, otherwise not at all."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import assembler
import pytest
import tar_files as tar
import torch
from assembler import name, ordered_dict
from conftest import outcome, stock_load
from equality import assert_same, storages_of
from tar_files import member, reference, storage, tensor

import zerocopy

pytestmark = pytest.mark.slow("files that torch wrote before 0.1.10")

CLEAN = (zerocopy.FormatError, zerocopy.UnsupportedError, pickle.UnpicklingError)
DTYPES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
}


def load(content: bytes, path: Path, **options: Any) -> Any:
    """Load from a path and from memory; check that both are what stock torch.load returns."""
    path.write_bytes(content)
    expected = stock_load(path, **options)
    loaded = zerocopy.load(path, weights_only=False, **options)
    assert_same(loaded, expected)
    assert_same(zerocopy.load(io.BytesIO(content), weights_only=False, **options), expected)
    assert_same(zerocopy.load(content, weights_only=False, **options), expected)
    return loaded


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.tar"


# ---------------------------------------------------------------------------------------------- valid


def test_one_tensor(path: Path) -> None:
    loaded = load(tar.checkpoint(), path)
    assert loaded["weight"].tolist() == list(range(16))


def test_tensors_that_share_storages(path: Path) -> None:
    tensors = (
        tensor(10, 1),
        tensor(11, 1, (3, 4), (1, 3), 2),
        tensor(12, 2, (4,), (1,), 1),  # over a view
        tensor(13, 1, (), ()),
        tensor(14, 1, (0, 3), (3, 1)),
        tensor(15, 1, (5,), (0,), 7),
    )
    content = tar.checkpoint(
        ordered_dict(*((f"layer.{i}", reference(i)) for i in (10, 11, 12, 13, 14, 15, 10))),
        storages=tar.storages(storage(), views=((2, 1, 4, 8), (3, 1, 16, 0))),
        tensors=tar.tensors(*tensors),
    )
    loaded = load(content, path)
    assert loaded["layer.12"].tolist() == [5, 6, 7, 8]
    assert len(storages_of(loaded["layer.10"])) == 1
    loaded["layer.10"][5] = -1
    assert loaded["layer.12"][0] == -1 and loaded["layer.11"][0, 1] == -1


@pytest.mark.parametrize("kind", DTYPES)
def test_dtypes(path: Path, kind: str) -> None:
    values = torch.arange(5).to(DTYPES[kind])
    entry = storage(kind=kind, data=values.numpy().tobytes(), count=5)
    over = tensor(size=(5,), kind=kind.replace("Storage", "Tensor"))
    loaded = load(tar.checkpoint(storages=tar.storages(entry), tensors=tar.tensors(over)), path)
    assert_same(loaded["weight"], values)


def test_storages_and_modules_of_the_object(path: Path) -> None:
    """An object may name a storage itself, and a module's class with its source file and its source."""
    module = assembler.persistent(name("torch.nn.modules.linear", "Linear"), None, None)
    load(tar.checkpoint([reference(1), reference(2), module, 2.5, "text"]), path)


def test_source_of_a_module_is_never_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch compares it with today's, warns, and may leave a patch file in the working directory."""
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr(torch.nn.Linear, "dump_patches", True)
    module = assembler.persistent(
        name("torch.nn.modules.linear", "Linear"), "linear.py", "class Linear: pass"
    )
    assert zerocopy.load(tar.checkpoint(module), weights_only=False) is torch.nn.Linear
    assert list(path.parent.iterdir()) == []


def test_nothing_at_all(path: Path) -> None:
    assert load(tar.checkpoint([], storages=tar.storages(), tensors=tar.tensors()), path) == []


@pytest.mark.parametrize("place", [None, "cpu", torch.device("cpu"), {"cuda:0": "cpu"}], ids=str)
def test_map_location(path: Path, place: Any) -> None:
    location = "cuda:0" if isinstance(place, dict) else "cpu"
    content = tar.checkpoint(storages=tar.storages(storage(location=location)))
    load(content, path, map_location=place)


def test_map_location_as_a_function(path: Path) -> None:
    asked: list[Any] = []

    def place(made: Any, tag: str) -> Any:
        asked.append((type(made).__name__, made.nbytes(), tag))
        return made

    two = tar.storages(storage(), storage(3, location="cuda:7"), views=((4, 3, 0, 2),))
    load(tar.checkpoint(storages=two), path, map_location=place)
    assert asked == [("UntypedStorage", 64, "cpu"), ("UntypedStorage", 64, "cuda:7")] * 4


def test_without_a_magic(path: Path) -> None:
    """The first tars have no word that says so; their checksum does."""
    load(tar.as_v7(tar.checkpoint()), path)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_formats(path: Path, form: int) -> None:
    members = [
        member("./README", b"x" * 700),
        member("pickle", assembler.pickle(reference(2))),
        member("tensors", tar.tensors(tensor())),
        member("storages", tar.storages(storage())),
    ]
    load(tar.archive(members, form), path)


def test_large_storage(path: Path) -> None:
    values = torch.arange(300_000.0)
    entry = storage(data=values.numpy().tobytes(), count=300_000)
    over = tensor(size=(300_000,))
    loaded = load(tar.checkpoint(storages=tar.storages(entry), tensors=tar.tensors(over)), path)
    loaded["weight"] += 1  # memory of its own
    assert_same(zerocopy.load(path, weights_only=False)["weight"], values)


# -------------------------------------------------------------------------------------------- refused


def test_weights_only_reads_no_tar(path: Path) -> None:
    path.write_bytes(tar.checkpoint())
    for source in (path, path.read_bytes(), io.BytesIO(path.read_bytes())):
        with pytest.raises(zerocopy.UnsupportedError, match="tar"):
            zerocopy.load(source)


def test_every_cut(path: Path) -> None:
    """The zeros that end a tar may be missing; what is before them may not."""
    content = tar.checkpoint()
    end = content.rindex(b"u.") + 2
    for at in {*range(0, end, 7), *range(end - 40, end), *range(0, end, 512)}:
        error = outcome(lambda at=at: zerocopy.load(content[:at], weights_only=False))
        assert error[0] == "error" and issubclass(error[1], CLEAN), (at, error)


def test_every_byte_of_the_headers(path: Path) -> None:
    """A header that does not add up is none."""
    content = tar.checkpoint()
    good = zerocopy.load(content, weights_only=False)
    for header in range(0, len(content), 512):
        if content[header + 257 : header + 262] != b"ustar":
            continue
        for at in range(header, header + 512, 3):
            turned = bytearray(content)
            turned[at] ^= 0x10
            found = outcome(lambda turned=turned: zerocopy.load(bytes(turned), weights_only=False))
            if found[0] == "value":
                assert_same(found[1], good)
            else:
                assert issubclass(found[1], CLEAN), (at, found)


def test_needs_a_file_that_can_seek(path: Path) -> None:
    """A tar's members are read in the order of the format, not in theirs."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb") as sink:
        sink.write(tar.checkpoint())
        sink.close()
        with pytest.raises(zerocopy.UnsupportedError):
            zerocopy.load(source, weights_only=False)


def test_numbers_are_little_endian(path: Path) -> None:
    entry = storage(kind="IntStorage", data=struct.pack("<2i", 1, -2), count=2)
    over = tensor(size=(2,), kind="IntTensor")
    content = tar.checkpoint(storages=tar.storages(entry), tensors=tar.tensors(over))
    assert zerocopy.load(content, weights_only=False)["weight"].tolist() == [1, -2]
