"""``zerocopy run PROGRAM`` against ``python PROGRAM``: the program must not see a difference, except for its loads."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sysconfig
import textwrap
import zipfile
from pathlib import Path

import pytest
import torch
from commands import Capture
from conftest import Child
from python_programs import PYTHON, RUN, process

import zerocopy
from zerocopy.__main__ import main

# Prints everything by which a program can see how it was started, while it runs and when it ends.
LOOK_AROUND = '''
"""Docstring of the program."""
import __main__, atexit, os, pickle, sys

class Mine:
    def __del__(self):
        print("finalized", kept)

kept, mine = ["a global"], Mine()

@atexit.register
def at_exit():
    print("at exit", kept, type(pickle.loads(pickle.dumps(mine))) is Mine, sys.modules["__main__"] is __main__)

spec = __spec__ and (__spec__.name, __spec__.origin, __spec__.parent)
print(sys.argv, sys.path, os.getcwd(), vars(__main__) is globals(), type(__builtins__), sep="\\n")
print(sorted(globals()), __name__, __package__, __doc__, type(__loader__), spec, sep="\\n")
print(__file__, __cached__)
if __file__ != "<stdin>":
    print(__loader__.get_source(__spec__.name if __spec__ else __name__)[:9])
'''

# Prints whether loads of the program, and of a process that it starts, come from a mapping of the file.
LOAD = """
import multiprocessing, sys
from torch import load

def served(path):
    loaded = load(path)
    address = loaded["weight"].data_ptr()
    lines = [line for line in open("/proc/self/maps") if line.endswith(path + "\\n")]
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    return Answer(any(start <= address < end for start, end in ranges))

class Answer:
    def __init__(self, value):
        self.value = value

if __name__ == "__main__":
    print("here", served(sys.argv[1]).value)
    for method in sys.argv[2:]:
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.apply(served, sys.argv[1:2]).value)
"""


def assert_same_as_python(*arguments: object, cwd: Path, command: list[str] = RUN, **environment: str) -> str:
    """Run under Python and under zerocopy; return what the program said on stderr."""
    plain, patched = (process(words, *arguments, cwd=cwd, **environment) for words in (PYTHON, command))
    assert (patched.returncode, patched.stdout, patched.stderr) == (
        plain.returncode,
        plain.stdout,
        plain.stderr,
    )
    return plain.stderr


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Make a folder with programs of every kind."""
    package = tmp_path / "package"
    package.mkdir()
    for path in (tmp_path / "program.py", package / "__main__.py", package / "module.py"):
        path.write_text(textwrap.dedent(LOOK_AROUND))
    (package / "__init__.py").touch()
    (package / "link").symlink_to("../program.py")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", textwrap.dedent(LOOK_AROUND))
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["program.py", "-m", "--", "--help", "-", "", "two words"],
        ["package/../program.py"],
        ["package/link", "--version"],  # its folder is that of the file it leads to
        ["package", "-m"],
        ["archive.zip", "x"],
        ["-m", "package", "-m", "x", "--", "y"],
        ["-m", "package.module", "--help"],
    ],
    ids=" ".join,
)
def test_program_under_run_sees_the_same_as_under_python(place: Path, arguments: list[str]) -> None:
    assert assert_same_as_python(*arguments, cwd=place) == ""


def test_program_on_standard_input_sees_the_same_as_under_python(place: Path) -> None:
    for end in ("print(input())", "raise SystemExit(3)", "x = (", "1 / 0"):
        text = textwrap.dedent(LOOK_AROUND) + end + "\n"
        plain, run, warm = (
            subprocess.run([*words, "-", "x"], input=text, capture_output=True, text=True, cwd=place)
            for words in (PYTHON, RUN, [*RUN, "--warm"])
        )
        for done in (run, warm):
            assert (done.returncode, done.stdout, done.stderr) == (
                plain.returncode,
                plain.stdout,
                plain.stderr,
            )


def test_safe_path(place: Path) -> None:
    assert_same_as_python("package", cwd=place, PYTHONSAFEPATH="1")


def test_console_script(place: Path) -> None:
    script = shutil.which("zerocopy", path=sysconfig.get_path("scripts"))
    assert script is not None
    assert_same_as_python("program.py", "--version", cwd=place, command=[script, "run"])


