"""``zerocopy.patch(jit=True)``: ``torch.jit.load`` maps, and else is what it was."""

from __future__ import annotations

import inspect
import io
import logging
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import rezip
from conftest import goes_to_stock, lies_in_mapping, outcome
from equality import assert_same
from script_modules import X

import zerocopy

ORIGINAL = torch.jit.load
PLAIN = torch.load

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def nothing_stays_patched() -> Iterator[None]:
    yield
    zerocopy.unpatch()
    assert torch.jit.load is ORIGINAL and torch.load is PLAIN


def test_functions_are_pickled_by_their_names() -> None:
    with zerocopy.patched(jit=True):
        for function in (torch.jit.load, torch.jit.save, torch.load, torch.save):
            assert pickle.loads(pickle.dumps(function)) is function


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    path = tmp_path / "linear.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(3, 2)), str(path), _extra_files={"a": "text"})
    return path


def is_served(path: Path) -> bool:
    module = torch.jit.load(str(path))
    return lies_in_mapping(module.weight.data_ptr(), path)


def test_on_and_off(linear: Path) -> None:
    zerocopy.patch()
    assert torch.jit.load is ORIGINAL and not is_served(linear)
    zerocopy.patch(jit=True)
    assert torch.jit.load is not ORIGINAL and is_served(linear)
    with zerocopy.patched():
        assert is_served(linear)
    zerocopy.unpatch()
    assert torch.jit.load is ORIGINAL and not is_served(linear)


def test_signature_name_and_documentation() -> None:
    with zerocopy.patched(jit=True):
        assert inspect.signature(torch.jit.load) == inspect.signature(ORIGINAL)
        assert torch.jit.load.__name__ == "load" and torch.jit.load.__doc__ == ORIGINAL.__doc__


def test_through_torch_load(linear: Path) -> None:
    """torch.load passes such an archive on to torch.jit.load."""
    with zerocopy.patched(jit=True), pytest.warns(UserWarning, match="TorchScript archive"):
        module = torch.load(linear, weights_only=False)
    assert lies_in_mapping(module.weight.data_ptr(), linear)


def test_file_left_to_torch_jit_is_not_taken_again(linear: Path) -> None:
    linear.write_bytes(rezip(linear.read_bytes(), byteorder=b"big"))
    with zerocopy.patched(jit=True):
        assert_same(zerocopy.jit.load(linear)(X), ORIGINAL(str(linear))(X))
        assert_same(torch.jit.load(str(linear))(X), ORIGINAL(str(linear))(X))


# ------------------------------------------------------------------------------ as the original


def calls(path: Path) -> dict[str, Callable[[Any], Any]]:
    data = path.read_bytes()
    without = rezip(data, **{"constants.pkl": None})
    return {
        "a path": lambda load: load(str(path)),
        "a Path": lambda load: load(path),
        "a file": lambda load: load(path.open("rb")),
        "a BytesIO": lambda load: load(io.BytesIO(data)),
        "a device": lambda load: load(str(path), map_location="cpu"),
        "by names": lambda load: load(f=str(path), map_location=None, _extra_files={}),
        "no such file": lambda load: load(f"{path}.none"),
        "a folder": lambda load: load(str(path.parent)),
        "no file": lambda load: load(5),
        "None": lambda load: load(None),
        "nothing": lambda load: load(),
        "too much": lambda load: load(str(path), None, {}, False, 5),
        "an unknown name": lambda load: load(str(path), mode="r"),
        "a wrong location": lambda load: load(str(path), {}),
        "no such device": lambda load: load(str(path), "nonsense"),
        "wrong extra files": lambda load: load(str(path), None, []),
        "wrong names of extra files": lambda load: load(str(path), None, {1: ""}),
        "empty": lambda load: load(io.BytesIO()),
        "text": lambda load: load(io.BytesIO(b"hello" * 100)),
        "cut": lambda load: load(io.BytesIO(data[:-100])),
        "without constants": lambda load: load(io.BytesIO(without)),
        "a checkpoint": lambda load: load(io.BytesIO(rezip(data, **{"constants.pkl": None}))),
        "a newer version": lambda load: load(io.BytesIO(rezip(data, version=b"99"))),
        "bytes": lambda load: load(memoryview(data)),
    }


def said(call: Callable[[Any], Any], load: Any) -> tuple[Any, ...]:
    """Return what comes of a call: a module's output, or the error's type and first line."""
    answer = outcome(lambda: call(load))
    if answer[0] == "value":
        return "value", answer[1](X).tolist()
    return "error", answer[1], answer[2].partition("\n")[0]


def test_answers_are_the_originals(linear: Path) -> None:
    for name, call in calls(linear).items():
        with zerocopy.patched(jit=True):
            ours = said(call, torch.jit.load)
        assert ours == said(call, ORIGINAL), name


def test_call_left_to_torch_jit_is_logged(linear: Path, caplog: pytest.LogCaptureFixture) -> None:
    linear.write_bytes(rezip(linear.read_bytes(), byteorder=b"big"))
    with zerocopy.patched(jit=True), caplog.at_level(logging.DEBUG, "zerocopy"):
        torch.jit.load(str(linear))
    (record,) = goes_to_stock(caplog)
    assert record.levelno == logging.DEBUG
    assert record.getMessage() == f"{linear} goes to torch.jit.load: a big-endian TorchScript archive"


def test_warnings(linear: Path) -> None:
    """The warning of a release at each load: TorchScript is deprecated."""

    def warned(load: Any) -> list[tuple[Any, ...]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            load(str(linear))
        return [(w.category, str(w.message), w.filename, w.lineno) for w in caught]

    stock = warned(ORIGINAL)
    with zerocopy.patched(jit=True):
        assert warned(torch.jit.load) == stock
        assert warned(torch.jit.load) == stock
