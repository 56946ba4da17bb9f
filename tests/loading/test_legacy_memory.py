"""Where the storages of a file of before PyTorch 1.6 lie, who owns them, and what is asked about each."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Saver, lies_in_mapping, outcome, saved_bytes, stock_load
from equality import assert_same, storage_bytes, untyped
from legacy_files import SYS_INFO, checkpoint, data, storage, tensor

import zerocopy

BOTH = pytest.mark.parametrize("weights_only", [True, False])
LEGACY = {"_use_new_zipfile_serialization": False}
STATE = {"weight": torch.arange(2000.0), "bytes": torch.arange(5, dtype=torch.uint8), "empty": torch.empty(0)}
NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without CUDA")


@pytest.fixture
def path(save: Saver) -> Path:
    return save(STATE, **LEGACY)


def shifted(shift: int, **parts: Any) -> bytes:
    """Return a file whose first storage lies at an offset that leaves `shift` when divided by 64."""
    before = len(checkpoint(sys_info=SYS_INFO | {"pad": ""}, **(parts | {"storages": []}))) + 8
    return checkpoint(sys_info=SYS_INFO | {"pad": "x" * ((shift - before) % 64)}, **parts)


# --------------------------------------------------------------------------------------- mapped or not


@BOTH
@pytest.mark.parametrize("shift", [0, 1, 2, 3, 4])
def test_what_is_aligned_is_mapped(tmp_path: Path, shift: int, weights_only: bool) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(shifted(shift))
    loaded = zerocopy.load(path, weights_only=weights_only)
    assert_same(loaded, stock_load(path))
    mapped = shift % 4 == 0
    assert lies_in_mapping(loaded["weight"].data_ptr(), path) == mapped
    (explained,) = zerocopy.explain(path).storages
    assert (explained.key, explained.dtype, explained.nbytes, explained.location) == (
        "0",
        "float32",
        64,
        "cpu",
    )
    assert explained.how == ("mapped" if mapped else "copied") and ("aligned" in explained.why) != mapped
    assert path.read_bytes()[explained.offset :][:64] == data()[8:]


# --------------------------------------------------------------------------------------- shared storages


@BOTH
def test_empty_storage_of_several_types(weights_only: bool) -> None:
    """An empty storage has no address, so torch does not see that tensors of two types share it."""
    empty = torch.empty(0)
    saved = [empty, empty.view(torch.int32), torch.ones(2)]
    content = saved_bytes(saved, **LEGACY)
    found = zerocopy.load(content, weights_only=weights_only)
    stock = stock_load(io.BytesIO(content))  # on 1.13 both have the type of the first
    assert_same(found, stock if found[1].dtype == stock[1].dtype else saved)


WHOLE, PART, AGAIN, END = (
    storage(),
    storage(view=("1", 4, 8)),
    storage(view=("1", 4, 8)),
    storage(view=("2", 16, 0)),
)
VIEWS = {
    "part": tensor(PART, size=(8,)),
    "whole": tensor(WHOLE),
    "again": tensor(AGAIN, 2, (3, 2), (1, 3)),
    "end": tensor(END, size=(0,)),
    "storage": PART,
    "all": tensor(storage(view=("3", 0, 16))),
}


@BOTH
@pytest.mark.parametrize("shift", [0, 3])
@pytest.mark.parametrize("order", [list(VIEWS), list(reversed(VIEWS))], ids=["part-first", "whole-first"])
def test_views_of_storages(tmp_path: Path, shift: int, order: list[str], weights_only: bool) -> None:
    """Before 0.4 a storage could be a part of another; the sixth item of the persistent id says which."""
    path = tmp_path / "a.pt"
    path.write_bytes(shifted(shift, obj={name: VIEWS[name] for name in order}))
    loaded = zerocopy.load(path, weights_only=weights_only)
    assert_same(loaded, stock_load(path))
    assert untyped(loaded["part"]).nbytes() == 32
    loaded["part"][0] = -1
    assert loaded["whole"][4] == -1 and loaded["all"][4] == -1 and loaded["storage"][0] == -1


# ------------------------------------------------------------------------------------------ map_location


@BOTH
@NO_CUDA
def test_from_cuda(weights_only: bool) -> None:
    """Equal to stock, in what cannot be done as well."""
    content = checkpoint({"weight": tensor(storage(location="cuda:0"))})
    functions = (lambda made, tag: made, lambda made, tag: None)
    for place in ("cpu", {"cuda:0": "cpu"}, *functions, None, {"cuda:1": "cpu"}, "cuda", "nonsense", 5):
        stock = outcome(lambda p=place: stock_load(io.BytesIO(content), map_location=p))
        ours = outcome(lambda p=place: zerocopy.load(content, p, weights_only=weights_only))
        if stock[0] == "value":
            assert_same(ours[1], stock[1])
        else:
            assert ours == stock


@BOTH
@pytest.mark.parametrize("value", [0, 7])
def test_storage_of_a_callable_holds_what_the_file_has(path: Path, value: int, weights_only: bool) -> None:
    """torch reads into the storage that the function returns, whichever that is: page-locked, or from a pool."""

    def pool(made: Any, tag: str) -> Any:
        return type(made)(made.nbytes() if isinstance(made, torch.UntypedStorage) else made.size()).fill_(
            value
        )

    loaded = zerocopy.load(path, pool, weights_only=weights_only)
    assert_same(loaded, stock_load(path, map_location=pool))


@BOTH
def test_callable_is_asked_once_a_storage(weights_only: bool) -> None:
    """torch asks before it has read the data. Here they are there, so that a function may look at them or move them."""
    asked: list[Any] = []

    def place(made: Any, tag: str) -> Any:
        asked.append((type(made), tag, storage_bytes(made)))
        return made.clone()

    other = storage("9", kind="ByteStorage", numel=3)
    obj = [tensor(PART, size=(8,)), tensor(WHOLE), tensor(other, size=(3,)), tensor(other, size=(2,)), PART]
    content = checkpoint(obj, keys=("0", "9"), storages=[data(), data(b"abc", 3)])
    loaded = zerocopy.load(content, place, weights_only=weights_only)
    assert asked == [(torch.UntypedStorage, "cpu", data()[8:]), (torch.UntypedStorage, "cpu", b"abc")]
    assert_same(loaded, stock_load(io.BytesIO(content)))
