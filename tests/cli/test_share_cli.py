"""``zerocopy serve``, ``ps``, ``warm``, ``unload``, ``stop``: what they say, and their exit codes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Capture
from conftest import Saver

import zerocopy
from zerocopy import cli, share
from zerocopy.cli import ps, unload
from zerocopy.share.wire import sockets, versions


@pytest.fixture
def socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    place = tmp_path / "s"
    monkeypatch.setenv("ZEROCOPY_SOCKET", str(place))
    yield place
    share.shutdown()


def run(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    code = cli.main(list(map(str, arguments)))
    return code, *capsys.readouterr()


def test_without_a_server(socket: Path, capsys: Capture) -> None:
    """None is started for a question."""
    assert run(capsys, "ps") == (1, "no model server is running\n", "")
    assert run(capsys, "stop") == (1, "no model server is running\n", "")
    code, out, _ = run(capsys, "ps", "--json")
    about = {"schema": 1, "command": "ps", "zerocopy": zerocopy.__version__}
    assert (code, json.loads(out)) == (1, {**about, "server": None, "entries": [], "warm": []})
    advice = "zerocopy unload: abcdef: the server does not have this result; zerocopy ps lists them\n"
    assert run(capsys, "unload", "abcdef")[::2] == (1, advice)
    assert not socket.exists()


def test_from_warm_to_stop(
    socket: Path, save: Saver, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, damaged = save({"weight": torch.ones(300_000)}), tmp_path / "damaged.pt"
    damaged.write_bytes(path.read_bytes()[:5000])
    code, out, err = run(capsys, "warm", path, damaged)
    assert code == 1 and out.startswith(f"{path}: there, by torch.load, after ") and out.count("\n") == 1
    assert err.startswith(f"zerocopy warm: {damaged}: ") and err.count("\n") == 1
    code, out, err = run(capsys, "warm", tmp_path / "absent.pt", path)
    assert code == 2 and out.startswith(f"{path}: there") and "absent.pt: No such" in err
    assert run(capsys, "warm", "--by", "zerocopy::load", path)[0] == 0

    keys = [entry["key"] for entry in share.status()["entries"]]
    kept = share.load(torch.load, str(path))
    assert [entry["key"] for entry in share.status()["entries"]] == keys, "it was there already"
    code, out, err = run(capsys, "ps")
    assert (code, err) == (0, "")
    heading, *rows, summary = out.splitlines()
    assert " ".join(heading.split()) == "KEY FUNCTION FILE MAPPED MEMORY IN USE HITS LAST USE"
    assert max(map(len, out.splitlines())) <= 100
    mine = next(row for row in rows if "serialization.load" in row)
    assert path.name in mine
    assert " 1.1 MiB  " in mine and "  yes  " in mine
    assert summary.startswith(f"server {share.status()['pid']}, up ") and ": 2 results, " in summary
    code, out, _ = run(capsys, "ps", "--json", "--socket", socket)
    found = json.loads(out)
    assert found["server"]["pid"] == share.status()["pid"] and "entries" not in found["server"]
    entry = next(entry for entry in found["entries"] if entry["name"] == "torch.serialization.load")
    assert entry["key"].startswith(mine.split()[0]) and entry["mapped"] >= 1_200_000 > entry["memory"] > 0
    assert entry["files"] == [str(path)] and entry["attached"] and entry["created"] <= entry["used"]

    for text in ("...", "-", "", "model.safetensors", "torch"):
        assert run(capsys, "unload", text)[0] == 1, text
    assert len(share.status()["entries"]) == 2, "unknown text removes nothing"
    assert run(capsys, "unload", entry["key"][:8], "nonsense")[:2] == (
        1,
        f"{entry['key'][:8]}: 1 removed\n",
    )
    assert run(capsys, "unload", "--all")[:2] == (0, "all results: 1 removed\n")
    assert kept["weight"].sum() == 300_000
    monkeypatch.delenv("ZEROCOPY_SOCKET")
    assert run(capsys, "stop", "--socket", socket)[0] == 0
    assert "ZEROCOPY_SOCKET" not in os.environ and not socket.exists()


def unseen_and_random() -> float:
    subprocess.run(["/bin/true"], check=True)
    return random.random()


@pytest.mark.slow("a server of its own")
def test_results_that_may_be_otherwise_are_marked(socket: Path, capsys: Capture) -> None:
    share.load(unseen_and_random)
    share.load(int, "5")
    code, out, _ = run(capsys, "ps")
    assert code == 0
    marks = [line for line in out.splitlines() if line.startswith(("unseen: ", "random: "))]
    assert len(marks) == 2 and all("unseen_and_random" in line for line in marks)
    assert "another program" in marks[0] and "Python" in marks[1]
    with share.options(unseen="refuse"), pytest.raises(zerocopy.UnsupportedError, match="another program"):
        share.load(unseen_and_random)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ps", "--socket", "/dev/null/s"], "zerocopy ps: "),
        (["ps", "--socket", "{public}/s"], "must be yours alone"),
        (["serve", "--max-bytes", "much"], "--max-bytes must be a number of bytes, not 'much'"),
        (["serve", "--idle", "-1", "--print-unit"], "--idle must be"),
    ],
    ids=str,
)
def test_trouble(
    socket: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch,
    arguments: list[str], said: str
) -> None:  # fmt: skip
    public = tmp_path / "public"
    public.mkdir()
    public.chmod(0o755)
    (public / "s").touch()
    for name in ("ZEROCOPY_MAX_BYTES", "ZEROCOPY_SHARE_IDLE"):
        monkeypatch.setenv(name, "1")  # so that it is put back
    code, out, err = run(capsys, *(text.format(public=public) for text in arguments))
    assert (code, out, err.count("\n")) == (2, "", 1) and said in err


@pytest.mark.parametrize(
    "arguments",
    [["unload"], ["unload", "--all", "abcdef"], ["warm"], ["warm", "--by", "torch.absent", "a.pt"],
     ["warm", "--by", "math.pi", "a.pt"], ["serve", "--print-unit", "--systemd"]],
    ids=" ".join,
)  # fmt: skip
def test_command_lines_that_make_no_sense(
    socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pt").touch()
    with pytest.raises(SystemExit) as exit:
        cli.main(arguments)
    assert exit.value.code == 2


def test_serving_in_the_foreground(socket: Path, capsys: Capture) -> None:
    command = [sys.executable, "-m", "zerocopy", "serve", "--max-bytes", "3M", "--idle", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == f"serving on {socket}, as process {process.pid}\n"
            while (found := share.status()) is None:
                assert process.poll() is None
            assert (found["pid"], found["max_bytes"]) == (process.pid, 3 << 20)
            code, out, err = run(capsys, "serve")
            assert (code, out) == (1, "") and f"server {process.pid} serves there already" in err
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert not socket.exists()


def test_unit(socket: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROCOPY_MAX_BYTES", "1G")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "100% mine"))
    code, printed, _ = run(capsys, "serve", "--print-unit", "--socket", tmp_path / '50% "odd" s')
    assert code == 0 and f"ExecStart={sys.executable} -m zerocopy serve\n" in printed
    assert f'"ZEROCOPY_SOCKET={tmp_path}/50%% \\"odd\\" s"' in printed
    assert '"ZEROCOPY_MAX_BYTES=1G"' in printed and '"ZEROCOPY_SHARE_IDLE=inf"' in printed
    assert run(capsys, "serve", "--systemd")[0] == 0
    written = (tmp_path / "100% mine" / "systemd" / "user" / "zerocopy.service").read_text()
    assert f'"ZEROCOPY_SOCKET={socket}"' in written and "[Install]" in written


def described(key: str, name: str, *files: str) -> dict[str, Any]:
    """Return what the server says of a result."""
    return {
        "key": key * 32, "name": name, "files": list(files), "mapped": 10**9, "memory": 300_000, "attached": True,
        "hits": 2, "used": 0.0, "unseen": ["it ran another program " * 10], "random": [], "resident": {},
    }  # fmt: skip


RESULTS = [
    described("a", "torch.serialization.load", "/home/user/models/bert-base/pytorch_model.bin"),
    described("b", "transformers.models.bert.modeling_bert.BertModel.from_pretrained",
              "/home/user/.cache/hub/snapshots/0123456789abcdef/config.json",
              "/home/user/.cache/hub/snapshots/0123456789abcdef/model.safetensors"),
    described("c", "mine", "/x\x1b[31m\n.pt"),
    described("d", "builtins.int"),
]  # fmt: skip


def test_ps_fits_100_columns_and_unload_takes_each_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    found = {
        "entries": RESULTS,
        "pid": 3,
        "started": 0,
        "max_bytes": None,
        "memory": 10,
        "connections": 2,
        "loading": [],
    }
    monkeypatch.setattr(ps, "status", lambda: found)
    monkeypatch.setattr(unload, "status", lambda: found)
    assert ps._list(False) == 0
    out = capsys.readouterr().out
    heading, *lines = out.splitlines()
    assert max(map(len, [heading, *lines])) <= 100
    assert "safetensors +1" in out and "pytorch_model.bin" in out
    places = [heading.index(title) for title in ("KEY", "FUNCTION", "FILE", "MAPPED")]
    for result, line in zip(RESULTS, lines, strict=False):
        removed: list[str] = []
        monkeypatch.setattr(
            unload, "unload", lambda key, removed=removed: removed.append(key) or len(key) == 32
        )
        function, file = line[places[1] : places[2]].strip(), line[places[2] : places[2] + 22].strip()
        for cell in (function, file):
            if cell == "-":
                continue
            removed.clear()
            assert cli.main(["unload", cell]) == 0, cell
            assert removed == [cell, result["key"]], "first the server is asked, then the table"
        assert line.startswith(result["key"][:8] + " ")


@pytest.mark.slow("a server of its own")
def test_server_that_has_other_groups_is_told_of_and_can_be_stopped(
    socket: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    share.load(int, "5")
    other = {**versions.own(), "groups": "1 2 3"}
    monkeypatch.setattr(versions, "own", lambda: other)
    with pytest.raises(share.ServerError, match="groups"):
        share.load(int, "5")
    code, out, err = run(capsys, "ps")
    assert (code, out) == (2, "") and "groups" in err and "zerocopy stop" in err
    assert run(capsys, "stop") == (0, "the model server has ended\n", "")
    assert not socket.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder to another user")
def test_runtime_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZEROCOPY_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert sockets.path().is_relative_to(tmp_path)
    os.chown(tmp_path, 12345, 12345)
    assert not sockets.path().is_relative_to(tmp_path)
