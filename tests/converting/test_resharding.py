"""Shards into a folder that has some: at each moment the folder is the old checkpoint or the new one."""

from __future__ import annotations

import contextlib
import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Saver
from equality import assert_same
from system_calls import Refusal, in_child

import zerocopy
from zerocopy.converting.shard_plan import Layout

OLD = {name: torch.full((1000,), float(number)) for number, name in enumerate("abcd")}
NEW = {name: value.half() for name, value in OLD.items()}
TARGETS = {"folder": "f", ".bin": "f/model.bin"}


def tensors(folder: Path) -> dict[str, Any]:
    """Return what the index names, read by torch or safetensors alone."""
    (index,) = folder.glob("*.index.json")
    found: dict[str, Any] = {}
    for name, shard in json.loads(index.read_text())["weight_map"].items():
        with zerocopy.open(folder / shard) as checkpoint:
            found[name] = checkpoint.get_tensor(name).clone()
    return dict(sorted(found.items()))


@pytest.mark.parametrize("error", [errno.EIO, None], ids=["refused", "killed"])
@pytest.mark.parametrize("call", ["linkat", "rename", "unlink"])
@pytest.mark.parametrize("target", TARGETS.values())
def test_stopped_where_names_change(
    save: Saver, tmp_path: Path, target: str, call: str, error: int | None
) -> None:
    """The shards take names by linkat, the index by rename, and unlink deletes the old shards."""
    path, folder = tmp_path / target, tmp_path / "f"
    folder.mkdir()
    zerocopy.convert(save(OLD), path, max_shard_size=8200)
    before = set(folder.iterdir())

    def again() -> None:
        with contextlib.suppress(OSError):
            zerocopy.convert(folder, path, max_shard_size=6200, dtype=torch.float16)

    in_child(again, Refusal(call, error))
    found = tensors(folder)
    assert_same(found, NEW if call == "unlink" else OLD)
    assert_same(dict(sorted(zerocopy.load(folder).items())), found)
    assert set(folder.iterdir()) == before or call == "unlink" or error is None


@pytest.mark.parametrize("target", TARGETS.values())
def test_old_shards_are_deleted_and_their_permissions_kept(save: Saver, tmp_path: Path, target: str) -> None:
    (tmp_path / "f").mkdir()
    zerocopy.convert(save(OLD), tmp_path / target, max_shard_size=5000)
    old = [path for path in (tmp_path / "f").iterdir() if not path.name.endswith(".json")]
    for path in old:
        path.chmod(0o600)
    (tmp_path / "f" / "notes.txt").write_text("mine")
    (tmp_path / "f" / f"other-00001-of-00001{old[0].suffix}").write_text("mine")
    mapped = zerocopy.load(tmp_path / "f")
    for most in (8200, 12200, 12200):
        zerocopy.convert(tmp_path / "f", tmp_path / target, max_shard_size=most)
        (index,) = (tmp_path / "f").glob("*.index.json")
        shards = set(json.loads(index.read_text())["weight_map"].values())
        assert {path.name for path in (tmp_path / "f").iterdir()} == {
            *shards, index.name, "notes.txt", f"other-00001-of-00001{old[0].suffix}",
        }  # fmt: skip
        assert {(tmp_path / "f" / name).stat().st_mode & 0o777 for name in shards} == {0o600}
    assert_same(mapped, OLD)


def test_shards_that_another_index_names_stay(save: Saver, tmp_path: Path) -> None:
    zerocopy.convert(save(OLD), tmp_path / "f", max_shard_size=5000)
    index = tmp_path / "f" / "model.safetensors.index.json"
    (tmp_path / "f" / "copy.index.json").write_bytes(index.read_bytes())
    named = set(json.loads(index.read_text())["weight_map"].values())
    zerocopy.convert(tmp_path / "f", tmp_path / "f", max_shard_size=8200)
    assert named <= {path.name for path in (tmp_path / "f").iterdir()}


def test_a_shard_with_a_name_that_is_taken_meanwhile_is_not_written_over(
    save: Saver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = tmp_path / "f" / "model-00002-of-00002.safetensors"
    monkeypatch.setattr(Layout, "free", lambda layout, _: layout)  # it is taken after names were looked for

    def progress(*_: int) -> None:
        taken.write_text("mine")

    with pytest.raises(FileExistsError) as caught:
        zerocopy.convert(save(OLD), tmp_path / "f", max_shard_size=8200, progress=progress)
    assert str(taken) in str(caught.value)
    assert [path.name for path in (tmp_path / "f").iterdir()] == [taken.name]
    assert taken.read_text() == "mine"
    monkeypatch.undo()
    zerocopy.convert(save(OLD), tmp_path / "f", max_shard_size=8200)
    assert taken.read_text() == "mine"
    assert_same(tensors(tmp_path / "f"), OLD)
