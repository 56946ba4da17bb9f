"""zerocopy.Unpickler: the pickle.Unpickler whose tensors lie in the checkpoint's mapping."""

from __future__ import annotations

import gc
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import rezip
from conftest import Saver, lies_in_mapping, maps_of, saved_bytes
from equality import assert_same

import zerocopy

TIED = torch.arange(2000.0)
STATE = {"weight": TIED, "tied": TIED[5:], "ints": torch.arange(6).view(2, 3).t()}


@pytest.fixture
def path(save: Saver) -> Path:
    return save(STATE)


def pickle_of(path: Path) -> io.BytesIO:
    with zipfile.ZipFile(path) as archive:
        return io.BytesIO(
            archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))
        )


def test_tensors_lie_in_one_mapping(path: Path) -> None:
    assert issubclass(zerocopy.Unpickler, pickle.Unpickler)
    loaded = zerocopy.Unpickler(pickle_of(path), path).load()
    assert_same(loaded, STATE)
    assert len(maps_of(path)) == 1
    for tensor in loaded.values():
        assert lies_in_mapping(tensor.data_ptr(), path)
    del tensor, loaded
    assert maps_of(path) == []


@pytest.mark.parametrize("kind", ["str", "Path", "file", "BytesIO", "bytes"])
def test_archives_of_all_kinds(path: Path, kind: str) -> None:
    with path.open("rb") as file:
        sources = {"str": str(path), "Path": path, "file": file}
        content = {"BytesIO": io.BytesIO(path.read_bytes()), "bytes": path.read_bytes()}
        assert_same(zerocopy.Unpickler(pickle_of(path), {**sources, **content}[kind]).load(), STATE)


def test_sparse_tensors_are_checked_and_not_kept(save: Saver) -> None:
    path = save({"sparse": torch.eye(3).to_sparse(), "code": Failing()})
    of_thread = getattr(torch._utils, "_get_sparse_tensors_to_validate", None)  # 2.15 and later
    noted = of_thread() if of_thread else torch._utils._sparse_tensors_to_validate
    for load in (
        lambda: zerocopy.Unpickler(pickle_of(path), path).load(),
        lambda: zerocopy.load(path, weights_only=False),
    ):
        assert torch.equal(load()["sparse"].to_dense(), torch.eye(3))
        Failing.fails = True
        with pytest.raises(ZeroDivisionError):
            load()
        Failing.fails = False
        assert not noted
    lazy = zerocopy.lazy_load(path, weights_only=False)["sparse"]
    assert torch.equal(lazy.to_dense(), torch.eye(3)) and not noted
    del lazy
    gc.collect()
    assert maps_of(path) == []


class Failing:
    """An object whose ``__setstate__`` raises on request."""

    fails = False

    def __init__(self) -> None:
        self.number = 1

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state, again=1 // (not self.fails))


def test_find_class_can_refuse(save: Saver) -> None:
    class OnlyTensors(zerocopy.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if module.partition(".")[0] in ("torch", "collections"):
                return super().find_class(module, name)
            raise pickle.UnpicklingError(f"not {module}.{name}")

    fine = save(STATE)
    assert_same(OnlyTensors(pickle_of(fine), fine).load(), STATE)
    strange = save({**STATE, "path": Path("x")})
    with pytest.raises(pickle.UnpicklingError, match=r"not pathlib"):
        OnlyTensors(pickle_of(strange), strange).load()


class Old:
    """A class that has moved since the file was written."""


class New:
    """Where it went."""


def test_find_class_can_replace(save: Saver) -> None:
    class Renaming(zerocopy.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            return New if name == "Old" else super().find_class(module, name)

    path = save([torch.ones(2), Old()])
    loaded = Renaming(pickle_of(path), path).load()
    assert torch.equal(loaded[0], torch.ones(2)) and type(loaded[1]) is New


def test_persistent_load_can_be_overridden(path: Path) -> None:
    class Counting(zerocopy.Unpickler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.seen: list[tuple[str, str, int]] = []

        def persistent_load(self, pid: Any) -> Any:
            self.seen.append((pid[2], pid[3], pid[4]))
            return super().persistent_load(pid)

    unpickler = Counting(pickle_of(path), path)
    assert_same(unpickler.load(), STATE)
    assert unpickler.seen == [("0", "cpu", 2000), ("0", "cpu", 2000), ("1", "cpu", 6)]


@pytest.mark.parametrize(
    "pid", ["storage", ("module", 1), (), 5, ("storage", torch.FloatStorage, "0")], ids=repr
)
def test_other_persistent_ids_are_refused(path: Path, pid: Any) -> None:
    class Writer(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return pid if obj == "here" else None

    file = io.BytesIO()
    Writer(file, 2).dump(["here"])
    with pytest.raises(pickle.UnpicklingError, match="persistent"):
        zerocopy.Unpickler(io.BytesIO(file.getvalue()), path).load()


def test_map_location(path: Path) -> None:
    cloned = zerocopy.Unpickler(pickle_of(path), path, map_location=lambda s, tag: s.clone()).load()
    assert_same(cloned, STATE)
    assert not lies_in_mapping(cloned["weight"].data_ptr(), path)


def test_encoding() -> None:
    content = saved_bytes({"nom": torch.ones(1)})
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        data = archive.read("archive/data.pkl").replace(b"X\x03\x00\x00\x00nom", b"U\x03n\xf6m")
    archive = rezip(content, **{"data.pkl": data})
    for encoding, key in (("latin-1", "n\u00f6m"), ("bytes", b"n\xf6m")):
        assert list(zerocopy.Unpickler(io.BytesIO(data), archive, encoding=encoding).load()) == [key]


def test_a_missing_record_is_a_format_error(path: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(tmp_path / "less.pt", "w") as target:
        for name in source.namelist():
            if not name.endswith("data/1"):
                target.writestr(name, source.read(name))
    with pytest.raises(zerocopy.FormatError, match="data/1"):
        zerocopy.Unpickler(pickle_of(path), tmp_path / "less.pt").load()
