"""``zerocopy convert``: arguments, exit codes, --verify."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import Saver, stock_load

import zerocopy
from zerocopy import cli

STATE = {"model": {"w": torch.arange(100.0), "n": torch.arange(5)}, "optimizer": {"m": torch.ones(100)}}


def test_what_it_writes(save: Saver, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = str(save(STATE)), tmp_path / "m.safetensors"
    command = ["convert", "--keep", "model.w", "--keep", "model.n", "--dtype", "bf16", "--verify"]
    assert cli.main([*command, source, str(target)]) == 0
    assert "equal to its source" in capsys.readouterr().out
    loaded = zerocopy.load(target)
    assert sorted(loaded) == ["model.n", "model.w"] and loaded["model.w"].dtype is torch.bfloat16


@pytest.mark.parametrize("name", ["m.pt", "m.h5", "m.safetensors", "out", "out/model.bin"])
def test_verify(save: Saver, tmp_path: Path, name: str) -> None:
    pytest.importorskip("h5py")
    weight = torch.arange(100.0)
    source = save({"a": weight, "b": weight.view(100), "c": weight.clone().view(10, 10).t()})
    more = ["--max-shard-size", "1KB"] if "out" in name else []
    assert cli.main(["convert", "--verify", *more, str(source), str(tmp_path / name)]) == 0


def test_a_difference_is_found(
    save: Saver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = save({"a": torch.ones(3)}), tmp_path / "m.pt"

    def convert(*_: object, **__: object) -> None:
        torch.save({"a": torch.tensor([1.0, 1.0, -1.0])}, target)

    monkeypatch.setattr("zerocopy.converting.converter.convert", convert)
    assert cli.main(["convert", "--verify", str(source), str(target)]) == 1
    assert "a differs: other bits" in capsys.readouterr().out


def test_several_sources(save: Saver, tmp_path: Path) -> None:
    one, two = save({"a": torch.ones(2)}, "one.pt"), save({"b": torch.ones(3)}, "two.pt")
    assert cli.main(["convert", "--verify", str(one), str(two), str(tmp_path / "m.pt")]) == 0
    assert sorted(stock_load(tmp_path / "m.pt")) == ["a", "b"]


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
    save: Saver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    arguments: list[str], said: str,
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
def test_what_makes_no_sense(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(STATE, "a.pt")
    with pytest.raises(SystemExit) as caught:
        cli.main(["convert", *arguments])
    assert caught.value.code == 2
