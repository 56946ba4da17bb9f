"""``zerocopy.patch(safetensors=True)``: the package's two ways in map, and else are what they were."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import pytest
import torch
from conftest import lies_in_mapping, outcome

import zerocopy

safetensors = pytest.importorskip("safetensors")
package = pytest.importorskip("safetensors.torch")

ORIGINALS = safetensors.safe_open, package.safe_open, package.load_file
STATE = {"b": torch.arange(12.0).view(3, 4), "a": torch.ones(2, dtype=torch.int64)}


@pytest.fixture(autouse=True)
def nothing_stays_patched() -> Iterator[None]:
    yield
    zerocopy.unpatch()
    assert (safetensors.safe_open, package.safe_open, package.load_file) == ORIGINALS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    package.save_file(STATE, path, {"format": "pt"})
    return path


def is_served(path: Path) -> bool:
    """Return whether zerocopy loads a file: its tensors lie in a window of the file, copied on write."""
    tensor = package.load_file(path)["b"]
    return zerocopy_serves(path) and torch.equal(tensor, STATE["b"])


def zerocopy_serves(path: Path) -> bool:
    with safetensors.safe_open(path, "pt") as file:
        return type(file).__module__.startswith("zerocopy")


def test_on_and_off(path: Path) -> None:
    zerocopy.patch()
    assert not is_served(path)
    zerocopy.patch(safetensors=True)
    assert is_served(path) and zerocopy.is_patched()
    with zerocopy.patched():
        assert is_served(path)
    zerocopy.unpatch()
    assert not is_served(path)
    with zerocopy.patched(safetensors=True):
        assert is_served(path)
    assert not is_served(path)


def test_load_file(path: Path) -> None:
    with zerocopy.patched(safetensors=True):
        for loaded in (package.load_file(path, "cpu"), package.load_file(filename=str(path), device="cpu")):
            assert list(loaded) == list(ORIGINALS[2](path))
            assert all(torch.equal(loaded[name], tensor) for name, tensor in STATE.items())
            assert lies_in_mapping(loaded["b"].data_ptr(), path)


@pytest.mark.skipif("backend" not in signature(package.load_file).parameters, reason="releases before 0.8")
def test_backends(path: Path) -> None:
    """The mapping is what zerocopy has for one; who asks for another gets it from the package."""
    with zerocopy.patched(safetensors=True):
        assert lies_in_mapping(package.load_file(path, backend="mmap")["b"].data_ptr(), path)
        assert not lies_in_mapping(package.load_file(path, backend="pread")["b"].data_ptr(), path)
        with safetensors.safe_open(path, "pt", backend="mmap") as file:
            assert type(file).__module__.startswith("zerocopy")
        model = torch.nn.Linear(3, 2)
        package.save_model(model, str(path))
        assert package.load_model(model, path) == (set(), [])


def test_slice_is_read_when_its_block_has_ended(path: Path) -> None:
    with zerocopy.patched(safetensors=True):
        with safetensors.safe_open(path, "pt") as file:
            part = file.get_slice("b")
        assert torch.equal(part[1:2], STATE["b"][1:2])
        with pytest.raises(safetensors.SafetensorError):
            file.get_tensor("b")


def test_open_file_is_not_copied(path: Path) -> None:
    with zerocopy.patched(safetensors=True):
        files = [open_file(path, "pt") for open_file in (ORIGINALS[0], safetensors.safe_open)]
    for file in files:
        with file, pytest.raises(TypeError):
            copy.copy(file)


def test_safe_open(path: Path) -> None:
    with ORIGINALS[0](path, "pt") as theirs, zerocopy.patched(safetensors=True):
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            assert file.keys() == theirs.keys()
            assert file.offset_keys() == theirs.offset_keys()
            assert file.metadata() == theirs.metadata()
            first, again = file.get_tensor("b"), file.get_tensor("b")
            assert torch.equal(first, STATE["b"]) and first is not again
            assert torch.equal(file.get_slice("b")[1:, ::2], STATE["b"][1:, ::2])
            assert file.get_slice("b").get_shape() == [3, 4]
            assert torch.equal(file.get_tensors()["a"], STATE["a"])
            assert list(file.get_tensors()) == list(getattr(theirs, "get_tensors", STATE.copy)())
            assert outcome(lambda: file.get_tensor("c")) == outcome(lambda: theirs.get_tensor("c"))
        with pytest.raises(safetensors.SafetensorError, match="closed"):
            file.get_tensor("b")
        assert torch.equal(first, STATE["b"])


def test_safe_open_is_still_a_class(path: Path) -> None:
    with ORIGINALS[0](path, "pt") as theirs, zerocopy.patched(safetensors=True):
        with safetensors.safe_open(path, "pt") as file:
            assert isinstance(file, safetensors.safe_open) and isinstance(file, ORIGINALS[0])
        assert isinstance(theirs, safetensors.safe_open) and not isinstance(path, safetensors.safe_open)
        assert isinstance(None, safetensors.safe_open | None)
        assert safetensors.safe_open.__name__ == ORIGINALS[0].__name__


OTHERS = {
    "another framework": lambda path: list(safetensors.safe_open(path, "numpy").keys()),
    "an unknown framework": lambda path: safetensors.safe_open(path, "x"),
    "no framework": lambda path: safetensors.safe_open(path),
    "a file that is not there": lambda path: package.load_file(path.with_name("x")),
    "the same, opened": lambda path: safetensors.safe_open(path.with_name("x"), "pt"),
    "no path": lambda path: package.load_file(7),
    "an open file": lambda path: package.load_file(path.open("rb")),
    "what is in the file": lambda path: package.load_file(path.read_bytes()),
    "too many arguments": lambda path: package.load_file(path, "cpu", 1, 2),
    "a device that is no text": lambda path: package.load_file(path, torch.device("cpu")),
    "a device that is not there": lambda path: package.load_file(path, "cuda:77"),
}


def test_unsupported_safetensors_call_goes_to_the_package(path: Path) -> None:
    for title, call in OTHERS.items():
        stock = outcome(lambda call=call: call(path))
        with zerocopy.patched(safetensors=True):
            assert outcome(lambda call=call: call(path)) == stock, title


def test_another_format_is_still_refused(tmp_path: Path) -> None:
    """Programs tell by that what a file is."""
    torch.save(STATE, tmp_path / "model.pt")
    package.save_file(STATE, tmp_path / "shard.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(STATE, "shard.safetensors")}))
    for path in (tmp_path / "model.pt", index, tmp_path):
        for way in (package.load_file, lambda path: safetensors.safe_open(path, "pt")):
            stock = outcome(lambda way=way, path=path: way(path))
            with zerocopy.patched(safetensors=True):
                assert outcome(lambda way=way, path=path: way(path)) == stock, path


def test_a_damaged_file(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    stock = outcome(lambda: package.load_file(path))
    with zerocopy.patched(safetensors=True), caplog.at_level(logging.DEBUG, "zerocopy"):
        assert outcome(lambda: package.load_file(path)) == stock
    assert "goes to safetensors" in caplog.text and path.name in caplog.text
