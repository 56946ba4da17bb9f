"""Editing checkpoints where they are: keys renamed and dropped, tensors written to, the file whole at every moment."""

from __future__ import annotations

import io
import itertools
import shutil
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Child, Saver, saved_bytes, stock_load
from equality import assert_same
from file_systems import fill

import zerocopy
from zerocopy.saving import edit, snapshot

BASE = torch.arange(2000.0)


def state() -> dict[str, Any]:
    linear = torch.nn.Linear(2, 3).state_dict()
    return {
        "first": torch.ones(3),
        "model": linear,
        "tied": {"weight": BASE, "view": BASE[10:20], "first": "first"},
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "step": 7,
    }


@pytest.mark.parametrize("write", [torch.save, zerocopy.save])
def test_rename(tmp_path: Path, write: Any) -> None:
    path, expected = tmp_path / "model.pt", state()
    write(expected, path)
    data = zerocopy.storage_offsets(path)
    zerocopy.rename_keys(
        path,
        {"first": "erste", "tied.weight": "tied.W", "model.bias": "model.b.i.a.s", "step": "\N{SNOWMAN}"},
    )
    renamed = {
        "erste": expected["first"],
        "model": OrderedDict(
            [("weight", expected["model"]["weight"]), ("b.i.a.s", expected["model"]["bias"])]
        ),
        "tied": {"W": BASE, "view": BASE[10:20], "first": "first"},
        "parameter": expected["parameter"],
        "\N{SNOWMAN}": 7,
    }
    renamed["model"]._metadata = expected["model"]._metadata
    for load in (stock_load, zerocopy.load, lambda path: torch.load(path, weights_only=True)):
        assert_same(load(path), renamed)
    assert zerocopy.storage_offsets(path) == data
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


@pytest.mark.parametrize("write", [torch.save, zerocopy.save])
def test_drop(tmp_path: Path, write: Any, forked: Child) -> None:
    path, expected = tmp_path / "model.pt", state()
    write(expected, path)
    data = zerocopy.storage_offsets(path)
    zerocopy.drop_keys(path, ["first", "model.weight", "tied.view", "parameter"])
    del expected["first"], expected["model"]["weight"], expected["tied"]["view"], expected["parameter"]
    assert_same(stock_load(path), expected)
    assert_same(zerocopy.load(path), expected)
    assert zerocopy.storage_offsets(path).items() <= data.items()
    code = "import sys, torch; torch.load(sys.argv[1], weights_only=False)"
    done = forked(
        code, path, TORCH_SERIALIZATION_DEBUG="1"
    )  # torch compares where it thinks that storages are
    assert done.returncode == 0, done.stderr
    zerocopy.drop_keys(path, ["model", "tied", "step"])
    assert stock_load(path) == zerocopy.load(path) == {}


def test_drop_in_any_order(save: Saver) -> None:
    """A branch and what is in it; an entry by both of its names; one name twice."""
    shared = {"x": torch.ones(2), "y": {"z": 1, "w": 2}}
    for names in itertools.permutations(["a", "a.y", "a.y.z", "b.y.z"]):
        path = save({"a": shared, "b": shared, "c": 3})
        zerocopy.drop_keys(path, [*names, names[0]])
        assert_same(stock_load(path), {"b": {"x": shared["x"]}, "c": 3})
        assert_same(zerocopy.load(path), stock_load(path))
    with pytest.raises(KeyError):
        zerocopy.drop_keys(path, ["a", "c"])


def test_renamed_all_at_once(save: Saver) -> None:
    shared = {"w": torch.ones(2)}
    path = save({"a": 1, "b": 2, "c": 3, "one": shared, "two": shared})
    zerocopy.rename_keys(path, {"a": "b", "b": "a", "c": "c", "one.w": "one.v", "two.w": "two.v"})
    loaded = stock_load(path)
    assert list(loaded) == ["b", "a", "c", "one", "two"] and (loaded["a"], loaded["b"]) == (2, 1)
    assert list(loaded["one"]) == ["v"] and loaded["one"] is loaded["two"]
    size = path.stat().st_size
    zerocopy.rename_keys(path, {"a": "a"})
    assert path.stat().st_size == size


