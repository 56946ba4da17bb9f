"""Tests of every command: help, errors, bad input, pipes that close, and Ctrl-C."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import terminals
import torch

import zerocopy
from zerocopy import cli
from zerocopy.__main__ import main as entry

ZEROCOPY = [sys.executable, "-m", "zerocopy"]
# The arguments of each command that reads a file, with FILE for the file.
READING = {
    "bench": ["FILE"],
    "convert": ["FILE", "out.safetensors"],
    "diff": ["FILE", "FILE"],
    "ls": ["FILE"],
    "map": ["FILE"],
    "plan": ["--ranks", "2", "FILE"],
    "report": ["FILE", "-o", "out.html"],
    "scan": ["FILE"],
    "show": ["FILE", "weight"],
    "verify": ["FILE"],
    "warm": ["--socket", "s", "FILE"],
}
NAMES = ("a\nb", "\x1b[31mred", "\u202eright to left", "x" * 300, "layer.weight")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.save({name: torch.ones(3) for name in NAMES}, tmp_path / "names.pt")
    return tmp_path


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("name", ["", *cli.COMMANDS])
def test_help_fits_the_terminal(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as ended:
        cli.main([*([name] if name else []), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0 and lines[0].startswith(f"usage: zerocopy {name}".rstrip())
    assert max(len(line) for line in lines if not line.startswith("  $ ")) <= columns


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_unknown_option_prints_the_usage_of_the_command(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [argument.replace("FILE", "x.pt") for argument in READING.get(name, [])]
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--no-such-option", *given])
    lines = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and lines[0].startswith(f"usage: zerocopy {name} ")
    assert lines[-1].startswith(f"zerocopy {name}: error: ")


@pytest.mark.parametrize("kind", ["missing", "empty", "text", "folder", "cut", "null byte", "long name"])
@pytest.mark.parametrize("command", READING)
def test_bad_input_exits_with_2_and_one_sentence(
    command: str, kind: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if command == "warm" and kind not in ("missing", "long name"):
        pytest.skip("the function that loads decides about the rest, in the server")
    if (command, kind) in (("scan", "cut"), ("verify", "cut")):
        pytest.skip("a result, not trouble: unsafe or damaged")
    path = {"null byte": "a\0b", "long name": "n" * 300}.get(kind, "bad.pt")
    if kind == "empty":
        Path(path).touch()
    elif kind == "text":
        Path(path).write_text("this is a text\nnot a checkpoint")
    elif kind == "folder":
        Path(path).mkdir()
    elif kind == "cut":
        Path(path).write_bytes(Path("names.pt").read_bytes()[:-40])
    before = set(here.iterdir())
    code = cli.main([command, *(path if argument == "FILE" else argument for argument in READING[command])])
    out, err = capfd.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith(f"zerocopy {command}: "), err
    assert err.isascii() and err.replace("\n", "").isprintable() and r"\\" not in err
    assert set(here.iterdir()) == before


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("command", ["ls", "map", "scan", "verify", "show", "diff"])
def test_names_of_strangers_stay_harmless_on_a_terminal(command: str, columns: int, here: Path) -> None:
    torch.save({name: torch.zeros(2) for name in NAMES}, here / "other.pt")
    more = {"show": ["layer.weight"], "diff": ["other.pt"]}.get(command, [])
    code, shown = terminals.run_on_terminal([*ZEROCOPY, command, "names.pt", *more], columns)
    text = re.sub(
        r"\x1b\[[01]m|\r( +\r)?", "", shown
    )  # bold headings, and a line of progress that is cleared
    assert code in (0, 1) and text.replace("\n", "").isprintable() and "\u202e" not in text
    if command in ("ls", "map"):
        assert max(map(len, text.splitlines())) <= columns


@pytest.mark.parametrize("command", ["ls", "map"])
def test_no_color_leaves_the_terminal_plain(command: str, here: Path) -> None:
    assert "\x1b[1m" in terminals.run_on_terminal([*ZEROCOPY, command, "names.pt"], 80)[1]
    assert "\x1b" not in terminals.run_on_terminal([*ZEROCOPY, command, "names.pt"], 80, NO_COLOR="1")[1]
    assert "\x1b" not in terminals.run_on_terminal([*ZEROCOPY, command, "names.pt"], 80, TERM="dumb")[1]


@pytest.mark.parametrize(
    "command", ["ls", "map", "scan", "show", "diff", "verify", "ls --json", "env", "plan --each"]
)
def test_head_1_ends_the_command_quietly(command: str, here: Path) -> None:
    torch.save({f"layer.{i}.weight.{'x' * 60}": torch.ones(1) for i in range(3000)}, here / "many.pt")
    torch.save({"layer.0": torch.ones(1)}, here / "other.pt")
    files = {
        "plan --each": "--ranks 64 many.pt",
        "show": "many.pt layer.0.weight." + "x" * 60,
        "diff": "many.pt other.pt --max 0",
        "env": "",
    }
    line = f"{sys.executable} -m zerocopy {command} {files.get(command, 'many.pt')} | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=180)
    assert done.stderr == "" and done.stdout.count("\n") == 1


@pytest.mark.parametrize("command", ["verify", "diff", "convert"])
def test_ctrl_c_ends_the_command_with_130_and_without_a_traceback(command: str, here: Path) -> None:
    """SIGINT arrives while the file is being read: a FIFO-like pause is not possible, so the file is large."""
    torch.save({"w": torch.zeros(1 << 28, dtype=torch.uint8)}, here / "large.pt")
    arguments = {
        "verify": ["large.pt"],
        "diff": ["large.pt", "copy.pt"],
        "convert": ["large.pt", "out.safetensors"],
    }
    if command == "diff":
        os.link(here / "large.pt", here / "hard.pt")
        (here / "copy.pt").write_bytes((here / "large.pt").read_bytes())
    script = (
        "import signal, sys, threading\n"
        "from zerocopy.cli import main, output\n"
        "add = output.Progress.add\n"
        "def interrupted(self, amount):\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "output.Progress.add = interrupted\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, command, *arguments[command]],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert (done.returncode, done.stderr, done.stdout) == (130, "", "")
    assert not (here / "out.safetensors").exists()


@pytest.mark.parametrize("command", ["ls", "report"])
def test_ctrl_c_while_modules_are_imported_ends_the_command_quietly(command: str, here: Path) -> None:
    program = """
