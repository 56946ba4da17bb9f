"""Tests of every command: help, errors, bad input, pipes that close, and Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import terminals
import torch
from commands import Capture, run_without_torch
from conftest import Child

import zerocopy
from zerocopy import cli
from zerocopy.__main__ import main as entry
from zerocopy.cli import output

# The arguments of each command that reads a file, with FILE for the file.
READING = {
    "bench": ["FILE"],
    "convert": ["FILE", "out.safetensors"],
    "diff": ["FILE", "FILE"],
    "explain": ["FILE"],
    "ls": ["FILE"],
    "map": ["FILE"],
    "plan": ["--ranks", "2", "FILE"],
    "report": ["FILE", "-o", "out.html"],
    "scan": ["FILE"],
    "show": ["FILE", "weight"],
    "verify": ["FILE"],
    "warm": ["FILE"],
}
NAMES = ("a\nb", "\x1b[31mred", "\u202eright to left", "x" * 300, "layer.weight")


def reading(command: str, file: str) -> list[str]:
    """Return the words of a command that reads a file."""
    return [command, *(file if word == "FILE" else word for word in READING[command])]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.save({name: torch.ones(3) for name in NAMES}, tmp_path / "names.pt")
    return tmp_path


def test_help_of_each_command_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    for columns in (80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        for name in ("", *cli.COMMANDS):
            with pytest.raises(SystemExit) as ended:
                cli.main([*([name] if name else []), "--help"])
            lines = capsys.readouterr().out.splitlines()
            assert ended.value.code == 0 and lines[0].startswith(f"usage: zerocopy {name}".rstrip())
            assert max(len(line) for line in lines if not line.startswith("  $ ")) <= columns, name
            assert name not in ("scan", "verify") or {"exit codes", "example"} <= set(
                re.findall("exit codes|example", "\n".join(lines))
            )


def test_unknown_option_prints_the_usage_of_the_command(capsys: Capture) -> None:
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit) as ended:
            cli.main([name, "--no-such-option", *(reading(name, "x.pt")[1:] if name in READING else [])])
        lines = capsys.readouterr().err.splitlines()
        assert ended.value.code == 2 and lines[0].startswith(f"usage: zerocopy {name} ")
        assert lines[-1].startswith(f"zerocopy {name}: error: ")


def bad_inputs(folder: Path) -> dict[str, str]:
    """Make inputs that are not checkpoints; return a word of the message about each by its path."""
    whole = (folder / "names.pt").read_bytes()
    (folder / "empty.pt").touch()
    (folder / "text.pt").write_text("this is a text\nnot a checkpoint")
    (folder / "page.pt").write_text("<!DOCTYPE html><title>Log in</title>")
    (folder / "folder").mkdir()
    (folder / "cut.pt").write_bytes(whole[:-40])
    (folder / "x.index.json").write_text('{"weight_map": {"a": "missing.safetensors"}}')
    os.mkfifo(folder / "fifo")
    return {
        "missing.pt": "No such file",
        "": "'': No such file",
        "a\0b": "null",
        "n" * 300: "name too long",
        "empty.pt": "empty",
        "text.pt": "",
        "page.pt": "HTML",
        "folder": "directory",
        "cut.pt": "",
        "x.index.json": "missing.safetensors",
        "fifo": "",
    }


@pytest.mark.parametrize("command", READING)
def test_bad_input_exits_with_2_and_one_sentence(command: str, here: Path, capfd: Capture) -> None:
    bad = bad_inputs(here)
    before = set(here.iterdir())
    for path, word in bad.items():
        if command == "warm" and path not in ("missing.pt", "n" * 300):
            continue  # the function that loads decides about the rest, in the server
        if command in ("scan", "verify") and path == "cut.pt":
            continue  # a result, not trouble: unsafe or damaged
        code = cli.main(reading(command, path))
        out, err = capfd.readouterr()
        assert (code, out, err.count("\n")) == (2, "", 1), (path, err)
        assert err.startswith(f"zerocopy {command}: ") and word in err, (path, err)
        assert err.isascii() and err.replace("\n", "").isprintable() and r"\\" not in err
    assert set(here.iterdir()) == before


@pytest.mark.parametrize("command", ["explain", "ls", "map", "report", "scan", "show", "verify"])
def test_standard_input_is_read_as_a_file(
    command: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    torch.save({"weight": torch.arange(6.0), "step": 7}, here / "a.pt")
    (here / "text.pt").write_text("this is a text\nnot a checkpoint")

    def run(file: str, content: str) -> tuple[int, str, str]:
        words = [word.replace("out.html", "-") for word in reading(command, file)]
        with (here / content).open("rb") as stream, io.TextIOWrapper(stream) as text:
            monkeypatch.setattr("sys.stdin", text)
            return cli.main(words), *capsys.readouterr()

    code, out, err = run("-", "a.pt")
    assert (code, err) == (0, "") and "/proc/" not in out
    by_path = run("a.pt", "a.pt")[1]
    assert re.sub(r"\ba\.pt\b", "-", by_path) == out
    code, out, err = run("-", "text.pt")
    assert (code, out) == (2, "") and err.startswith(f"zerocopy {command}: -: ") and "/proc/" not in err


@pytest.mark.parametrize("command", ["ls", "map", "scan", "verify", "show", "diff"])
def test_names_of_strangers_stay_harmless_on_a_terminal(command: str, here: Path) -> None:
    torch.save({name: torch.zeros(2) for name in NAMES}, here / "other.pt")
    more = {"show": ["layer.weight"], "diff": ["other.pt"]}.get(command, [])
    for columns in (80, 200):
        code, shown = terminals.run_on_terminal([command, "names.pt", *more], columns)
        # Bold headings, and a line of progress that is cleared.
        text = re.sub(r"\x1b\[[01]m|\r( +\r)?", "", shown)
        assert code in (0, 1) and text.replace("\n", "").isprintable() and "\u202e" not in text
        if command in ("ls", "map"):
            rows = [
                line for line in text.splitlines() if " " in line
            ]  # no names that have lines of their own
            assert max(map(len, rows)) <= columns and "\x1b[1m" in shown
            for plain in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
                shown = terminals.run_on_terminal([command, "names.pt"], columns, **plain)[1]
                assert "\x1b" not in shown


HOSTILE = "\x1b]0;pwn\x07\u202egnp\n\x85FORGED\u2066"


def is_harmless(text: str) -> bool:
    """Return whether a text can neither control a terminal, nor has a line that a name has begun."""
    return text.translate({10: " ", 9: " "}).isprintable() and not re.search(
        "^\\s*FORGED", text, re.MULTILINE
    )


def hostile_calls() -> Iterator[list[str]]:
    """Yield command lines that have a hostile text in each place where a command takes one."""
    file, other, missing, option = (HOSTILE + ending for ending in (".pt", "2.pt", "missing", ""))
    yield [option]
    for command in cli.COMMANDS:
        yield from ([command, f"--{option}"], [command, option], [command, missing, missing])
        yield from ([command, flag, option, missing] for flag in ("--socket", "--by"))  # starts no server
        yield from ([command, flag, option, file] for flag in ("--dtype", "--keep", "--ranks"))
    for command in READING.keys() - {"bench", "warm"}:
        words = {"out.safetensors": f"{option}.safetensors", "weight": option}
        yield [words.get(word, word) for word in reading(command, file)]
    yield from ([*words, file] for words in (["ls", "--tree"], ["ls", "--table"], ["verify", "--files"]))
    yield from (["diff", file, other], ["ls", file, option], ["report", "--compare", other, "-o", "-", file])


def test_hostile_texts_are_visible_in_all_that_each_command_prints(here: Path, capfd: Capture) -> None:
    torch.save({HOSTILE: torch.ones(3), "meta": {HOSTILE: HOSTILE}}, f"{HOSTILE}.pt")
    torch.save({HOSTILE: torch.zeros(3), f"{HOSTILE}2": torch.ones(1)}, f"{HOSTILE}2.pt")
    seen = 0
    for words in hostile_calls():
        if words[0] == "run" and f"{HOSTILE}.pt" in words:
            continue  # Python's own message
        with contextlib.suppress(SystemExit):
            entry(words)
        for text in capfd.readouterr():
            assert is_harmless(text), words
            seen += "gnp" in text
    assert seen > 80 and is_harmless(Path("out.html").read_text()) and "gnp" in Path("out.html").read_text()


def test_hostile_texts_are_visible_in_logs_errors_and_reprs(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "zerocopy")
    file = Path(f"{HOSTILE}.pt")
    torch.save({HOSTILE: torch.ones(3), "x": argparse.Namespace(**{HOSTILE: 1})}, file)
    state = zerocopy.load(file, unknown="stub")
    with zerocopy.open(file, unknown="stub") as checkpoint:
        found = [
            str(checkpoint.tree()),
            repr(checkpoint),
            repr(checkpoint[HOSTILE]),
            checkpoint._repr_html_(),
        ]
    explained, memory = zerocopy.explain(file), zerocopy.memory()
    found += [str(explained), explained.details(), str(memory), memory._repr_html_(), repr(state["x"])]
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(zerocopy.FormatError) as refused:
        zerocopy.load(file)
    found += [str(refused.value), *caplog.messages]
    assert [text for text in found if not is_harmless(text)] == []
    assert sum("gnp" in text for text in found) > 8 and any("gnp" in text for text in caplog.messages)


WRITING = ["ls", "map", "scan", "show", "diff", "verify", "ls --json", "ls --table", "plan --each"]


def test_reader_that_leaves_ends_the_command_quietly(here: Path) -> None:
    name = "layer.{}.weight." + "x" * 60
    torch.save({name.format(i): torch.ones(1) for i in range(3000)}, here / "many.pt")
    torch.save({"layer.0": torch.ones(1)}, here / "other.pt")
    arguments = {
        "plan --each": ["--ranks", "64", "many.pt"],
        "show": ["many.pt", name.format(0)],
        "diff": ["many.pt", "other.pt", "--max", "0"],
    }
    for command in WRITING:
        words = [*command.split(), *arguments.get(command, ["many.pt"])]
        assert terminals.run_into_closed_pipe(words) == (141, ""), command


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_leaves_in_the_middle_ends_a_process_quietly(here: Path, unbuffered: str) -> None:
    """The pipe takes only a part of the output. Python without a buffer ignores that."""
    torch.save({f"{i:0100}": torch.ones(1) for i in range(3000)}, "many.pt")
    with subprocess.Popen(
        [sys.executable, "-m", "zerocopy", "ls", "--json", "many.pt"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    ) as process:
        assert process.stdout and process.stderr
        assert len(process.stdout.read(10)) == 10
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize("command", ["verify", "diff", "convert"])
def test_ctrl_c_ends_the_command_with_130_and_without_a_traceback(
    command: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """SIGINT arrives while the file is being read."""
    for name in ("large.pt", "copy.pt"):
        torch.save({"w": torch.full((1 << 22,), ord(name[0]), dtype=torch.uint8)}, name)
    monkeypatch.setattr(output.Progress, "add", lambda *_: signal.raise_signal(signal.SIGINT))
    more = {"diff": ["copy.pt"], "convert": ["out.safetensors"]}.get(command, [])
    assert entry([command, "large.pt", *more]) == 130
    assert capsys.readouterr() == ("", "") and not (here / "out.safetensors").exists()


INTERRUPTED_IMPORT = """
import signal, sys
class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "zerocopy.cli.reading":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from zerocopy.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("command", ["ls", "report"])
def test_ctrl_c_while_modules_are_imported_ends_the_command_quietly(
    command: str, here: Path, forked: Child
) -> None:
    done = forked(INTERRUPTED_IMPORT, *reading(command, "names.pt"))
    assert (done.returncode, done.stderr, done.stdout) == (130, "", "")