@pytest.mark.slow("a small disk")
def test_a_disk_that_is_full(small_disk: Path) -> None:
    path = small_disk / "model.pt"
    zerocopy.save({f"entry {i}": i for i in range(9000)} | {"a": torch.ones(300_000)}, path)
    fill(small_disk / "rest")
    before = path.read_bytes()
    with pytest.raises(OSError, match="No space left") as caught:
        zerocopy.rename_keys(path, {"a": "b"})
    assert caught.value.filename == str(path) and path.read_bytes() == before
    (small_disk / "rest").unlink()
    zerocopy.rename_keys(path, {"a": "b"})
    assert zerocopy.load(path)["b"].sum() == 300_000


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda path: zerocopy.rename_keys(path, {"nothing": "x"}), KeyError),
        (lambda path: zerocopy.drop_keys(path, ["nothing"]), KeyError),
        (lambda path: zerocopy.drop_keys(path, "step"), TypeError),
        (lambda path: zerocopy.rename_keys(path, {"step": "first"}), ValueError),
        (lambda path: zerocopy.rename_keys(path, {"tied.weight": "weight"}), ValueError),
        (lambda path: zerocopy.rename_keys(path, {"tied.weight": "tied."}), ValueError),
        (lambda path: zerocopy.rename_keys(path, {"step": "s", "first": "s"}), ValueError),
        (lambda path: zerocopy.rename_keys(path, {"step": "s", "s": "t"}), KeyError),
        (lambda path: zerocopy.rename_keys(path, {"step": ""}), ValueError),
        (lambda path: zerocopy.rename_keys(path, {"step": 5}), TypeError),
        (lambda path: zerocopy.rename_keys(path, {5: "step"}), TypeError),
        (lambda path: zerocopy.rename_keys(path, [("step", "first")]), TypeError),
        (lambda path: zerocopy.drop_keys(path, [5]), TypeError),
    ],
)
def test_refused(save: Saver, change: Any, error: type[Exception]) -> None:
    path = save(state())
    before = path.read_bytes()
    with pytest.raises(error):
        change(path)
    assert path.read_bytes() == before


