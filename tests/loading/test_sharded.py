"""Checkpoints in several files, with an index: loaded, opened, and what is wrong with them said."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors_files
import torch
from conftest import lies_in_mapping

import zerocopy

STATE = {f"layers.{i}.{part}": torch.full((4, 3), i + 0.5) for i in range(3) for part in ("weight", "bias")}
INDEX = "pytorch_model.bin.index.json"
SHARDS = {
    "model-00001-of-00003.bin": [*STATE][:2],
    "model-00002-of-00003.safetensors": [*STATE][2:3],
    "model-00003-of-00003.bin": [*STATE][3:],
}
WEIGHT_MAP = {name: shard for shard, names in SHARDS.items() for name in names}


def write_index(folder: Path, weight_map: Any = WEIGHT_MAP, name: str = INDEX) -> Path:
    path = folder / name
    path.write_text(json.dumps({"metadata": {"total_size": 288}, "weight_map": weight_map}))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two shards by torch.save, one of safetensors, and their index."""
    for shard, names in SHARDS.items():
        tensors = {name: STATE[name] for name in names}
        if shard.endswith(".bin"):
            torch.save(tensors, tmp_path / shard)
        else:
            (tmp_path / shard).write_bytes(safetensors_files.saved(tensors))
    write_index(tmp_path)
    return tmp_path


def lazily(f: Any, **options: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.materialize() for name, tensor in zerocopy.lazy_load(f, **options).items()}


def opened(f: Any, **options: Any) -> dict[str, torch.Tensor]:
    with zerocopy.open(f, **options) as checkpoint:
        return {name: checkpoint.get_tensor(name) for name in checkpoint}


each_way = pytest.mark.parametrize("way", [zerocopy.load, lazily, opened], ids=["load", "lazy_load", "open"])
Way = Callable[..., dict[str, torch.Tensor]]


def same(loaded: dict[str, torch.Tensor], state: dict[str, torch.Tensor]) -> None:
    assert list(loaded) == list(state)
    assert all(torch.equal(loaded[name], state[name]) for name in state)


# --------------------------------------------------------------------------------- good ones


@each_way
def test_the_index_and_its_folder(folder: Path, way: Way) -> None:
    for f in (folder / INDEX, str(folder / INDEX), folder, str(folder)):
        same(way(f), STATE)
    for name, tensor in way(folder).items():
        assert lies_in_mapping(tensor.data_ptr(), folder / WEIGHT_MAP[name])
    if way is not opened:
        names = [*STATE][::2] + [*STATE][1::2]
        write_index(folder, {name: WEIGHT_MAP[name] for name in names})
        same(way(folder), {name: STATE[name] for name in names})


