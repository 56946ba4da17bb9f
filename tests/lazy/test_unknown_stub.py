"""``unknown="stub"`` for ``open``, ``lazy_load`` and ``convert``: foreign classes become stubs, tensors are read."""

from __future__ import annotations

import argparse
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Saver

import zerocopy
from zerocopy import cli


@pytest.fixture
def path(save: Saver) -> Path:
    args = argparse.Namespace(rate=0.5, start=torch.ones(3))
    return save({"model": {"weight": torch.arange(4.0)}, "args": args, "step": 7})


def test_open_with_stubs_has_tensors_and_stubs(path: Path) -> None:
    with zerocopy.open(path, unknown="stub") as checkpoint:
        assert list(checkpoint) == ["model.weight", "args.start"]
        assert torch.equal(checkpoint["model.weight"] + 0, torch.arange(4.0))
        stub = checkpoint.metadata()["args"]
        assert isinstance(stub, zerocopy.Stub) and stub.state["rate"] == 0.5
        assert isinstance(stub.state["start"], zerocopy.NotYetLoadedTensor)
        assert torch.equal(stub.state["start"] + 0, torch.ones(3))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("zip", [True, False])
def test_a_module_among_the_values(save: Saver, tmp_path: Path, zip: bool) -> None:
    """Legacy files also contain the source of the class, which is not read."""
    net = torch.nn.Linear(3, 2)
    state = {"net": torch.nn.Sequential(net), "weight": torch.arange(4.0), "again": net.weight}
    path = save(state, _use_new_zipfile_serialization=zip)
    loaded = zerocopy.load(path, unknown="stub")
    for lazy in (zerocopy.lazy_load(path, unknown="stub"), dict(zerocopy.open(path, unknown="stub"))):
        assert torch.equal(lazy["weight"] + 0, torch.arange(4.0))
        assert torch.equal(lazy["again"] + 0, loaded["again"])
    assert repr(zerocopy.lazy_load(path, unknown="stub")["net"]) == repr(loaded["net"])
    zerocopy.convert(path, tmp_path / "out.safetensors", unknown="stub")
    assert sorted(zerocopy.load(tmp_path / "out.safetensors")) == ["again", "net.0.bias", "weight"]
    assert sum(extent.size for extent in zerocopy.storage_offsets(path).values()) == 6 * 4 + 2 * 4 + 4 * 4
    assert len(zerocopy.explain(path).storages) == 3
    for refused in (zerocopy.load, zerocopy.lazy_load, zerocopy.open):
        with pytest.raises(pickle.UnpicklingError):
            refused(path)
    for command in (["ls"], ["map"], ["verify"], ["report", "-o", str(tmp_path / "page.html")]):
        assert cli.main([*command, str(path)]) == 0
    assert cli.main(["show", str(path), "net.0.bias"]) == 0 and cli.main(["scan", str(path)]) == 1


@pytest.mark.parametrize("call", [zerocopy.open, zerocopy.lazy_load])
def test_unknown_refuses_by_default_and_wrong_values(call: Any, path: Path) -> None:
    with pytest.raises(Exception, match=r"argparse\.Namespace"):
        call(path)
    with pytest.raises(ValueError, match="unknown must be"):
        call(path, unknown="ignore")
    with pytest.raises(ValueError, match="weights_only"):
        call(path, unknown="stub", weights_only=False)


class Foreign:
    """A class on no allow-list."""


def made_of(source: Path, target: Path, **options: Any) -> Any:
    """Convert to a target with ``unknown="stub"``, and load that without trust."""
    zerocopy.convert(source, target, unknown="stub", **options)
    return zerocopy.load(target)


UNKNOWN = {
    "class": ({"held": Foreign}, "held"),
    "set": ({"held": {Foreign(), 2}}, "held"),
    "key": ({Foreign(): 2}, "Foreign"),
    "key of a tensor": ({Foreign(): torch.ones(2)}, "Foreign"),
    "key of a dict": ({"inner": {Foreign(): {"a": torch.ones(2), "b": {}}}}, "inner.<stub"),
    "key in a list": ({"list": [{"a": 1, Foreign(): 2}]}, "list.0.<stub"),
}


@pytest.mark.parametrize(("name", "options"), [("a.pt", {}), ("a.h5", {"dtype": torch.float16})])
def test_convert_with_stubs_leaves_out_what_holds_an_unknown_object(
    name: str, options: dict[str, Any], save: Saver, tmp_path: Path, caplog: Any
) -> None:
    for kind, (state, told) in UNKNOWN.items():
        caplog.clear()
        made = made_of(save({"weight": torch.ones(1), **state}), tmp_path / name, **options)
        assert torch.equal(made.pop("weight"), torch.ones(1))
        assert made == {"key in a list": {"list": [{"a": 1}]}, "key of a dict": {"inner": {}}}.get(kind, {})
        assert [record.levelname for record in caplog.records] == ["WARNING"] and told in caplog.text


@pytest.mark.parametrize("options", [{}, {"dtype": torch.float16}])
def test_convert_with_stubs_leaves_out_unknown_attributes(
    options: dict[str, Any], save: Saver, tmp_path: Path, caplog: Any
) -> None:
    state = OrderedDict(weight=torch.ones(1), trained=torch.nn.Parameter(torch.ones(2)))
    for holder in (state, *state.values()):
        holder.note, holder.foreign = "hi", {"a": Foreign()}  # type: ignore[union-attr]
    made = made_of(save(state), tmp_path / "a.pt", **options)
    kept = torch.load(save(state), weights_only=False)
    for before, after in zip((kept, *kept.values()), (made, *made.values()), strict=True):
        assert vars(after) == {key: value for key, value in vars(before).items() if key == "note"}
    assert "attribute 'foreign'" in caplog.text