ENDINGS = {
    "exit code": "import sys; sys.exit(7)",
    "exit message": "raise SystemExit('that is all')",
    "exception": """
        class Mine:
            def __del__(self):
                print("finalized", kept)
        kept, mine = ["a global"], Mine()
        def fail():
            local = Mine()
            raise ValueError("mine")
        try:
            fail()
        except ValueError as error:
            raise KeyError("also mine") from error
        """,
    "syntax": "x = (",
    "closed stdout": "import sys; print('last'); sys.stdout.close()",
    "closed stdout, exit code": "import sys; sys.stdout.close(); sys.exit(3)",
    "interrupt": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
    "excepthook": """
        import sys
        def excepthook(kind, value, traceback):
            print("caught", kind, value, traceback.tb_frame.f_code.co_name, traceback.tb_next)
        sys.excepthook = excepthook
        raise ValueError("mine")
        """,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_how_the_program_ends(tmp_path: Path, ending: str) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(ENDINGS[ending]))
    said = assert_same_as_python("program.py", cwd=tmp_path)
    if ending == "interrupt":
        assert "KeyboardInterrupt" in said
    if ending == "exception":
        assert_same_as_python("-m", "program", cwd=tmp_path)


@pytest.mark.parametrize("arguments", [["-m", "missing"], ["empty"]], ids=" ".join)
def test_no_such_module(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert assert_same_as_python(*arguments, cwd=tmp_path)


def test_no_such_script(tmp_path: Path) -> None:
    plain, patched = (process(command, "missing.py", cwd=tmp_path) for command in (PYTHON, RUN))
    assert plain.returncode == patched.returncode == 2
    assert patched.stderr.partition(": ")[2] == plain.stderr.partition(": ")[2]
    assert patched.stderr.startswith("zerocopy run: can't open file")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "usage: zerocopy"),
        (["missing"], 2, "invalid choice: 'missing'"),
        (["run"], 2, "required: PROGRAM"),
        (["run", "--missing", "program.py"], 2, "unrecognized arguments: --missing"),
        (["run", "--help"], 0, "usage: zerocopy run"),
        (["--version"], 0, f"zerocopy {zerocopy.__version__}\n"),
    ],
    ids=str,
)
def test_command_line(capsys: Capture, arguments: list[str], code: int, said: str) -> None:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == code
    assert said in capsys.readouterr()[1 if code else 0]


@pytest.fixture
def run(forked: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Child:
    """Run "zerocopy run" with arguments in a process that has torch already."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(
        forked, "import sys; from zerocopy.__main__ import main; sys.exit(main())", "run"
    )


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Make programs and checkpoints."""
    (tmp_path / "program.py").write_text(LOAD)
    (tmp_path / "reported.py").write_text(REPORTED)
    torch.save({"weight": torch.arange(1000.0)}, tmp_path / "model.pt")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 3)), str(tmp_path / "script.pt"))
    return tmp_path


def served(*places: str, answer: bool = True) -> list[str]:
    return [word for place in ("here", *places) for word in (place, str(answer))]


def test_loads_are_served_also_in_processes_that_a_program_forks(checkpoints: Path) -> None:
    """The program imports torch itself: run does not do so for a program without torch."""
    program = "import sys; print('torch' in sys.modules)\n" + LOAD
    (checkpoints / "program.py").write_text(program)
    done = process([*RUN, "-v"], "program.py", "model.pt", "fork", cwd=checkpoints)
    assert done.stdout.split() == ["False", *served("fork")], done.stderr
    assert zerocopy_lines(done.stderr)[-1] == "zerocopy: 1 torch.load: 4.0 kB mapped"


@pytest.mark.slow("three methods of multiprocessing, whose processes import torch")
def test_loads_are_served_in_processes_of_every_method(checkpoints: Path) -> None:
    methods = ("fork", "spawn", "forkserver")
    done = process(RUN, "-m", "program", "model.pt", *methods, cwd=checkpoints)
    assert done.stdout.split() == served(*methods), done.stderr


def test_module_is_served_and_disabled_is_not(checkpoints: Path, run: Child) -> None:
    assert run("-m", "program", "model.pt").stdout.split() == served()
    done = run("program.py", "model.pt", ZEROCOPY_DISABLE="1")
    assert done.stdout.split() == served(answer=False), done.stderr


@pytest.mark.slow("a process that spawn starts, which imports torch")
def test_disabled_reaches_processes_that_are_spawned(checkpoints: Path) -> None:
    done = process(RUN, "program.py", "model.pt", "spawn", cwd=checkpoints, ZEROCOPY_DISABLE="1")
    assert done.stdout.split() == served("spawn", answer=False), done.stderr


