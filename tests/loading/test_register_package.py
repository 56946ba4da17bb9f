"""Devices that users register with ``torch.serialization.register_package``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TIED_STATE as STATE
from conftest import Saver, lies_in_mapping
from equality import assert_same

import zerocopy

BOTH = pytest.mark.parametrize("weights_only", [True, False])


@pytest.fixture
def path(save: Saver) -> Path:
    return save(STATE)


class Shelf:
    """A user's device, registered with ``torch.serialization.register_package``."""

    def __init__(self) -> None:
        self.restored: list[tuple[int, str]] = []

    def restore(self, storage: Any, location: str) -> Any:
        if not location.startswith("shelf"):
            return None
        self.restored.append((storage.nbytes(), location))
        return storage.clone()


@pytest.fixture(params=[5, 50], ids=["before-cpu", "after-all"])
def shelf(request: Any) -> Iterator[Shelf]:
    shelf = Shelf()
    before = list(torch.serialization._package_registry)
    torch.serialization.register_package(request.param, lambda storage: None, shelf.restore)
    yield shelf
    torch.serialization._package_registry[:] = before


@BOTH
def test_registered_package_takes_its_own(
    save: Saver, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, weights_only: bool
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "shelf:1")
        path = save(STATE)
    loaded = zerocopy.load(path, weights_only=weights_only)
    assert_same(loaded, STATE)
    assert shelf.restored == [(8000, "shelf:1"), (12, "shelf:1"), (8, "shelf:1")]
    assert not lies_in_mapping(loaded["weight"].data_ptr(), path)


@BOTH
def test_map_location_to_a_registered_package(path: Path, shelf: Shelf, weights_only: bool) -> None:
    assert_same(zerocopy.load(path, "shelf:2", weights_only=weights_only), STATE)
    assert [location for _, location in shelf.restored] == ["shelf:2"] * 3


@BOTH
def test_package_that_is_asked_before_the_cpu(path: Path, weights_only: bool) -> None:
    asked: list[str] = []
    before = list(torch.serialization._package_registry)
    torch.serialization.register_package(1, lambda storage: None, lambda storage, tag: asked.append(tag))
    try:
        assert_same(zerocopy.load(path, weights_only=weights_only), STATE)
        assert_same(zerocopy.load(path, "cpu", weights_only=weights_only), STATE)
    finally:
        torch.serialization._package_registry[:] = before
    assert asked == ["cpu"] * 6
