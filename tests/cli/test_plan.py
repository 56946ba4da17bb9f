"""zerocopy plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Capture

import zerocopy
from zerocopy.cli import main
from zerocopy.distributed import shard_plan


@pytest.fixture
def path(tmp_path: Path) -> Path:
    layers = {}
    for number in range(2):
        layers[f"layers.{number}.q_proj.weight"] = torch.zeros(64, 32)
        layers[f"layers.{number}.q_proj.bias"] = torch.zeros(64)
        layers[f"layers.{number}.o_proj.weight"] = torch.zeros(32, 8192)
        layers[f"layers.{number}.norm.weight"] = torch.zeros(32)
    torch.save(layers, tmp_path / "model.pt")
    return tmp_path / "model.pt"


def planned(capsys: Capture, *arguments: object) -> Any:
    assert main(["plan", "--json", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def test_plan_json_equals_shard_plan(path: Path, capsys: Capture) -> None:
    found = planned(capsys, "--ranks", 8, "--tp", 4, "--replicate", "--ranks-per-host", 4, path)
    split = {"q_proj.weight": 0, "q_proj.bias": 0, "o_proj.weight": 1, "norm.weight": None}
    placements = {f"layers.{n}.{name}": (None, dim) for n in range(2) for name, dim in split.items()}
    expected = shard_plan(path, (2, 4), placements)
    assert found["ranks"] == [rank._asdict() for rank in expected.ranks]
    assert found["hosts"] == [host._asdict() for host in expected.hosts(4)]
    assert found["bytes"] == expected.file_bytes


def test_plan_with_fsdp_reads_every_byte_about_once(path: Path, capsys: Capture) -> None:
    found = planned(capsys, "--ranks", 8, "--tp", 4, path)
    norms = 2 * 32 * 4
    assert sum(rank["nbytes"] for rank in found["ranks"]) == found["bytes"] + 3 * norms


def test_missing_shard_is_named(path: Path, capsys: Capture) -> None:
    folder = path.with_name("shards")
    zerocopy.convert(path, folder, max_shard_size="1MB")
    gone = sorted(folder.glob("*-00002-*"))[0]
    gone.unlink()
    assert main(["plan", "--ranks", "2", str(folder)]) == 2
    assert capsys.readouterr().err == f"zerocopy plan: {folder}: {gone}: No such file or directory\n"


def test_plan_text_names_ranks_and_hosts(path: Path, capsys: Capture) -> None:
    assert main(["plan", "--ranks", "16", "--each", str(path)]) == 0
    out = capsys.readouterr().out
    assert "16 ranks: each reads " in out and "2 hosts: each reads " in out
    assert out.count("  rank ") == 16 and out.count("  host ") == 2


@pytest.mark.parametrize(
    "wrong",
    [
        ["--ranks", "6", "--tp", "4"],
        ["--ranks", "0"],
        ["--ranks", "2", "--rowwise", "("],
        ["--ranks", "x"],
    ],
)
def test_plan_with_a_wrong_command_line_exits_with_2(path: Path, wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["plan", *wrong, str(path)])
    assert exit_.value.code == 2
