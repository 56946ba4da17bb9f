# ruff: noqa: E501 - each program is on one line
"""Small programs under ``python`` and under ``zerocopy run --warm``: output and endings must be the same."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from sharing import wait_until
from warm_starts import PYTHON, WARM, Place

# The modules that the cases use, so that one fork server has them for all cases.
IMPORTS = """
import atexit, contextlib, ctypes, inspect, io, json, logging, multiprocessing, multiprocessing.connection
import multiprocessing.forkserver, multiprocessing.pool, multiprocessing.popen_fork, multiprocessing.popen_forkserver
import multiprocessing.popen_spawn_posix, multiprocessing.queues, multiprocessing.resource_tracker
import multiprocessing.spawn, multiprocessing.synchronize, os, pickle, random, re, resource, runpy, signal, subprocess
import sys, tempfile, textwrap, threading, time, traceback, uuid, warnings
"""

CASES = {
    "arguments": "import sys; print(sys.argv, sys.path, __name__, __file__, __doc__, __spec__, __package__)",
    "exit_code": "import sys; print('out'); sys.exit(7)",
    "exit_message": "raise SystemExit('that is all')",
    "exit_os": "import os; print('lost'); os._exit(9)",
    "exception": "def fail():\n    return {}['x']\nfail()",
    "excepthook": "import sys\nsys.excepthook = lambda *a: print('hook', a[1], a[2].tb_next)\nraise ValueError('mine')",
    "syntax_error": "x = (",
    "signal_int": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
    "signal_term": "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
    "signal_kill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "signal_segv": "import ctypes; ctypes.string_at(0)",
    "signal_handlers": "import signal; print({s.name: str(signal.getsignal(s)).split(' at ')[0] for s in signal.Signals})",
    "signal_mask": "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))",
    "finalizer": "class A:\n    def __del__(self): print('gone', self.name)\na, b = A(), A()\na.name, b.name = 'a', 'b'\nb.itself = b",
    "order_of_children": "import multiprocessing as m, time\ndef f(): time.sleep(.3); print('child')\nm.Process(target=f).start(); print('main')",
    "stream_of_c": "import ctypes, sys; ctypes.CDLL(None).printf(b'by C'); sys.exit(5)",
    "streams": """
        import sys
        for s in (sys.stdin, sys.stdout, sys.stderr):
            print(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.fileno(), s.isatty(),
                  s.seekable(), s.buffer.name, s.buffer.raw.mode, s.newlines, s is getattr(sys, f"__{s.name[1:-1]}__"))
        """,
    "input": "print(input('name? '), input())",
    "surrogates": "import sys; print(ascii(sys.argv[1:])); print('\\udc80')",
    "no_output_to": "import os; os.close(1); print('x')",
    "process": """
        import os
        print(os.getpgid(0) == os.getpgid(os.getpid()), os.getsid(0), os.getcwd(), os.getuid(), os.getgroups())
        print(os.nice(0), os.umask(0), sorted(os.sched_getaffinity(0)))
        """,
    "group": "import os; print(os.getpgrp() == int(os.environ['THE_GROUP']))",
    "limits": "import resource; print([resource.getrlimit(n) for n in range(16)])",
    "descriptors": "import os; print(sorted(os.listdir('/proc/self/fd')), os.open('/', 0))",
    # ZEROCOPY_RUN and PYTHONPATH reach the processes that a program starts.
    "environment": "import os; print(sorted((k, v) for k, v in os.environ.items() if k not in ('_', 'ZEROCOPY_RUN', 'PYTHONPATH')))",
    "environment_of_c": "import re, subprocess; print(sorted(line for line in subprocess.getoutput('env').splitlines() if not re.match('_=|ZEROCOPY_RUN|PYTHONPATH', line)))",
    "environment_in_child": "import os, subprocess; os.environ['ADDED'] = 'é'; print(subprocess.getoutput('echo $ADDED $HOME'))",
    "flags": "import sys; print(sys.flags, sys.warnoptions, sys._xoptions, sys.executable, sys.prefix, sys.base_prefix)",
    "no stdout": "import sys; print(1); sys.stdout.flush(); del sys.stdout",
    "subprocess": "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'import sys; print(sys.argv)', 'x'], capture_output=True))",
    "fork": "import os\nr, w = os.pipe()\nif os.fork() == 0:\n    os.write(w, b'child'); os._exit(4)\nprint(os.read(r, 9), os.wait()[1])",
    "exec": "import os, sys; os.execv('/bin/echo', ['echo', 'replaced'])",
    "threads": "import threading, time\nt = threading.Thread(target=lambda: (time.sleep(.1), print('late')))\nt.start()\nprint(threading.main_thread().name, threading.active_count())",
    "thread_exception": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='T')\nt.start(); t.join(); print('on')",
    "daemon_thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nprint('end')",
    "atexit": "import atexit\natexit.register(print, 'last')\natexit.register(print, 'first')\nraise ValueError('then')",
    "main_module": "import sys, __main__\nprint(__main__.__dict__ is globals(), sorted(globals()), __main__)",
    "fork_process": "import multiprocessing as m\nif __name__ == '__main__':\n    with m.get_context('fork').Pool(2) as p: print(p.map(abs, [-1, -2]), m.current_process().name)",
    "spawn_process": "import multiprocessing as m\ndef f(x): return (x, __name__)\nif __name__ == '__main__':\n    with m.get_context('spawn').Pool(1) as p: print(p.map(f, [1, 2]))",
    "forkserver_process": "import multiprocessing as m\ndef f(x): return (x, __name__)\nif __name__ == '__main__':\n    with m.get_context('forkserver').Pool(1) as p: print(p.map(f, [1, 2]))",
    "numbers_of_processes": """
        import logging, multiprocessing as m, os, sys, threading
        def same(): return os.getpid() == threading.get_native_id() == m.current_process().pid == int(os.readlink("/proc/self"))
        def f(q): q.put((same(), os.getppid() == m.parent_process().pid, m.current_process().name))
        if __name__ == "__main__":
            q = m.get_context("fork").Queue(); p = m.get_context("fork").Process(target=f, args=(q,)); p.start(); print(q.get()); p.join()
            logging.basicConfig(format="%(process)d"); print(same(), p.pid != os.getpid(), logging.makeLogRecord({}).process is None)
            print(logging.LogRecord("a", 1, "b", 2, "c", (), None).process == os.getpid(), flush=True)
            print(threading.main_thread().native_id == os.getpid(), flush=True)
            if os.fork() == 0: print("forked", same() or os.getpid() == os.getpgrp(), flush=True); os._exit(0)
            os.wait()
        """,
    "random_in_forks": "import os, random\nr, w = os.pipe()\nif os.fork() == 0:\n    os.write(w, str(random.random()).encode()); os._exit(0)\nos.wait(); print(float(os.read(r, 99)) != random.random())",
    "exit_after_stdout_is_replaced": "import io, sys; sys.stdout = io.StringIO(); print('kept'); sys.exit(5)",
    "stdout_full": "import os, sys\nf = os.open('/dev/full', os.O_WRONLY); os.dup2(f, 1); print('lost'); sys.exit(4)",
    "own_module": "import own; print(own.VALUE, own.__file__)",
    "import_error": "import not_there_at_all",
    "deleted_folder": "import os, tempfile\nd = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)\ntry: os.getcwd()\nexcept FileNotFoundError as e: print(e)",
    "new_session": "import os; pid = os.fork()\nif pid == 0:\n    os.setsid(); print('own session', os.getsid(0) == os.getpid(), flush=True); os._exit(0)\nos.wait()",
    "children_time": "import resource; print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime)",
}
# Every part of a start and an end once.
FAST = [
    "arguments",
    "exit_code",
    "exit_message",
    "exit_os",
    "exception",
    "excepthook",
    "syntax_error",
    "signal_int",
    "signal_kill",
    "signal_handlers",
    "signal_mask",
    "finalizer",
    "streams",
    "input",
    "surrogates",
    "no_output_to",
    "process",
    "group",
    "limits",
    "descriptors",
    "environment",
    "environment_of_c",
    "flags",
    "fork",
    "threads",
    "daemon_thread",
    "atexit",
    "main_module",
    "numbers_of_processes",
    "stdout_full",
    "own_module",
    "import_error",
    "deleted_folder",
    "random_in_forks",
    "exit_after_stdout_is_replaced",
]
OTHERS = pytest.mark.slow("more programs that start warm")
STDIN = "first line\nsecond line\nc\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("warm")
    (folder / "own.py").write_text("VALUE = 3\n")
    with Place(folder) as place:
        place.prepare(IMPORTS)
        yield place


@pytest.mark.parametrize("case", [pytest.param(case, marks=() if case in FAST else OTHERS) for case in CASES])
def test_warm_program_matches_python(place: Place, case: str) -> None:
    text = textwrap.dedent(CASES[case])
    place.assert_same_and_warm(text, "--", "-m", "two words", "\udc80é", stdin=STDIN)


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONUNBUFFERED": "1", "TZ": "Asia/Tokyo", "MINE": "no part of the key"},
        pytest.param({"PYTHONHASHSEED": "7"}, marks=OTHERS),
        pytest.param({"PYTHONWARNINGS": "error"}, marks=OTHERS),
        pytest.param({"PYTHONDONTWRITEBYTECODE": "1", "PYTHONDEVMODE": "1"}, marks=OTHERS),
        pytest.param({"PYTHONPATH": "/usr/share"}, marks=OTHERS),
        pytest.param({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, marks=OTHERS),
    ],
    ids=lambda variables: ",".join(variables),
)
def test_variable_in_the_environment_is_seen_as_by_python(place: Place, variables: dict[str, str]) -> None:
    text = """
    import os, sys, time, warnings, locale
    print(sys.flags, sys.path, hash("x") if sys.flags.hash_randomization == 0 else 0, time.tzname, sys.stdout.encoding)
    print(sys.stdout.errors, sys.stdout.write_through, os.environ.get("MINE"), warnings.filters, locale.getlocale())
    if not os.environ.get("PYTHONHASHSEED"): sys.exit(3)
    print(hash("x"))
    """
    program = textwrap.dedent(text)
    place.assert_same(program, **variables)
    place.wait()
    place.assert_same_and_warm(program, **variables)


def test_settings_of_the_shell_are_seen_as_by_python(place: Place) -> None:
    text = """
    import os, resource, signal
    open("made", "w").close()
    print(oct(os.stat("made").st_mode), oct(os.umask(0)), [resource.getrlimit(n) for n in range(16)])
    print(signal.getsignal(signal.SIGUSR1), os.nice(0)); os.remove("made")
    """
    for stack in ("", "ulimit -s 4096; "):  # which libraries see when they are loaded
        setting = f"umask 027; ulimit -n 300; ulimit -c 0; {stack}trap '' USR1"
        shell = ["/bin/sh", "-c", f'{setting}; exec nice -n 3 "$@"', "sh"]
        plain = place.run([*shell, *PYTHON], textwrap.dedent(text))
        warm = place.until_warm(lambda shell=shell: place.run([*shell, *WARM], textwrap.dedent(text)))
        assert (warm.returncode, warm.stdout, warm.stderr) == (plain.returncode, plain.stdout, plain.stderr)


@pytest.mark.parametrize(
    "text",
    [
        "import json; json.held = open('held', 'w'); json.held.write('content')",
        "import typing\nclass A: held = open('held', 'w')\ntyping.Optional[A]; A.held.write('content')",
    ],
    ids=["module", "class in a cache"],
)
def test_file_that_only_a_library_holds_is_written(place: Place, text: str) -> None:
    place.assert_same_and_warm(text)
    assert (place.folder / "held").read_text() == "content"


@pytest.mark.slow("more ways to start warm")
def test_module_matches_python(place: Place) -> None:
    text = "import sys, __main__; print(sys.argv, sys.path, __name__, __file__, __spec__.name, __package__)"
    (place.folder / "package").mkdir()
    (place.folder / "package" / "__init__.py").write_text("print('package')")
    (place.folder / "package" / "__main__.py").write_text(text)
    for name in ("program", "package", "missing_module"):
        plain, warm = (place.run([*command, "-m", name], text) for command in (PYTHON, WARM))
        assert warm.stdout == plain.stdout
        assert (warm.returncode, warm.stderr.replace(WARM[0], PYTHON[0])) == (plain.returncode, plain.stderr)
        place.wait()
        if name != "missing_module":
            again = place.until_warm(functools.partial(place.run, [*WARM, "-m", name], text))
            assert again.stdout == plain.stdout


def test_edited_own_module_is_imported_anew(place: Place) -> None:
    text = "import own; print(own.VALUE)"
    for value in (10, 11):
        (place.folder / "own.py").write_text(f"VALUE = {value}  # {'x' * value}\n")
        assert place.assert_same_and_warm(text).stdout == f"{value}\n"


@pytest.mark.slow("more programs that start plainly")
def test_module_that_hides_one_of_the_standard_library_is_imported(place: Place) -> None:
    (place.folder / "uuid.py").write_text("print('mine')\n")
    try:
        assert place.assert_same("import uuid").stdout == "mine\n"
    finally:
        (place.folder / "uuid.py").unlink()


def test_disabled_runs_plainly(place: Place) -> None:
    place.assert_same("print(1)", ZEROCOPY_DISABLE="1")
    assert not place.was_warm


def test_inherited_files_have_their_numbers(place: Place) -> None:
    numbers = range(3, 10)
    redirections = " ".join(f"{number}>written{number}" for number in numbers)
    shell = ["/bin/sh", "-c", f'exec {redirections}; exec "$@"', "sh"]
    text = f"""
    import os
    for number in {list(numbers)}:
        os.write(number, str(number).encode())
        print(os.get_inheritable(number))
    """
    place.wait()  # a program before may have been recorded anew
    done = place.until_warm(lambda: place.run([*shell, *WARM], textwrap.dedent(text)))
    assert (done.stdout, done.stderr) == ("True\n" * len(numbers), "")
    assert [(place.folder / f"written{number}").read_text() for number in numbers] == list(map(str, numbers))


@pytest.mark.slow("more programs that start plainly")
def test_timer_that_runs_when_the_program_is_started_is_seen_as_by_python(place: Place) -> None:
    start = "import os, signal, sys; signal.alarm(100); os.execv(sys.argv[1], sys.argv[1:])"
    text = "import signal; print(signal.getitimer(signal.ITIMER_REAL)[0] > 0)"
    place.wait()
    for command in (PYTHON, WARM):
        assert place.run([*PYTHON, "-c", start, *command], text).stdout == "True\n"


@pytest.mark.slow("more programs that start plainly")
def test_script_in_a_pipe_is_run_each_time(place: Place) -> None:
    for number in range(3):  # the second run has a record, the third may have a fork server
        done = subprocess.run(
            [*WARM, "/dev/stdin"],
            cwd=place.folder,
            env=place.environment,
            input=f"print({number})",
            capture_output=True,
            text=True,
        )
        assert (done.stdout, done.stderr) == (f"{number}\n", "")
        place.wait()


@contextlib.contextmanager
def own_package(folder: Path, text: str) -> Iterator[Place]:
    """A package in a folder for packages, and a place whose programs find it there."""
    packages = folder / "site-packages"
    packages.mkdir()
    (packages / "imported.py").write_text(text)
    with Place(folder) as place:
        place.environment["PYTHONPATH"] = str(packages)
        yield place


def test_arguments_that_an_import_reads_are_those_of_the_run(tmp_path: Path) -> None:
    with own_package(tmp_path, "import sys; DRY = '--dry' in sys.argv\n") as place:
        text = "import sys, imported; print(imported.DRY, sys.argv)"
        place.prepare(text)
        place.assert_same_and_warm(text)
        place.assert_same(text, "--dry")
        assert not place.was_warm


def test_import_sees_what_the_program_has_set_before_it(tmp_path: Path) -> None:
    """What the program imports after a change is imported by each run, and all before it by the fork server."""
    with own_package(tmp_path, "import os; VALUE = os.environ.get('MINE')\n") as place:
        (tmp_path / "site-packages" / "late.py").write_text("import os; VALUE = os.environ.get('MINE')\n")
        (tmp_path / "site-packages" / "setting.py").write_text(
            "import os; os.environ['MINE'] = 'by import'\n"
        )
        lines = ["import imported, os", "os.environ['MINE'] = 'set'", "import late"]
        end = "\nprint(imported.VALUE, late.VALUE, os.environ.get('MINE'))"
        for order, printed in (
            (lines, "None set set\n"),
            ([lines[1].replace("os.", "__import__('os')."), lines[0], lines[2]], "set set set\n"),
            (["import setting", lines[0], lines[2]], "by import by import by import\n"),
        ):
            assert place.assert_same("\n".join(order) + end).stdout == printed
            place.wait()
            assert place.assert_same_and_warm("\n".join(order) + end).stdout == printed


def test_variable_that_no_import_asks_for_by_its_beginning_makes_no_difference(tmp_path: Path) -> None:
    text = "import os\nFOUND = {name[5:]: value for name, value in os.environ.items() if name.startswith('MINE_')}\n"
    with own_package(tmp_path, text) as place:
        program = "import imported; print(imported.FOUND)"
        place.prepare(program)
        place.assert_same_and_warm(program, OTHER="1")
        assert place.assert_same(program, MINE_A="1").stdout == "{'A': '1'}\n"


def test_pytest_starts_warm_and_rewrites_assertions_of_its_plugins(tmp_path: Path) -> None:
    options = ["-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    failing = "def check(x):\n    assert x == [1, 3]\n"
    with own_package(tmp_path, failing) as place:
        information = tmp_path / "site-packages" / "imported-1.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: imported\nVersion: 1\n")
        (information / "RECORD").write_text("imported.py,,\n")
        (information / "entry_points.txt").write_text("[pytest11]\nimported = imported\n")
        (tmp_path / "site-packages" / "using.py").write_text("import imported\n")
        text = "import imported, json, using\ndef test_one(): imported.check([1, 2])\ndef test_two(): assert 1 == 2"

        def run(command: list[str]) -> tuple[int, str, str]:
            done = place.run([*command, *options], text)
            return done.returncode, re.sub(r"in [0-9.]+s", "", done.stdout), done.stderr

        plain = run(PYTHON)
        assert run(WARM) == plain and "At index 1 diff: 2 != 3" in plain[1]
        place.wait()
        assert place.until_warm(lambda: run(WARM)) == plain


@pytest.mark.slow("a fork server for each case; test_warm_environments has changes of data")
@pytest.mark.parametrize("exists", [True, False], ids=["changed", "new"])
def test_file_that_an_import_reads_and_that_changes_is_read_again(tmp_path: Path, exists: bool) -> None:
    setting = tmp_path / "setting"
    if exists:
        setting.write_text("1")
    read = f"try: VALUE = open({str(setting)!r}).read()\nexcept OSError: VALUE = None\n"
    with own_package(tmp_path, read) as place:
        text = "import imported; print(imported.VALUE)"
        place.prepare(text)
        place.assert_same_and_warm(text)
        setting.write_text("two")
        assert place.assert_same(text).stdout == "two\n"


@pytest.mark.slow("rare settings of a process")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
@pytest.mark.parametrize(
    "command",
    [["setpriv", "--no-new-privs"], ["choom", "-n", "500", "--"], ["setarch", "-R"]],
    ids=lambda command: command[0],
)
def test_confinement_of_the_client_holds(place: Place, command: list[str]) -> None:
    text = "print([line for line in open('/proc/self/status') if line.startswith('NoNewPrivs')])\n"
    text += "print(open('/proc/self/oom_score_adj').read(), open('/proc/self/personality').read())"
    plain, warm = (place.run([*command, *program], text) for program in (PYTHON, WARM))
    assert (warm.returncode, warm.stdout, warm.stderr) == (plain.returncode, plain.stdout, plain.stderr)


@pytest.mark.slow("eight names of a script")
@pytest.mark.parametrize("is_gone", [False, True], ids=["there", "gone"])
@pytest.mark.parametrize("name", ["../program.py", "./.././program.py", "{}/program.py", "{}/./program.py"])
def test_script_may_be_named_in_any_way_also_in_a_folder_that_is_gone(
    name: str, is_gone: bool, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text("import sys; print(__file__, sys.path[0], sys.argv)")
    folder = tmp_path / "folder"
    folder.mkdir()
    script = 'rmdir "$0"; "$@"; status=$?; mkdir "$0"; exit $status' if is_gone else '"$@"'

    with Place(tmp_path) as place:

        def result(command: list[str]) -> tuple[int, str, str]:
            shell = ["sh", "-c", script, os.fspath(folder), *command, name.format(tmp_path)]
            done = subprocess.run(shell, cwd=folder, capture_output=True, text=True, env=place.environment)
            return done.returncode, done.stdout, done.stderr

        plain = result(PYTHON)
        assert result([word for word in WARM if word != "--warm"]) == plain
        if name == "{}/program.py":  # one of these: each program gets a fork server
            assert result(WARM) == plain


def test_two_starts_draw_different_random_numbers(place: Place) -> None:
    text = "import random, uuid, tempfile; print(random.random(), uuid.uuid4(), next(tempfile._get_candidate_names()))"
    first, second = (place.until_warm(lambda: place.run(WARM, text)).stdout.split() for _ in range(2))
    assert len({*first, *second}) == 6


@pytest.mark.slow("many starts")
def test_many_starts_leave_no_descriptor_memory_or_process_behind(place: Place) -> None:
    def state() -> tuple[int, int, str]:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return len(list(Path(f"/proc/{pid}/fd").iterdir())), pages, children

    before = {found["pid"]: found["starts"] for found in place.servers()}
    place.until_warm(lambda: place.run(WARM, "pass"))
    [pid] = [found["pid"] for found in place.servers() if found["starts"] > before.get(found["pid"], 0)]
    descriptors, pages, _ = state()
    for _ in range(20):
        place.run(WARM, "pass")
    wait_until(
        lambda: state()[2] == "" and state()[0] <= descriptors
    )  # the server closes the last connection later
    assert state()[1] <= pages + 64
