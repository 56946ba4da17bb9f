"""The arguments of zerocopy.load other than the file and map_location."""

from __future__ import annotations

import inspect
import io
import os
import pickle
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import rezip
from conftest import Saver, lies_in_mapping, saved_bytes, stock_load
from equality import assert_same

import zerocopy

STATE = {"weight": torch.arange(2000.0)}


@pytest.fixture
def path(save: Saver) -> Path:
    return save(STATE)


def is_mapped(path: Path, **kwargs: Any) -> bool:
    loaded = zerocopy.load(path, **kwargs)
    assert_same(loaded, STATE)
    return lies_in_mapping(loaded["weight"].data_ptr(), path)


def test_order_and_kinds_are_those_of_torch_load() -> None:
    ours, stock = (list(inspect.signature(f).parameters.values()) for f in (zerocopy.load, torch.load))
    assert [p.name for p in ours[:3]] == [p.name for p in stock[:3]]
    assert [p.kind for p in ours[:3]] == [p.kind for p in stock[:3]]
    assert inspect.signature(zerocopy.load).parameters["weights_only"].default is True


def test_backends(path: Path) -> None:
    assert is_mapped(path)
    assert is_mapped(path, backend="auto")
    assert is_mapped(path, backend="mmap")
    assert is_mapped(path, mmap=True)
    assert is_mapped(path, mmap=True, backend="mmap")
    assert not is_mapped(path, backend="pread")
    assert not is_mapped(path, mmap=False)
    assert not is_mapped(path, mmap=False, backend="direct")


def test_wrong_values(path: Path) -> None:
    contradictions = (
        {"mmap": True, "backend": "pread"},
        {"mmap": True, "backend": "direct"},
        {"mmap": False, "backend": "mmap"},
    )
    for wrong in ({"backend": "tape"}, {"backend": ""}, {"mode": "w"}, {"mode": ""}, *contradictions):
        for weights_only in (True, False):
            with pytest.raises(ValueError):
                zerocopy.load(path, weights_only=weights_only, **wrong)


def test_backend_from_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROCOPY_BACKEND", "pread")
    assert not is_mapped(path)
    assert is_mapped(path, backend="mmap")  # the argument wins
    assert is_mapped(path, mmap=True)
    monkeypatch.setenv("ZEROCOPY_BACKEND", "mmap")
    assert is_mapped(path)
    assert not is_mapped(path, mmap=False)
    monkeypatch.setenv("ZEROCOPY_BACKEND", "")
    assert is_mapped(path)
    monkeypatch.setenv("ZEROCOPY_BACKEND", "tape")
    with pytest.raises(ValueError, match="ZEROCOPY_BACKEND"):
        zerocopy.load(path)


def test_pickle_module_needs_weights_only_false(path: Path) -> None:
    with pytest.raises(RuntimeError, match="pickle_module"):
        zerocopy.load(path, pickle_module=pickle)
    with pytest.raises(RuntimeError, match="pickle_module"):
        zerocopy.load(path, None, pickle, weights_only=True)
    assert_same(zerocopy.load(path, None, pickle, weights_only=False), STATE)


def test_pickle_module_of_the_users(path: Path) -> None:
    seen: list[str] = []

    class Recording(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            seen.append(f"{module}.{name}")
            return super().find_class(module, name)

    module = types.ModuleType("recording")
    module.Unpickler = Recording
    loaded = zerocopy.load(path, pickle_module=module, weights_only=False)
    assert_same(loaded, STATE)
    assert "torch._utils._rebuild_tensor_v2" in seen
    assert lies_in_mapping(loaded["weight"].data_ptr(), path)


def python_2_file() -> bytes:
    """Return a checkpoint in which ``"nom"`` and a byte beyond ASCII are strings of Python 2."""
    content = saved_bytes({"key": torch.ones(1), "nom": "XYZ"})
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        data = archive.read("archive/data.pkl")
    changed = data.replace(b"X\x03\x00\x00\x00nom", b"U\x03nom").replace(
        b"X\x03\x00\x00\x00XYZ", b"U\x03X\xe9Z"
    )
    assert len(changed) == len(data) - 6
    return rezip(content, **{"data.pkl": changed})


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("encoding", ["latin-1", "latin1", "bytes", "cp1252"])
def test_encoding_of_python_2_strings(encoding: str, weights_only: bool) -> None:
    content = python_2_file()
    loaded = zerocopy.load(content, weights_only=weights_only, encoding=encoding)
    assert_same(loaded, stock_load(io.BytesIO(content), encoding=encoding))


def test_wrong_encoding_is_told() -> None:
    with pytest.raises(ValueError, match="latin"):
        zerocopy.load(python_2_file())
    with pytest.raises(UnicodeDecodeError):
        zerocopy.load(python_2_file(), weights_only=False)


def test_unknown_arguments_are_named(save: Saver) -> None:
    with pytest.raises(TypeError, match="'nonsense'"):
        zerocopy.load(save(STATE), nonsense=1)


class _Runs:
    """An object whose pickle would call a function."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("is_zip", [True, False])
def test_weights_only_none_is_the_safe_default(is_zip: bool, tmp_path: Path, save: Saver) -> None:
    path = save({"object": _Runs(tmp_path / "ran")}, _use_new_zipfile_serialization=is_zip)
    for load in (zerocopy.load, zerocopy.lazy_load, zerocopy.open):
        with pytest.raises(pickle.UnpicklingError, match="weights_only refuses a global"):
            load(path, weights_only=None)
    assert not (tmp_path / "ran").exists()


def test_open_without_weights_only_names_what_it_does_not_run(tmp_path: Path, save: Saver) -> None:
    path = save({"object": _Runs(tmp_path / "ran")})
    with pytest.raises(
        zerocopy.UnsupportedError, match=r"never runs code.*mkdir.*unknown=\"stub\""
    ) as caught:
        zerocopy.open(path, weights_only=False)
    assert "weights_only=False" not in str(caught.value) and not (tmp_path / "ran").exists()