import signal, sys
class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "zerocopy.cli.contents":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from zerocopy.__main__ import main
sys.exit(main())
"""
    arguments = [word.replace("FILE", "names.pt") for word in READING[command]]
    done = subprocess.run(
        [sys.executable, "-c", program, command, *arguments], capture_output=True, text=True, timeout=180
    )
    assert (done.returncode, done.stderr, done.stdout) == (130, "", "")


@pytest.mark.parametrize("command", ["ls", "diff", "scan"])
def test_closed_stdout_leaves_the_exit_code(
    command: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as Python does after >&-
    assert entry([command, *(["names.pt"] * len(READING[command]))]) == 0
    monkeypatch.undo()
    assert capsys.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore")
def test_torch_does_not_warn_of_what_a_file_has(here: Path) -> None:
    try:
        torch.save(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "quantized.pt")
        zerocopy.load("quantized.pt")
    except (RuntimeError, pickle.UnpicklingError):
        pytest.skip("this release of torch has no such tensors, or loads them with trust only")
    for words in (["diff", "quantized.pt"], ["report", "--statistics", "-o", "page.html"], ["show"]):
        done = subprocess.run([*ZEROCOPY, *words, "quantized.pt"], capture_output=True, text=True)
        assert "Warning" not in done.stderr
    assert (here / "page.html").stat().st_size > 1000


def test_ctrl_c_that_torch_reports_as_runtime_error_ends_the_command_with_130(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise RuntimeError("KeyboardInterrupt: <EMPTY MESSAGE>")  # torch 1.13 while it is imported

    monkeypatch.setattr(cli, "main", interrupted)
    assert entry(["diff", "names.pt", "names.pt"]) == 130


@pytest.mark.parametrize("command", ["ls", "scan", "verify"])
def test_index_without_shards_is_an_empty_checkpoint(
    command: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "e.safetensors.index.json").write_text('{"weight_map":{}}')
    for form in ([], ["--json"]):
        assert cli.main([command, *form, "e.safetensors.index.json"]) == 0


def test_ls_without_arguments_requires_only_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["ls"])
    assert capsys.readouterr().err.endswith("required: FILE\n")


def test_folder_of_distributed_checkpoint_is_named_as_such_by_map(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / ".metadata").write_bytes(b"")
    assert cli.main(["map", "."]) == 2
    assert "is a folder of torch.distributed.checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["show", "convert", "plan", "bench"])
def test_command_without_torch_exits_with_2_and_says_what_to_install(command: str, here: Path) -> None:
    program = """
import sys
class WithoutTorch:
    def find_spec(self, name, path, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name=name)
sys.meta_path.insert(0, WithoutTorch())
from zerocopy.__main__ import main
sys.exit(main())
"""
    arguments = [word.replace("FILE", "names.pt") for word in READING[command]]
    done = subprocess.run(
        [sys.executable, "-c", program, command, *arguments], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"zerocopy {command} needs PyTorch")
    assert line.endswith("or on Debian apt install python3-torch")


def test_run_without_torch_leaves_the_exception_to_the_program(here: Path) -> None:
    (here / "program.py").write_text("raise ModuleNotFoundError('mine', name='torch')")
    done = subprocess.run([*ZEROCOPY, "run", "program.py"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: mine"


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["ls", "--help"], ["scan", "names.pt"], ["verify", "--json", "names.pt"],
     ["ls", "names.pt"], ["show", "names.pt", "layer.weight"], ["report", "names.pt", "-o", "-"]],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("buffered", [True, False])
def test_a_full_device_is_trouble_in_one_line(here: Path, arguments: list[str], buffered: bool) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*ZEROCOPY, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, "zerocopy: standard output: No space left on device\n")
