"""``zerocopy ps``, ``warm``, ``unload``, ``stop``: what they say, and their exit codes."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest
import sharing
import torch
from commands import Capture
from conftest import Saver

import zerocopy
from zerocopy import cli, share


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZEROCOPY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    code = cli.main(list(map(str, arguments)))
    return code, *capsys.readouterr()


def test_without_a_cache(cache: Path, capsys: Capture) -> None:
    """None is made for a question."""
    assert run(capsys, "ps") == (1, "", "nothing is kept\n"), "a pipe gets rows only"
    code, out, _ = run(capsys, "ps", "--json")
    about = {"schema": 1, "command": "ps", "zerocopy": zerocopy.__version__}
    assert (code, json.loads(out)) == (1, {**about, "entries": [], "warm": []})
    advice = "zerocopy unload: abcdef: no such result is kept; zerocopy ps lists them\n"
    assert run(capsys, "unload", "abcdef")[::2] == (1, advice)
    assert run(capsys, "stop") == (1, "no fork server of warm starts is running\n", "")
    assert not cache.exists()


def test_from_warm_to_unload(save: Saver, tmp_path: Path, capsys: Capture) -> None:
    path, damaged = save({"weight": torch.ones(300_000)}), tmp_path / "damaged.pt"
    damaged.write_bytes(path.read_bytes()[:5000])
    sharing.age(damaged)
    code, out, err = run(capsys, "warm", path, damaged)
    assert code == 1 and out.startswith(f"{path}: there, by torch.load, after ") and out.count("\n") == 1
    assert err.startswith(f"zerocopy warm: {damaged}: ") and err.count("\n") == 1
    code, out, err = run(capsys, "warm", tmp_path / "absent.pt", path)
    assert code == 2 and out.startswith(f"{path}: there") and "absent.pt: No such" in err
    assert run(capsys, "warm", "--by", "zerocopy::load", path)[0] == 0

    keys = {entry.key for entry in share.status()}
    kept = share.load(torch.load, str(path))
    assert {entry.key for entry in share.status()} == keys and len(keys) == 2, "it was there already"
    code, out, err = run(capsys, "ps")
    assert (code, err) == (0, "")
    rows = [line.split("\t") for line in out.splitlines()]
    mine = next(row for row in rows if "torch.serialization.load" in row)
    assert mine[0] in keys and str(path) in mine
    code, out, _ = run(capsys, "ps", "--json")
    entry = next(entry for entry in json.loads(out)["entries"] if entry["what"] == "torch.serialization.load")
    assert entry["key"] == mine[0] and entry["mapped"] >= 1_200_000 > entry["written"] > 0
    assert entry["depends_on"] == [str(path)] and entry["unseen"] == [] and entry["note"] == ""

    for text in ("...", "-", "", "model.safetensors", "torch"):
        assert run(capsys, "unload", text)[0] == 1, text
    assert len(share.status()) == 2, "unknown text removes nothing"
    assert run(capsys, "unload", entry["key"][:8], "nonsense")[:2] == (
        1,
        f"{entry['key'][:8]}: 1 removed\n",
    )
    assert run(capsys, "unload", path.name)[0] == 0 and share.status() == []
    share.load(int, "5")
    assert run(capsys, "unload", "--all")[:2] == (0, "all results: 1 removed\n")
    assert kept["weight"].sum() == 300_000


def unseen_and_random() -> float:
    subprocess.run(["/bin/true"], check=True)
    return random.random()


def test_results_that_may_be_otherwise_are_marked(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    share.load(unseen_and_random)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("NO_COLOR", "1")
    code, out, _ = run(capsys, "ps")
    heading, row, *marks = out.splitlines()
    assert code == 0 and " ".join(heading.split()) == "FUNCTION KEY WRITTEN IN FILES LAST USE FILE"
    assert ".py" in row and len(marks) == 2 and all("unseen_and_random" in line for line in marks)
    assert "another program" in marks[0] and "random numbers (Python)" in marks[1]


@pytest.mark.parametrize("arguments", [["ps"], ["unload", "--all"], ["warm", "a.pt"]], ids=" ".join)
def test_folder_that_is_open_to_others_is_trouble(
    cache: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(1, "a.pt")
    cache.mkdir()
    cache.chmod(0o755)
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and "must be yours alone" in err


@pytest.mark.parametrize(
    "arguments",
    [["unload"], ["unload", "--all", "abcdef"], ["warm"], ["warm", "--by", "torch.absent", "a.pt"],
     ["warm", "--by", "math.pi", "a.pt"]],
    ids=" ".join,
)  # fmt: skip
def test_command_lines_that_make_no_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pt").touch()
    with pytest.raises(SystemExit) as exit:
        cli.main(arguments)
    assert exit.value.code == 2
