"""Programs that a launcher starts as new processes: they are patched wherever ``zerocopy run`` stands."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from python_programs import PYTHON, RUN, process
from sharing import wait_until
from warm_starts import WARM, Place

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
ACCELERATE = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
PROGRAM = """
import json, os, pathlib, sys
import torch
weight = torch.load("model.pt")["weight"]
import zerocopy
mapped = [file.path for file in zerocopy.memory().files if file.path.endswith("model.pt")]
found = {"arguments": sys.argv[1:], "patched": zerocopy.is_patched(), "mapped": len(mapped)}
pathlib.Path(f"rank{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))
"""
LAUNCHED = pytest.mark.slow("processes of a launcher, each of which imports torch")
PATCHED = {"arguments": ["--epochs", "3"], "patched": True, "mapped": 1}
# Prints how a program sees its own start, and starts itself once more.
STARTS = """
import os, subprocess, sys
print(sys.path, sys.argv, __name__, [name for name in sys.modules if "sitecustom" in name], flush=True)
if sys.argv[1:]:
    subprocess.run([*sys.orig_argv[:1], *sys.argv[1:], __file__], check=True)
"""


def ranks_of(command: list[str], folder: Path) -> list[dict[str, object]]:
    """Run a launcher in a folder, and return what each rank found."""
    (folder / "train.py").write_text(PROGRAM)
    torch.save({"weight": torch.ones(1000)}, folder / "model.pt")
    # Debian builds torch's stores without libuv, and torchrun asks for it unless told otherwise.
    done: subprocess.CompletedProcess[str] = process(
        [sys.executable, *command, "train.py"], "--epochs", 3, cwd=folder, timeout=240, USE_LIBUV="0"
    )
    if "without libuv" in done.stderr:
        pytest.skip(
            "torchrun of this release asks for libuv all the same, without which this torch was built"
        )
    assert done.returncode == 0, done.stderr
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


@pytest.fixture
def torchrun() -> list[str]:
    """Return the command of a launcher that works: that of 1.13 fails on Python 3.11 with any program."""
    api = pytest.importorskip("torch.distributed.elastic.multiprocessing.api")
    if api.Std.from_str("0") is None:
        pytest.skip("torchrun of this release does not run on this Python")
    return TORCHRUN


@LAUNCHED
@pytest.mark.parametrize("is_under_run", [True, False])
def test_torchrun_has_patched_ranks(torchrun: list[str], tmp_path: Path, is_under_run: bool) -> None:
    run = ["-m", "zerocopy", "run"]
    command = [*run, *torchrun] if is_under_run else [*torchrun, *run]
    assert ranks_of(command, tmp_path) == [PATCHED, PATCHED]


@LAUNCHED
def test_torchrun_by_its_name_has_patched_ranks(
    torchrun: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = sysconfig.get_path("scripts")
    if not Path(scripts, "torchrun").exists():
        pytest.skip("this torch comes without the command")
    monkeypatch.setenv("PATH", f"{scripts}{os.pathsep}{os.environ['PATH']}")
    assert ranks_of(["-m", "zerocopy", "run", "torchrun", *torchrun[2:]], tmp_path) == [PATCHED, PATCHED]


def test_command_on_the_path_runs_as_a_script_and_others_are_not_found(tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in (("written", f"#!{sys.executable}\nimport sys; print(sys.argv)\n"), ("compiled", "\0")):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    done = process([*RUN, "written"], "--epochs", cwd=tmp_path, PATH=path)
    assert done.stdout == f"['{commands}/written', '--epochs']\n", done.stderr
    refused = process([*RUN, "compiled"], cwd=tmp_path, PATH=path)
    assert refused.returncode == 2
    assert "No such file" in refused.stderr
    (tmp_path / "written").write_text("print('of the folder')\n")
    assert process([*RUN, "written"], cwd=tmp_path, PATH=path).stdout == "of the folder\n"


@LAUNCHED
def test_accelerate_launch_under_zerocopy_run_has_patched_processes(tmp_path: Path) -> None:
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    assert ranks_of(["-m", "zerocopy", "run", *ACCELERATE], tmp_path) == [PATCHED]


@LAUNCHED
def test_python_that_a_shell_starts_under_run_is_patched(tmp_path: Path) -> None:
    (tmp_path / "launch.py").write_text(
        "import os, sys\nos.system(f'{sys.executable} ' + ' '.join(sys.argv[1:]))\n"
    )
    assert ranks_of(["-m", "zerocopy", "run", "launch.py"], tmp_path) == [PATCHED]


def test_program_that_run_starts_sees_the_path_and_arguments_of_python(tmp_path: Path) -> None:
    (tmp_path / "start.py").write_text(STARTS)
    plain, under = (process(command, "start.py", "-O", cwd=tmp_path) for command in (PYTHON, RUN))
    assert plain.returncode == under.returncode == 0, under.stderr
    assert plain.stdout.splitlines()[1].replace("[]", "['sitecustomize']") == under.stdout.splitlines()[1]


def test_sitecustomize_of_the_user_is_imported_under_run(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('own', __file__)\n")
    (tmp_path / "start.py").write_text(STARTS)
    own = {"PYTHONPATH": str(tmp_path / "own")}
    plain, under = (process(command, "start.py", "-O", cwd=tmp_path, **own) for command in (PYTHON, RUN))
    assert plain.stdout == under.stdout
    assert under.stdout.count("own /") == 2, under.stderr


RANK = """
import os, signal, sys, time, torch, zerocopy
parent = open(f"/proc/{os.getppid()}/cmdline").read()
print(os.getpid(), "zerocopy-warm" in parent, flush=True)
print(sys.argv, __name__, sys.path[0], sorted(os.environ.keys() - {"_"}), zerocopy.is_patched(), flush=True)
os.getsid(0) == os.getpid() or print("in the session", os.getpgrp() == int(os.environ["GROUP"]), flush=True)
sys.argv[1:] == ["end"] or time.sleep(100)
sys.exit(3)
"""
STARTING = """
import os, signal, subprocess, sys
word, is_apart = sys.argv[1], sys.argv[2] == "apart"
os.environ.update(dict.fromkeys(["MASTER_PORT", "TORCHELASTIC_RUN_ID"], str(os.getpid())), GROUP=str(os.getpgrp()))
command, pipe = [sys.executable, "rank.py", word], subprocess.PIPE
rank = subprocess.Popen(command, start_new_session=is_apart, stdout=pipe, text=True)
lines = [rank.stdout.readline().strip() for _ in range(2 if is_apart else 3)]
if word == "terminate": (os.killpg if is_apart else os.kill)(rank.pid, signal.SIGTERM)
if word == "kill": (os.killpg if is_apart else os.kill)(rank.pid, signal.SIGKILL)
print(rank.wait(), *lines, sep=chr(10))
"""


@LAUNCHED
@pytest.mark.parametrize("session", ["apart", "same"])
def test_python_below_a_warm_program_starts_warm_too(tmp_path: Path, session: str) -> None:
    """Those of torchrun lead sessions of their own, and are ended by their group."""
    with Place(tmp_path) as place:
        (tmp_path / "rank.py").write_text(RANK)

        def run(command: list[str], word: str) -> tuple[list[str], list[str]]:
            done = place.run(command, STARTING, word, session)
            assert done.returncode == 0, done.stderr
            code, first, *rest = done.stdout.splitlines()
            return first.split(), [code, *rest]

        words = ("end", "terminate", "kill")
        plain = {word: run(WARM[:2], word)[1] for word in words}
        assert [plain[word][0] for word in words] == ["3", "-15", "-9"]
        for _ in range(5):
            (_, is_warm), _ = run(WARM, "end")
            if is_warm == "True":
                break
            place.wait(2)
        for word in words:
            (pid, is_warm), found = run(WARM, word)
            assert (is_warm, found) == ("True", plain[word])
            wait_until(lambda pid=pid: not Path("/proc", pid).exists())


@LAUNCHED
@pytest.mark.parametrize("settings", [{}, {"ZEROCOPY_DISABLE": "1"}], ids=str)
def test_python_that_does_not_inherit_run_is_plain(tmp_path: Path, settings: dict[str, str]) -> None:
    """Neither an isolated Python nor one that finds zerocopy disabled is patched."""
    isolated = [] if settings else ["-I"]
    (tmp_path / "launch.py").write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, *{isolated}, *sys.argv[1:]])\n"
    )
    (tmp_path / "patched.py").write_text("import torch\nprint(hasattr(torch.load, '__wrapped__'))\n")
    done = process([*RUN, "launch.py"], "patched.py", cwd=tmp_path, **settings)
    assert done.stdout == "False\n", done.stderr
