"""The tar archives of before PyTorch 0.1.10: with weights_only=False they load as ever, otherwise not at all."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import tar_files as tar
from assembler import ordered_dict
from conftest import outcome, stock_load
from equality import assert_same, storages_of
from tar_files import reference, storage, tensor

import zerocopy

pytestmark = pytest.mark.slow("files that torch wrote before 0.1.10")

CLEAN = (zerocopy.FormatError, zerocopy.UnsupportedError, pickle.UnpicklingError)


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


def test_map_location_as_a_function(path: Path) -> None:
    asked: list[Any] = []

    def place(made: Any, tag: str) -> Any:
        asked.append((type(made).__name__, made.nbytes(), tag))
        return made

    two = tar.storages(storage(), storage(3, location="cuda:7"), views=((4, 3, 0, 2),))
    load(tar.checkpoint(storages=two), path, map_location=place)
    assert asked == [("UntypedStorage", 64, "cpu"), ("UntypedStorage", 64, "cuda:7")] * 4


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