@each_way
def test_links_to_shards(folder: Path, way: Way, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As in a hub's cache, whose folders hold nothing else."""
    links = tmp_path_factory.mktemp("links")
    for path in folder.iterdir():
        (links / path.name).symlink_to(path)
    same(way(links), STATE)


@pytest.mark.parametrize("way", [lazily, opened], ids=["lazy_load", "open"])
def test_filters(folder: Path, way: Way) -> None:
    same(way(folder, prefix="layers.1."), {n: t for n, t in STATE.items() if n.startswith("layers.1.")})
    same(way(folder, keys=["layers.2"]), {n: t for n, t in STATE.items() if n.startswith("layers.2.")})
    same(way(folder, predicate=lambda name: name == "layers.0.bias", dtype=torch.float16), {
        "layers.0.bias": STATE["layers.0.bias"].half()
    })  # fmt: skip
    with pytest.raises(KeyError, match=r"layers\.7"):
        way(folder, keys=["layers.7"])


def test_an_open_checkpoint(folder: Path) -> None:
    with zerocopy.open(folder) as checkpoint:
        assert checkpoint.path == str(folder / INDEX)
        assert "zip, safetensors" in checkpoint.tree() and "6 tensors" in checkpoint.tree()
        assert torch.equal(checkpoint.get_slice("layers.1.weight")[1:, 0], STATE["layers.1.weight"][1:, 0])
    with pytest.raises(zerocopy.ClosedError):
        checkpoint.get_tensor("layers.0.weight")
    with zerocopy.overlay(folder, {"layers.0.bias": torch.ones(1)}) as both:
        assert len(both) == len(STATE) and torch.equal(both.get_tensor("layers.0.bias"), torch.ones(1))


NESTED = {
    "a group": {"x": {"a": torch.ones(3), "b": {"c": torch.zeros(2)}}},
    "a list in a dict": {"x": [torch.ones(3), (torch.zeros(2), 7)], 5: torch.ones(1), None: torch.ones(2)},
    "a list": [torch.ones(3), {"y": torch.zeros(2)}],
    "a tensor": torch.ones(3),
    "two of one name": {
        "x.a": torch.ones(3),
        "x": {"a": torch.zeros(2), "": 1, "b": 2},
        "": {"y": torch.ones(1)},
    },
    "an OrderedDict": OrderedDict(x=OrderedDict(a=torch.ones(3)), step=7),
}


@each_way
def test_a_nested_shard_has_the_names_that_open_gives(tmp_path: Path, way: Way) -> None:
    path = tmp_path / "m-1.bin"
    for nested in NESTED.values():
        torch.save(nested, path)
        tensors = opened(path)
        write_index(tmp_path, dict.fromkeys(tensors, path.name))
        same(way(tmp_path), tensors)


def test_a_shard_of_lists_that_repeat_each_other_is_refused(tmp_path: Path) -> None:
    """A thousand lists in a thousand, three times: names for each leaf would fill the memory."""
    lists: list[Any] = []
    for _ in range(4):
        lists = [lists] * 1000
    torch.save({"w": torch.ones(2), "lists": lists}, tmp_path / "m.bin")
    write_index(tmp_path, {"w": "m.bin"})
    for way in (zerocopy.load, lazily, opened):
        with pytest.raises(zerocopy.FormatError, match=r"m\.bin: .*far more leaves than it spells out"):
            way(tmp_path)


def test_explain(folder: Path) -> None:
    explanation = zerocopy.explain(folder)
    assert explanation.container == "sharded" and len(explanation.storages) == len(STATE)
    assert "3 files" in str(explanation)


# --------------------------------------------------------------------------------- bad ones


@each_way
def test_a_missing_or_damaged_shard_is_named(folder: Path, way: Way) -> None:
    path = folder / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(zerocopy.FormatError, match="model-00002-of-00003"):
        way(folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="model-00002-of-00003"):
        way(folder)


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_a_shard_that_is_not_a_plain_file_is_a_format_error(folder: Path, kind: str) -> None:
    path = folder / "model-00002-of-00003.safetensors"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    for way in (zerocopy.load, lazily, opened, zerocopy.explain):
        with pytest.raises(zerocopy.FormatError, match=rf"{INDEX}: .*{path.name}' is not a plain file"):
            way(folder)


FIRST, SECOND, LAST = SHARDS
SWAPPED = {**WEIGHT_MAP, "layers.0.weight": LAST, "layers.2.weight": FIRST}
# What is in the index, what the first shard has too, what the error says, and what the warning says.
WRONG: dict[str, tuple[Any, Any, str, str]] = {
    "a name more": (
        {**WEIGHT_MAP, "layers.9.weight": FIRST},
        {},
        r"layers\.9\.weight.*-00001-",
        r"1 tensor .*layers\.9",
    ),
    "a shard more": ({**WEIGHT_MAP, "x": "gone.bin"}, {}, "gone.bin", "x is to be in gone.bin"),
    "swapped": (SWAPPED, {}, r"layers\.[02].*-0000[13]-", r"layers\.0\.weight .* and model-00001"),
    "extra": (
        WEIGHT_MAP,
        {"extra": torch.ones(1)},
        "extra.*-00001-.* has it",
        "extra is in no shard by the index",
    ),
    "twice": (
        WEIGHT_MAP,
        {"layers.1.weight": torch.ones(1)},
        r"layers\.1\.weight.*-00001-.* has it",
        r"layers\.1",
    ),
}


@each_way
@pytest.mark.parametrize("kind", WRONG)
def test_an_index_that_is_wrong_is_refused_and_with_strict_false_what_the_shards_have_is_taken(
    folder: Path, way: Way, kind: str
) -> None:
    """A reader of the shards would see another checkpoint than a reader of the index."""
    weight_map, more, error, warning = WRONG[kind]
    write_index(folder, weight_map)
    torch.save({**{name: STATE[name] for name in SHARDS[FIRST]}, "step": 7, **more}, folder / FIRST)
    with pytest.raises((zerocopy.FormatError, FileNotFoundError), match=error):
        way(folder)
    with pytest.warns(UserWarning, match=warning) as warned:
        found = way(folder, strict=False)
    assert [Path(each.filename).name for each in warned] == [Path(__file__).name]
    expected = {**more, **STATE}
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


@each_way
def test_an_index_that_is_right_warns_of_nothing_with_strict_false(folder: Path, way: Way) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(way(folder, strict=False), STATE)
        (folder / INDEX).write_text(
            f'{{"weight_map": {{"a": "{FIRST}"}}, {json.dumps({"weight_map": WEIGHT_MAP})[1:]}'
        )
        same(way(folder, strict=False), STATE)


@each_way
def test_a_shard_that_is_no_dict_or_runs_code(folder: Path, way: Way) -> None:
    path = folder / "model-00001-of-00003.bin"
    torch.save([torch.ones(2)], path)
    with pytest.raises(zerocopy.FormatError, match="model-00001-of-00003"):
        way(folder)
    torch.save({"layers.0.weight": STATE["layers.0.weight"], "x": print}, path)
    with pytest.raises(pickle.UnpicklingError, match="print"):
        way(folder)


OUTSIDE = [
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    ".",
    "shards/../../x.bin",
    "shards/x.bin",
    "./x.bin",
    "",
    "a\0b",
    "\ud800.bin",
    "x" * 252 + ".bin",
]
NOT_TEXT = [None, 1, ["model-00001-of-00003.bin"], {}]


@each_way
def test_a_shard_that_is_not_in_the_folder(folder: Path, way: Way) -> None:
    for shard in [*OUTSIDE, *NOT_TEXT]:
        write_index(folder, {**WEIGHT_MAP, "layers.0.weight": shard})
        with pytest.raises(zerocopy.FormatError, match="index"):
            way(folder)


@each_way
@pytest.mark.parametrize("kind", ["index", "folder", "itself"])
def test_a_shard_that_is_made_of_shards(folder: Path, way: Way, kind: str) -> None:
    """A few indices that name each other would come to any number of files."""
    inner = {"index": "inner.index.json", "folder": "inner", "itself": INDEX}[kind]
    if kind != "itself":
        place = folder / inner
        place.mkdir() if kind == "folder" else None
        shutil.copy(folder / INDEX, place / INDEX if kind == "folder" else place)
        for shard in set(WEIGHT_MAP.values()) if kind == "folder" else ():
            (place / shard).symlink_to(folder / shard)
    write_index(folder, dict.fromkeys(WEIGHT_MAP, inner))
    with pytest.raises((zerocopy.FormatError, IsADirectoryError), match=re.escape(inner)) as caught:
        way(folder)
    assert "recursion" not in str(caught.value)
    with pytest.raises((zerocopy.FormatError, IsADirectoryError), match=re.escape(inner)):
        zerocopy.explain(folder)


TEXTS = {
    "nothing": b"",
    "no JSON": b"weights",
    "no UTF-8": b'{"weight_map": {"\xff": "x.bin"}}',
    "a list": b"[]",
    "no weight_map": b"{}",
    "a weight_map that is a list": b'{"weight_map": []}',
    "one tensor twice": b'{"weight_map": {"a": "x.bin", "a": "y.bin"}}',
    "weight_map twice": b'{"weight_map": {}, "weight_map": {"a": "x.bin"}}',
    "lists in each other": b'{"x": ' + b"[" * 200_000,
    "a number of 100 000 digits": b'{"x": ' + b"1" * 100_000 + b"}",
}


@each_way
def test_no_index(folder: Path, way: Way) -> None:
    for text in TEXTS.values():
        (folder / INDEX).write_bytes(text)
        with pytest.raises(zerocopy.FormatError, match="index") as caught:
            way(folder)
        assert str(folder / INDEX) in str(caught.value) and len(str(caught.value)) < 1000


@each_way
def test_an_index_that_is_a_pipe(folder: Path, way: Way) -> None:
    """The pipe is not opened: that would wait for a writer."""
    (folder / INDEX).unlink()
    os.mkfifo(folder / INDEX)
    for path in (folder, folder / INDEX):
        with pytest.raises(OSError, match="plain file") as caught:
            way(path)
        assert caught.value.filename == str(folder / INDEX)


@each_way
def test_an_index_of_nothing_and_none(folder: Path, way: Way) -> None:
    write_index(folder, {})
    assert way(folder) == {}
    (folder / INDEX).unlink()
    with pytest.raises(IsADirectoryError, match=r"it has model-00001-of-00003\.bin, ") as caught:
        way(folder)
    assert caught.value.filename == str(folder)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.index\.json"):
        way(folder / "nowhere.index.json")
