"""``zerocopy run --warm`` at a terminal, under a shell with job control, and when one of its processes is killed."""

from __future__ import annotations

import contextlib
import functools
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from warm_starts import WARM, Place

PATIENCE = 180


class Terminal:
    """A shell with job control at a terminal of its own, which is a session of its own."""

    def __init__(self, place: Place) -> None:
        self._said = ""
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.chdir(place.folder)
            os.execve(
                "/bin/bash", ["bash", "--norc", "-i"], {**place.environment, "PS1": "$ ", "TERM": "dumb"}
            )

    def write(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def expect(self, pattern: str) -> str:
        """Wait until the terminal shows a pattern; return what it showed up to the pattern's end."""
        deadline = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self._said)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in {self._said!r}"
            if select.select([self.descriptor], [], [], 0.1)[0]:
                self._said += os.read(self.descriptor, 4096).decode()
        shown, self._said = self._said[: found.end()], self._said[found.end() :]
        return shown

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGHUP)
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.descriptor)


PROGRAM = """
import os, signal, sys, time
print("program", os.getpid(), os.isatty(0), os.tcgetpgrp(0) == os.getpgrp(), flush=True)
try:
    for line in sys.stdin:
        print("got", line.strip(), flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(5)
"""


def status(pid: int) -> tuple[str, int]:
    """Return the state of a process, as one letter, and its parent."""
    state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return state, int(parent)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_until_it_waits(pid: int) -> None:
    """Wait until a program waits in a call of the kernel, which a signal then ends.

    Python notices a signal that comes just before such a call only after the call.
    """
    wait_for(lambda: status(pid)[0] == "S")


def started(terminal: Terminal) -> int:
    terminal.write(f"{' '.join(WARM)} program.py; echo ended $?\n")
    return int(re.search(r"program (\d+) True True", terminal.expect(r"program .*\r\n"))[1])  # type: ignore[index]


@pytest.mark.slow("a shell with job control on a terminal")
def test_job_of_a_shell_is_interrupted_stopped_and_continued_on_its_terminal(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with Place(tmp_path) as place, contextlib.closing(Terminal(place)) as terminal:
        terminal.expect(r"\$ ")
        terminal.write(f"{' '.join(WARM)} program.py < /dev/null; echo first $?\n")
        terminal.expect(r"first \d+\r\n")
        place.wait()

        pid = started(terminal)
        assert status(pid)[1] in {found["pid"] for found in place.servers()}
        terminal.write("a line\n")
        terminal.expect("got a line\r\n")
        wait_until_it_waits(pid)
        terminal.write("\x03")
        shown = terminal.expect(r"ended \d+\r\n")
        assert shown.count("interrupted") == 1 and "ended 5" in shown

        started(terminal)
        terminal.write("\x04")
        assert "ended 0" in terminal.expect(r"ended \d+\r\n")

        started(terminal)
        terminal.write("\x1c")
        assert "ended 131" in terminal.expect(r"ended \d+\r\n")

        started(terminal)
        terminal.write("\x1a")
        terminal.expect("Stopped")
        terminal.write("fg\n")
        terminal.write("after\n")
        terminal.expect("got after\r\n")
        terminal.write("\x1a")
        terminal.expect("Stopped")
        terminal.write("kill %1; fg\n")
        terminal.expect("Terminated")


def gone(pid: int) -> bool:
    try:
        state, parent = status(pid)
    except OSError:
        return True
    return state == "Z" and parent != os.getpid()


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("warm")
    with Place(folder) as place:
        place.prepare("import signal, time, traceback\ntry: 1 / 0\nexcept Exception: traceback.print_exc()")
        yield place


@contextlib.contextmanager
def running(place: Place) -> Iterator[tuple[subprocess.Popen[str], int]]:
    (place.folder / "program.py").write_text(
        "import os, signal, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\nprint('too late')\n"
    )
    for _ in range(5):
        place.wait()  # the run before may have imported more
        with subprocess.Popen(
            ["env", "--default-signal=HUP", *WARM, "program.py"],  # nohup ignores it
            cwd=place.folder,
            env=place.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as client:
            assert client.stdout is not None
            pid = int(client.stdout.readline())
            if pid == client.pid:  # a busy machine started it plainly
                client.kill()
                continue
            wait_until_it_waits(pid)
            yield client, pid
            wait_for(functools.partial(gone, pid))
            return
    raise AssertionError("the program never started warm")


def test_signal_to_the_client_ends_the_program(session: Place) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        with running(session) as (client, _):
            client.send_signal(number)
            assert client.wait(PATIENCE) == -number
            assert client.stderr is not None
            assert ("KeyboardInterrupt" in client.stderr.read()) == (number == signal.SIGINT)


def test_killed_client_takes_the_program_with_it(session: Place) -> None:
    with running(session) as (client, pid):
        client.kill()
        client.wait(PATIENCE)
        wait_for(lambda: gone(pid))
    [server] = session.servers()
    wait_for(lambda: session.servers()[0]["running"] == [])
    assert server["pid"] == session.servers()[0]["pid"]


def test_killed_program_ends_the_client_by_the_same_signal(session: Place) -> None:
    with running(session) as (client, pid):
        os.kill(pid, signal.SIGKILL)
        assert client.wait(PATIENCE) == -signal.SIGKILL


def test_stopped_program_stops_the_client_and_both_go_on(session: Place) -> None:
    with running(session) as (client, pid):
        os.kill(pid, signal.SIGSTOP)
        _, status = os.waitpid(client.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        client.send_signal(signal.SIGCONT)
        wait_until_it_waits(pid)
        client.send_signal(signal.SIGTERM)
        assert client.wait(PATIENCE) == -signal.SIGTERM


def test_stopped_fork_server_is_not_waited_for_long(session: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    [server] = session.servers()
    os.kill(server["pid"], signal.SIGSTOP)
    try:
        (session.folder / "program.py").write_text("print('once')")
        done = subprocess.run(
            [*WARM, "program.py"], cwd=session.folder, env=session.environment, capture_output=True
        )
        assert done.stdout == b"once\n"
    finally:
        os.kill(server["pid"], signal.SIGCONT)


def test_killed_fork_server_ends_program_and_client_and_the_next_run_is_plain(session: Place) -> None:
    with running(session) as (client, pid):
        _, server = status(pid)
        os.kill(server, signal.SIGKILL)
        assert client.wait(PATIENCE) == -signal.SIGKILL
        assert client.stderr is not None
        assert "fork server" in client.stderr.read()
        wait_for(lambda: gone(pid))
    assert session.assert_same("print('again')").stdout == "again\n"
    assert not session.was_warm
    session.wait()
    session.assert_same_and_warm("print('again')")
