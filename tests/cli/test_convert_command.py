"""``zerocopy convert``: arguments, exit codes, --verify."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import terminals
import torch
from commands import Capture
from conftest import Saver

import zerocopy
from zerocopy import cli
from zerocopy.cli import output

STATE = {"model": {"w": torch.arange(100.0), "n": torch.arange(5)}, "optimizer": {"m": torch.ones(100)}}


def test_convert_command_writes_selected_tensors(save: Saver, tmp_path: Path, capsys: Capture) -> None:
    source, target = str(save(STATE)), tmp_path / "m.safetensors"
    command = ["convert", "--keep", "model.w", "--keep", "model.n", "--strip-prefix", "model.", "--verify"]
    assert cli.main([*command, "--dtype", "bf16", source, str(target)]) == 0
    assert "equal to its source" in capsys.readouterr().out
    loaded = zerocopy.load(target)
    assert sorted(loaded) == ["n", "w"] and loaded["w"].dtype is torch.bfloat16


@pytest.mark.parametrize("name", ["m.pt", "m.h5", "m.safetensors", "out", "out/model.bin"])
def test_verify(save: Saver, tmp_path: Path, name: str) -> None:
    pytest.importorskip("h5py")
    weight = torch.arange(100.0)
    source = save({"a": weight, "b": weight.view(100), "c": weight.clone().view(10, 10).t()})
    more = ["--max-shard-size", "1KB"] if "out" in name else []
    assert cli.main(["convert", "--verify", *more, str(source), str(tmp_path / name)]) == 0


@pytest.mark.parametrize("zip", [True, False])
@pytest.mark.parametrize("name", ["m.pt", "m.h5"])
def test_verify_of_tensors_without_data(
    save: Saver, tmp_path: Path, capsys: Capture, name: str, zip: bool
) -> None:
    pytest.importorskip("h5py")
    state = {"meta": torch.empty(3, 4, device="meta"), "weight": torch.ones(2)}
    source = save(state, _use_new_zipfile_serialization=zip)
    assert cli.main(["convert", "--verify", str(source), str(tmp_path / name)]) == 0
    assert "equal to its source" in capsys.readouterr().out
    assert zerocopy.load(tmp_path / name)["meta"].shape == (3, 4)


def test_a_difference_is_found(
    save: Saver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    source, target = save({"a": torch.ones(3)}), tmp_path / "m.pt"

    def convert(*_: object, **__: object) -> None:
        torch.save({"a": torch.tensor([1.0, 1.0, -1.0])}, target)

    monkeypatch.setattr("zerocopy.converting.converter.convert", convert)
    assert cli.main(["convert", "--verify", str(source), str(target)]) == 1
    assert "a differs: other bits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent.pt", "m.pt"], "No such file"),
        (["checkpoint.pt", "m.txt"], "got '.txt'"),
        (["checkpoint.pt", "."], "directory"),
        (["--keep", "nothing", "checkpoint.pt", "m.pt"], "selects none of the tensors"),
        (["--max-shard-size", "much", "checkpoint.pt", "out"], "size"),
        (["checkpoint.pt", "checkpoint.pt", "m.pt"], "found these in two"),
        (["sparse.pt", "m.safetensors"], "sparse_coo"),
    ],
)
def test_trouble(
    save: Saver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture,
    arguments: list[str], said: str
) -> None:  # fmt: skip
    save(STATE)
    save({"s": torch.ones(3).to_sparse()}, "sparse.pt")
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    assert cli.main(["convert", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("arguments", [["a.pt"], ["--dtype", "int8", "a.pt", "b.pt"], ["--dtype", "os", "a.pt", "b.pt"],
                                       ["--verify", "a.pt", "a.pt"]])  # fmt: skip
def test_contradicting_options_are_usage_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(STATE, "a.pt")
    with pytest.raises(SystemExit) as caught:
        cli.main(["convert", *arguments])
    assert caught.value.code == 2


@pytest.mark.parametrize("target", ["m.safetensors", "out"])
def test_convert_prints_where_it_wrote(save: Saver, tmp_path: Path, target: str, capsys: Capture) -> None:
    more = ["--max-shard-size", "300B"] if target == "out" else []
    assert cli.main(["convert", *more, str(save(STATE)), str(tmp_path / target)]) == 0
    out = capsys.readouterr().out
    place = re.fullmatch(r"wrote (\S+?)(?: and (\d) shards beside it)?: \S+ k?B in \S+ s, \S+ \wB/s\n", out)
    assert place is not None, out
    assert Path(place[1]).is_file() and (
        not more or len(list((tmp_path / target).glob("*-of-*"))) == int(place[2])
    )


def test_convert_on_a_terminal_shows_progress_and_clears_the_line(save: Saver, tmp_path: Path) -> None:
    source, target = str(save({"w": torch.ones(1 << 20)})), str(tmp_path / "m.safetensors")
    code, shown = terminals.run_on_terminal(["convert", source, target], 80)
    last = shown.rpartition("\r")[2]
    assert code == 0 and " 100 %" in shown and last.startswith(f"wrote {target}: 4.2 MB in ")
    _, shown = terminals.run_on_terminal(["convert", source, target], 80, TQDM_DISABLE="1")
    assert "%" not in shown


def test_progress_by_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    for said, of_tqdm, is_shown in (
        ("0", "", False),
        ("off", "", False),
        ("1", "1", True),
        ("", "1", False),
        ("", "", True),
    ):
        monkeypatch.setenv("ZEROCOPY_PROGRESS", said)
        monkeypatch.setenv("TQDM_DISABLE", of_tqdm)
        output.Progress("zerocopy convert:", 2).add(1)
        assert ("50 %" in capsys.readouterr().err) == is_shown, (said, of_tqdm)


def test_progress_shows_bytes_rate_and_time_left(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = output.Progress("zerocopy convert:", 100_000_000)
    now += 2
    progress.add(25_000_000)
    assert (
        capsys.readouterr().err.strip() == "zerocopy convert: 25 %, 25.0 MB of 100.0 MB, 12.5 MB/s, 6 s left"
    )