@pytest.mark.slow("imports torch under python and under run")
def test_variable_that_the_program_sets_before_its_import_reaches_torch(tmp_path: Path) -> None:
    (tmp_path / "threads.py").write_text(
        "import os; os.environ['OMP_NUM_THREADS'] = '1'\n"
        "import torch; print(torch.get_num_threads(), torch.__spec__.loader.exec_module.__func__.__name__)\n"
    )
    plain, run = (process(command, "threads.py", cwd=tmp_path) for command in (PYTHON, RUN))
    assert run.stdout == plain.stdout == "1 exec_module\n", run.stderr


def test_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('broken on purpose')")
    (tmp_path / "retry.py").write_text(
        "for _ in range(2):\n    try: import torch\n    except ImportError as error: print(error)\n"
    )
    plain, run = (process(command, "retry.py", cwd=tmp_path) for command in (PYTHON, RUN))
    assert run.stdout == plain.stdout == "broken on purpose\n" * 2, run.stderr


def test_module_of_the_programs_own_that_is_called_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("VALUE = 3\n")
    (tmp_path / "program.py").write_text("import torch\nprint(torch.VALUE)\n")
    done = process(RUN, "program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


# ------------------------------------------------------------------------------------------- run -v

REPORTED = """
import contextlib, os, sys, torch

for name in sys.argv[1:]:
    with contextlib.suppress(Exception):
        torch.load(name, weights_only=False)
if os.fork() == 0:
    sys.exit()
os.wait()
"""
LOADED = ["reported.py", "model.pt", "model.pt", "script.pt", "missing.pt"]
SUMMARY = "zerocopy: 4 torch.load: 8.0 kB mapped, 1 left to torch (TorchScript archive), 1 failed"


def zerocopy_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("zerocopy: ")]


@pytest.mark.parametrize(
    ("options", "environment"), [(["-v"], {}), ([], {"ZEROCOPY_LOG_LEVEL": "info"})], ids=["-v", "variable"]
)
def test_run_verbose_prints_one_summary_at_the_end(
    checkpoints: Path, run: Child, options: list[str], environment: dict[str, str]
) -> None:
    done = run(*options, *LOADED, **environment)
    lines = zerocopy_lines(done.stderr)
    assert done.returncode == 0 and lines[-1] == SUMMARY
    assert [line for line in lines if "torch.load" in line] == [SUMMARY]


def test_run_very_verbose_says_why_a_file_goes_to_torch(checkpoints: Path, run: Child) -> None:
    lines = zerocopy_lines(run("-vv", *LOADED).stderr)
    assert any("script.pt goes to torch.load" in line for line in lines)


def test_run_without_a_wish_prints_nothing(checkpoints: Path, run: Child) -> None:
    assert zerocopy_lines(run(*LOADED).stderr) == []


@pytest.mark.slow("zerocopy reads the variable when it is imported, so torch is imported again")
def test_log_level_of_a_patched_program_adds_the_summary(checkpoints: Path) -> None:
    (checkpoints / "patched.py").write_text("import zerocopy\nzerocopy.patch()\n" + REPORTED)
    arguments = ["patched.py", *LOADED[1:]]
    done = process(PYTHON, *arguments, cwd=checkpoints, ZEROCOPY_LOG_LEVEL="INFO")
    assert zerocopy_lines(done.stderr)[-1] == SUMMARY


def test_program_with_its_own_logging_gets_each_line_once(checkpoints: Path, run: Child) -> None:
    program = checkpoints / "logging_program.py"
    program.write_text("import logging\nlogging.basicConfig(format='mine: %(message)s')\n" + REPORTED)
    done = run("-v", "logging_program.py", *LOADED[1:])
    assert done.stderr.count(SUMMARY.removeprefix("zerocopy: ")) == 1
    assert "mine: 4 torch.load" in done.stderr


def test_log_level_that_is_none_exits_with_2_and_names_the_levels(checkpoints: Path, run: Child) -> None:
    done = run(*LOADED, ZEROCOPY_LOG_LEVEL="loud")
    assert done.returncode == 2
    assert done.stderr == (
        "zerocopy run: ZEROCOPY_LOG_LEVEL must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL, not 'loud'\n"
    )


@pytest.mark.slow("imports torch in each process")
@pytest.mark.parametrize(
    "first",
    [
        "import zerocopy; zerocopy.load('model.pt')",
        "import zerocopy; zerocopy.is_patched()",
        "import zerocopy.distributed",
        "from zerocopy import patched",
    ],
)
def test_program_may_use_zerocopy_before_it_imports_torch(tmp_path: Path, first: str) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "model.pt")
    (tmp_path / "program.py").write_text(f"{first}\nimport torch, zerocopy\nprint(zerocopy.is_patched())\n")
    done = process(RUN, "program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
