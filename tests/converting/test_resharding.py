"""Shards into a folder that has some: at each moment the folder is the old checkpoint or the new one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Child, Saver
from equality import assert_same

import zerocopy

OLD = {name: torch.full((1000,), float(number)) for number, name in enumerate("abcd")}
NEW = {name: value.half() for name, value in OLD.items()}
TARGETS = {"folder": "f", ".bin": "f/model.bin"}

# Ends the process, or fails, at one of the calls that change names. No other file's name is taken for an old one.
STOPPED = """
    import errno, os, sys, torch, zerocopy
    from pathlib import Path
    target, at, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    calls = 0
    def stopping(function):
        def call(*arguments, **more):
            global calls
            calls += 1
            if calls == at:
                if how == "killed":
                    os._exit(9)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return function(*arguments, **more)
        return call
    os.link, os.replace, os.rename, os.unlink = map(stopping, (os.link, os.replace, os.rename, os.unlink))
    try:
        source = os.path.dirname(target) if target.endswith(".bin") else target
        zerocopy.convert(source, target, max_shard_size=6200, dtype=torch.float16)
    except OSError as error:
        print(error.errno == errno.EIO)
    print(calls < at)
"""


def tensors(folder: Path) -> dict[str, Any]:
    """Return what the index names, read by torch or safetensors alone."""
    (index,) = folder.glob("*.index.json")
    found: dict[str, Any] = {}
    for name, shard in json.loads(index.read_text())["weight_map"].items():
        with zerocopy.open(folder / shard) as checkpoint:
            found[name] = checkpoint.get_tensor(name).clone()
    return dict(sorted(found.items()))


@pytest.mark.parametrize(
    ("target", "how"),
    [
        ("folder", "killed"),
        (".bin", "refused"),
        pytest.param("folder", "refused", marks=pytest.mark.slow("the other pairs")),
        pytest.param(".bin", "killed", marks=pytest.mark.slow("the other pairs")),
    ],
)
def test_stopped_at_each_change_of_a_name(
    save: Saver, forked: Child, tmp_path: Path, target: str, how: str
) -> None:
    source = save(OLD)
    for at in range(1, 40):
        folder = tmp_path / str(at)
        folder.mkdir()
        path = folder / TARGETS[target]
        path.parent.mkdir(exist_ok=True)
        zerocopy.convert(source, path, max_shard_size=8200)
        shards = set((folder / "f").iterdir())
        done = forked(STOPPED, path, at, how)
        found = tensors(folder / "f")
        assert_same(found, NEW if found["a"].dtype == torch.float16 else OLD)
        assert_same(dict(sorted(zerocopy.load(folder / "f").items())), found)
        if how == "refused":
            assert set((folder / "f").iterdir()) == shards or found["a"].dtype == torch.float16
        if done.stdout.endswith("True\n") and done.returncode == 0 and "False" not in done.stdout:
            assert found["a"].dtype == torch.float16
            break
    else:
        raise AssertionError("it was stopped each time")
    assert at > 2


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

    def progress(*_: int) -> None:
        taken.write_text("mine")

    with pytest.raises(FileExistsError) as caught:
        zerocopy.convert(save(OLD), tmp_path / "f", max_shard_size=8200, progress=progress)
    assert str(taken) in str(caught.value)
    assert [path.name for path in (tmp_path / "f").iterdir()] == [taken.name]
    assert taken.read_text() == "mine"