def test_files_that_are_not_edited(tmp_path: Path) -> None:
    legacy, packed = tmp_path / "legacy.pt", tmp_path / "packed.pt"
    torch.save(state(), legacy, _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(io.BytesIO(saved_bytes(state()))) as old, zipfile.ZipFile(packed, "w", 8) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    for path in (legacy, packed):
        before = path.read_bytes()
        with pytest.raises(zerocopy.UnsupportedError):
            zerocopy.rename_keys(path, {"first": "erste"})
        assert path.read_bytes() == before
    with pytest.raises(FileNotFoundError):
        zerocopy.rename_keys(tmp_path / "nothing.pt", {})


def test_bytes_behind_the_archive_are_not_cut(save: Saver) -> None:
    path = save(state())
    for rest in (saved_bytes({"other": BASE}), path.read_bytes(), bytes(300) + b"data of another program"):
        path.write_bytes(content := saved_bytes(state()) + rest + path.read_bytes()[-42:])
        for change in (
            lambda: zerocopy.rename_keys(path, {"first": "erste"}),
            lambda: zerocopy.drop_keys(path, ["first"]),
        ):
            with pytest.raises((zerocopy.Error, KeyError)):
                change()
            assert path.read_bytes() == content


# ----------------------------------------------------------------------------- at every moment


@pytest.mark.parametrize(
    ("entries", "packed"),
    [(3, False), pytest.param(4000, True, marks=pytest.mark.slow("each of many states is read"))],
)
def test_stopped_after_each_write(
    save: Saver, monkeypatch: pytest.MonkeyPatch, entries: int, packed: bool
) -> None:
    """Stock torch reads what is there, the old or the new; the next edit tidies up, and zerocopy reads it."""
    old = {"weight": BASE, **{f"entry {i}": i for i in range(entries)}}
    path = save(old)
    if packed:
        content = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(path, "w") as target:
            for info in source.infolist():
                target.writestr(info.filename, source.read(info))
    new = {"W": old["weight"], **{name: value for name, value in old.items() if name != "weight"}}
    write, left = edit._write, [path.with_name("left0.pt")]
    shutil.copy(path, left[0])

    def copying(file: int, content: bytes, offset: int) -> None:
        write(file, content, offset)
        left.append(path.with_name(f"left{len(left)}.pt"))
        shutil.copy(path, left[-1])

    monkeypatch.setattr(edit, "_write", copying)
    zerocopy.rename_keys(path, {"weight": "W"})
    monkeypatch.undo()
    seen = [check(each, old, new) for each in left]
    assert_same(stock_load(path), new)
    assert seen == sorted(seen) and seen.count("old") >= (4 if entries > 3 else 3)
    assert seen.count("the new") == 3  # in force, and two headers


def check(left: Path, old: Any, new: Any) -> str:
    """Say which of the two is in a file that was left in the middle, which is then tidied up."""
    for weights_only in (True, False):
        found = torch.load(left, weights_only=weights_only)
        expected = old if "weight" in found else new
        assert_same(found, expected)
    zerocopy.rename_keys(left, {})
    assert_same(zerocopy.load(left), expected)
    assert_same(stock_load(left), expected)
    return "old" if expected is old else "the new"  # in the order of time, and of the alphabet


# ----------------------------------------------------------------------------- tensors


@pytest.mark.parametrize("write", [torch.save])
def test_copy_reaches_the_file(tmp_path: Path, write: Any) -> None:
    path = tmp_path / "model.pt"
    write(state(), path)
    with zerocopy.open(path, mode="r+") as checkpoint:
        checkpoint["tied.weight"].copy_(BASE.neg())
        checkpoint["model.bias"][1] = 5
        checkpoint["first"].zero_()
    loaded = stock_load(path)
    assert torch.equal(loaded["tied"]["view"], BASE[10:20].neg())
    assert loaded["model"]["bias"][1] == 5 and not loaded["first"].any()


def test_write_to_a_converted_tensor_raises(save: Saver) -> None:
    path = save({"weight": torch.ones(2), "ids": torch.ones(2, dtype=torch.int64)})
    with zerocopy.open(path, mode="r+", dtype=torch.float16, device="cpu") as checkpoint:
        checkpoint["ids"].zero_()
        with pytest.raises(zerocopy.UnsupportedError, match="has to be converted"):
            checkpoint["weight"].zero_()
    assert_same(stock_load(path), {"weight": torch.ones(2), "ids": torch.zeros(2, dtype=torch.int64)})


W = torch.zeros(2)


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ({"a": torch.zeros(1), "b": {"c": torch.ones(1)}}, {"a": "b.c"}),
        ({"a": torch.zeros(1), "b": {"c": torch.ones(1)}}, {"a": "b.other"}),
        ({"b.c": torch.zeros(1), "a": {"c": torch.ones(1)}}, {"a": "b"}),
        ({"a": torch.zeros(1), "x": {"c": torch.ones(1)}}, {"a": "b.c", "x": "b"}),
        ({"in": {"a": torch.zeros(1), "b": {}}}, {"in.a": "in.b.c"}),
    ],
)
def test_name_of_an_entry_in_another_dict_is_refused(save: Saver, state: Any, names: dict[str, str]) -> None:
    path = save(state)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="would look like an entry of"):
        zerocopy.rename_keys(path, names)
    assert path.read_bytes() == before


@pytest.mark.parametrize("way", ["process", "thread"])
def test_edit_during_a_background_save_is_made_after_it(
    save: Saver, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        snapshot, "why_not_to_fork", lambda _: "" if way == "process" else "the test wants a thread"
    )
    path = save({"old": W})
    saving = zerocopy.save({"a": torch.ones(9_000_000), "b": W}, path, wait=False)
    zerocopy.rename_keys(path, {"a": "c"})
    saving.wait()
    zerocopy.save({"c": torch.ones(9_000_000), "b": W}, path, wait=False)
    zerocopy.drop_keys(path, ["c"])
    assert list(torch.load(path)) == ["b"]
