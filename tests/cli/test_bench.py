"""``zerocopy bench``: which loaders it measures, and what it says."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import torch
from commands import Capture
from conftest import Child, Saver
from json_schemas import require_valid

import zerocopy
from zerocopy import cli


def measured(capsys: Capture, *arguments: object) -> dict[str, dict[str, Any]]:
    assert cli.main(["bench", "--json", "--repeat", "2", *map(str, arguments)]) == 0
    found = json.loads(capsys.readouterr().out)
    require_valid("bench", found)
    return {row["name"]: row for row in found["loaders"]}


def test_bench_of_pt_file_measures_the_loaders_of_this_torch(save: Saver, forked: Child) -> None:
    # A process of its own: a loader would reuse memory that the tests before this one have freed.
    path = save({"a": torch.ones(10 << 20), "b": [torch.ones(3)]})
    program = "import sys; from zerocopy.__main__ import main; sys.exit(main())"
    report = json.loads(forked(program, "bench", "--json", "--repeat", "2", path).stdout)
    require_valid("bench", report)
    found = {row["name"]: row for row in report["loaders"]}
    has_mmap = "mmap" in inspect.signature(torch.load).parameters
    assert set(found) == {"zerocopy.load", "torch.load", "reading the file"} | (
        {"torch.load(mmap=True)"} if has_mmap else set()
    )
    for row in found.values():
        assert row["error"] == "" and 0 < row["ready"] <= row["consumed"]
    assert found["torch.load"]["private"] >= 1 << 23 > found["zerocopy.load"]["private"]


def test_bench_of_safetensors_file_leaves_torch_out(save: Saver, tmp_path: Path, capsys: Capture) -> None:
    zerocopy.convert(save({"a": torch.ones(1000)}), tmp_path / "m.safetensors")
    found = measured(capsys, tmp_path / "m.safetensors")
    assert {"zerocopy.load", "reading the file"} <= set(found) and "torch.load" not in found


def test_bench_as_text_has_a_line_for_each_loader(save: Saver, capsys: Capture) -> None:
    assert cli.main(["bench", "--repeat", "1", str(save({"a": torch.ones(10)}))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "hot page cache" in lines[0]
    assert lines[3].startswith("zerocopy.load ") and lines[-1].startswith("reading the file")


def test_bench_of_file_that_no_loader_loads_exits_with_one_sentence(save: Saver, capsys: Capture) -> None:
    path = save({"a": torch.ones(2), "path": Path("x")})
    assert cli.main(["bench", "--json", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"zerocopy bench: {path}: no loader loads it: ") and "pathlib" in err
