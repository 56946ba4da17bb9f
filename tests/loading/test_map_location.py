"""map_location: every form that torch.load takes, with torch's own registry behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TIED_STATE as STATE
from conftest import Saver, lies_in_mapping, outcome, stock_load
from equality import assert_same, untyped

import zerocopy

BOTH = pytest.mark.parametrize("weights_only", [True, False])

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without CUDA")


@pytest.fixture
def path(save: Saver) -> Path:
    return save(STATE)


@pytest.fixture
def from_cuda(save: Saver, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkpoint as a machine with CUDA writes it."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        return save(STATE, "cuda.pt")


def same(storage: Any, tag: str) -> Any:
    return storage


ON_THE_CPU = ("cpu", b"cpu", torch.device("cpu"), {"cuda:0": "cpu"}, same)


@BOTH
def test_places_on_the_cpu_are_mapped(path: Path, weights_only: bool) -> None:
    for place in (None, *ON_THE_CPU, {}, {"cpu": "cpu"}):
        loaded = zerocopy.load(path, place, weights_only=weights_only)
        assert_same(loaded, STATE)
        assert lies_in_mapping(loaded["weight"].data_ptr(), path)


@BOTH
@NO_CUDA
def test_cuda_file_brought_to_the_cpu(from_cuda: Path, weights_only: bool) -> None:
    for place in ON_THE_CPU:
        loaded = zerocopy.load(from_cuda, map_location=place, weights_only=weights_only)
        assert_same(loaded, STATE)
        assert lies_in_mapping(loaded["weight"].data_ptr(), from_cuda)


@BOTH
@NO_CUDA
@pytest.mark.parametrize(
    "place", [None, {"cpu": "cpu"}, lambda storage, tag: None], ids=["None", "dict", "callable"]
)
def test_cuda_file_without_cuda_fails_as_stock(from_cuda: Path, place: Any, weights_only: bool) -> None:
    stock = outcome(lambda: stock_load(from_cuda, map_location=place))
    assert stock[0] == "error" and "CUDA" in stock[2]
    assert outcome(lambda: zerocopy.load(from_cuda, place, weights_only=weights_only)) == stock


@BOTH
@NO_CUDA
def test_a_place_that_is_not_there_fails_as_stock(path: Path, weights_only: bool) -> None:
    for place in ("cuda", "cuda:3", torch.device("cuda", 0), {"cpu": "cuda:0"}, "nonsense"):
        stock = outcome(lambda p=place: stock_load(path, map_location=p))
        assert stock[0] == "error"
        ours = outcome(lambda p=place: zerocopy.load(path, map_location=p, weights_only=weights_only))
        assert ours == stock


@BOTH
@pytest.mark.parametrize("place", [0, 1.5, object()], ids=["int", "float", "object"])
def test_wrong_types_fail_as_stock(path: Path, place: Any, weights_only: bool) -> None:
    stock = outcome(lambda: stock_load(path, map_location=place))
    assert stock[1] is TypeError
    assert outcome(lambda: zerocopy.load(path, map_location=place, weights_only=weights_only)) == stock


@BOTH
def test_callable_is_asked_once_per_storage(path: Path, weights_only: bool) -> None:
    asked: dict[str, list[Any]] = {"ours": [], "stock": []}

    def ask(who: str) -> Any:
        def place(storage: Any, tag: str) -> Any:
            asked[who].append((type(storage), storage.device, storage.nbytes(), type(tag), tag))
            return storage

        return place

    zerocopy.load(path, ask("ours"), weights_only=weights_only)
    stock_load(path, map_location=ask("stock"))
    assert asked["ours"] == asked["stock"]
    assert [nbytes for _, _, nbytes, _, _ in asked["ours"]] == [8000, 12, 8]


@BOTH
def test_callable_that_returns_none_leaves_it_to_torch(path: Path, weights_only: bool) -> None:
    loaded = zerocopy.load(path, lambda storage, tag: None, weights_only=weights_only)
    assert_same(loaded, STATE)
    assert lies_in_mapping(loaded["weight"].data_ptr(), path)


@BOTH
def test_callable_that_returns_a_clone(path: Path, weights_only: bool) -> None:
    loaded = zerocopy.load(path, lambda storage, tag: storage.clone(), weights_only=weights_only)
    assert_same(loaded, STATE)
    assert not lies_in_mapping(loaded["weight"].data_ptr(), path)
    assert untyped(loaded["weight"])._cdata == untyped(loaded["tied"])._cdata


@BOTH
def test_flags_survive_a_clone(save: Saver, weights_only: bool) -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    for view in (tensor.conj(), torch._neg_view(tensor), tensor.clone().requires_grad_()):
        path = save([view])
        loaded = zerocopy.load(path, lambda storage, tag: storage.clone(), weights_only=weights_only)
        assert_same(loaded, stock_load(path))


@BOTH
def test_callable_that_raises(path: Path, weights_only: bool) -> None:
    def place(storage: Any, tag: str) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        zerocopy.load(path, place, weights_only=weights_only)


@BOTH
@pytest.mark.parametrize(
    "place",
    ["meta", torch.device("meta"), lambda s, tag: torch.UntypedStorage(s.nbytes(), device="meta")],
    ids=["str", "device", "callable"],
)
def test_meta(path: Path, place: Any, weights_only: bool) -> None:
    stock = outcome(lambda: stock_load(path, map_location=place))
    ours = outcome(lambda: zerocopy.load(path, place, weights_only=weights_only))
    if stock[0] == "error":
        assert ours == stock
        return
    assert_same(ours[1], stock[1])
    assert ours[1]["weight"].is_meta and ours[1]["parameter"].is_meta


# ------------------------------------------------------------------------------ torch.serialization.register_package


@pytest.mark.parametrize("priority", [5, 50], ids=["before-cpu", "after-all"])
@BOTH
def test_registered_package_takes_its_own(
    save: Saver, path: Path, monkeypatch: pytest.MonkeyPatch, priority: int, weights_only: bool
) -> None:
    restored: list[tuple[int, str]] = []

    def restore(storage: Any, location: str) -> Any:
        if not location.startswith("shelf"):
            return None
        restored.append((storage.nbytes(), location))
        return storage.clone()

    monkeypatch.setattr(torch.serialization, "_package_registry", [*torch.serialization._package_registry])
    torch.serialization.register_package(priority, lambda storage: None, restore)
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "shelf:1")
        shelved = save(STATE, "shelved.pt")
    loaded = zerocopy.load(shelved, weights_only=weights_only)
    assert_same(loaded, STATE)
    assert not lies_in_mapping(loaded["weight"].data_ptr(), shelved)
    assert_same(zerocopy.load(path, "shelf:2", weights_only=weights_only), STATE)
    assert restored == [(size, f"shelf:{shelf}") for shelf in (1, 2) for size in (8000, 12, 8)]


@BOTH
def test_package_that_is_asked_before_the_cpu(
    path: Path, monkeypatch: pytest.MonkeyPatch, weights_only: bool
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(torch.serialization, "_package_registry", [*torch.serialization._package_registry])
    torch.serialization.register_package(1, lambda storage: None, lambda storage, tag: asked.append(tag))
    assert_same(zerocopy.load(path, weights_only=weights_only), STATE)
    assert_same(zerocopy.load(path, "cpu", weights_only=weights_only), STATE)
    assert asked == ["cpu"] * 6