def test_closed_stdout_leaves_the_exit_code(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for command in ("ls", "diff", "scan"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", None)  # as Python does after >&-
            assert entry(reading(command, "names.pt")) == 0
        assert capsys.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore")
def test_torch_does_not_warn_of_what_a_file_has(here: Path, capfd: Capture) -> None:
    try:
        torch.save(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "quantized.pt")
        zerocopy.load("quantized.pt")
    except (RuntimeError, pickle.UnpicklingError):
        pytest.skip("this release of torch has no such tensors, or loads them with trust only")
    for words in (
        ["diff", "quantized.pt"],
        ["report", "--statistics", "-o", "page.html"],
        ["show", "--json"],
    ):
        entry([*words, "quantized.pt", *([""] if words[0] == "show" else [])])
        assert "Warning" not in capfd.readouterr().err
    assert (here / "page.html").stat().st_size > 1000


def test_ctrl_c_that_torch_reports_as_runtime_error_ends_the_command_with_130(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise RuntimeError("KeyboardInterrupt: <EMPTY MESSAGE>")  # torch 1.13 while it is imported

    monkeypatch.setattr(cli, "main", interrupted)
    assert entry(["diff", "names.pt", "names.pt"]) == 130


def test_index_without_shards_is_an_empty_checkpoint(here: Path, capsys: Capture) -> None:
    (here / "e.safetensors.index.json").write_text('{"weight_map":{}}')
    for command in ("ls", "scan", "verify"):
        for form in ([], ["--json"]):
            assert cli.main([command, *form, "e.safetensors.index.json"]) == 0


def test_ls_without_arguments_requires_only_the_file(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        cli.main(["ls"])
    assert capsys.readouterr().err.endswith("required: FILE\n")


def test_folder_of_distributed_checkpoint_is_named_as_such_by_map(here: Path, capsys: Capture) -> None:
    (here / ".metadata").write_bytes(b"")
    assert cli.main(["map", "."]) == 2
    assert "is a folder of torch.distributed.checkpoint" in capsys.readouterr().err


def test_command_without_torch_exits_with_2_and_says_what_to_install(here: Path) -> None:
    commands = [reading(each, "names.pt") for each in ("show", "plan", "bench", "convert")]
    commands[-1][1:1] = ["--dtype", "bf16"]  # without it no byte changes, which takes no torch
    for (command, *_), done in zip(commands, run_without_torch(*commands), strict=True):
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert done.err.startswith(f"zerocopy {command} needs PyTorch")
        assert done.err.endswith("or on Debian apt install python3-torch\n")


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="there is no /dev/full")
@pytest.mark.parametrize("is_buffered", [True, False])
def test_a_full_device_is_trouble_in_one_line(here: Path, is_buffered: bool) -> None:
    for words in (
        "--help",
        "--version",
        "ls --help",
        "scan names.pt",
        "verify --json names.pt",
        "ls names.pt",
        "show names.pt layer.weight",
        "report names.pt -o -",
    ):
        found = terminals.run_into_full_device(words.split(), is_buffered)
        assert found == (2, "zerocopy: standard output: No space left on device\n"), words
