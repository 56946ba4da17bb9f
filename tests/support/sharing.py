"""Shared by the tests of the model server: a separate server, and functions that workers import."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from zerocopy import share
from zerocopy.share.wire import file_identity, frames, sockets, versions


class Module(torch.nn.Module):
    """Parameters, a buffer, a tie, a hook, an attribute, a mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(40, 40)
        self.second = torch.nn.Linear(40, 40)
        self.second.weight = self.first.weight
        self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("steps", torch.arange(5))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.note = {"name": "model"}
        self.register_forward_hook(double)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def double(_module: torch.nn.Module, _args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


class Box:
    """An object with others in it, that can be referred to weakly."""

    def __init__(self, *things: Any, **named: Any) -> None:
        self.things, self.named = things, named


def box(*things: Any, **named: Any) -> Box:
    return Box(*things, **named)


def changed_box(module: torch.nn.Module) -> Box:
    with torch.no_grad():
        module.frozen.add_(1)
    return Box(module)


def counted(log: bytes, value: Any = None, seconds: float = 0.0) -> Any:
    """Return a tensor, and leave a line for each time that this was called."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, b"called\n")
    os.close(descriptor)
    time.sleep(seconds)
    return {"value": value, "tensor": torch.arange(1000.0)}


def attributes(folder: bytes) -> tuple[int, set[int], int, tuple[int, int]]:
    """Return the mode of a new file, and where and how this process may run."""
    path = Path(os.fsdecode(folder)) / f"by{os.getpid()}"
    path.touch()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    return path.stat().st_mode & 0o777, os.sched_getaffinity(0), os.nice(0), limit


class WithTwoArguments(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")
        self.first = first


def fail_in_a_group() -> None:
    raise ExceptionGroup("several", [WithTwoArguments(1, 2)])


def told(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def read_here() -> str:
    time.sleep(0.2)
    return Path("here").read_text()


def read_all(folders: Box) -> int:
    return sum(1 + len(path.read_text()) for folder in folders.things for path in folder.iterdir())


class TwoParts(os.PathLike[str]):
    """A path that is made of more than its text."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    def __fspath__(self) -> str:
        return f"{self.folder}/{self.name}"


def read_at(path: os.PathLike[str]) -> tuple[os.PathLike[str], str]:
    return path, Path(path).read_text()


def calls_in(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def filled(size: int, value: int = 0) -> torch.Tensor:
    return torch.full((size,), value, dtype=torch.uint8)


def filled_without_memory(size: int) -> torch.Tensor:
    """Return more than this process may write anywhere."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))
    return filled(size)


def kill_own_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(status: int) -> None:
    os._exit(status)


def print_a_lot() -> int:
    for _ in range(3000):
        print("x" * 100)
        sys.stderr.write("y" * 100)
    return 7


def fork_and_return(seconds: float) -> int:
    pid = os.fork()
    if pid == 0:
        time.sleep(seconds)
        os._exit(0)
    return pid


class OwnError(Exception):
    """One that pickle cannot make again: its arguments are not those of its maker."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")
        self.second, self.lock = second, threading.Lock()


def fail(kind: type[BaseException], *args: Any) -> None:
    raise kind(*args)


def where_am_i() -> tuple[str, str | None]:
    return str(Path.cwd()), os.environ.get("ZEROCOPY_TEST_VARIABLE")


def sum_of_file(name: str) -> torch.Tensor:
    return torch.load(name)["weight"].sum()


def nested(log: bytes) -> Any:
    return share.load(counted, log)


@contextlib.contextmanager
def served(folder: Path, **environment: str) -> Iterator[Path]:
    """Have a server of one's own within a block, whose path is given: it is started by the first load."""
    before = dict(os.environ)
    place = folder / "s" / "socket"
    os.environ.update({"ZEROCOPY_SOCKET": str(place), **environment})
    try:
        yield place
    finally:
        os.environ["ZEROCOPY_SOCKET"] = str(place)
        share.shutdown()
        os.environ.clear()
        os.environ.update(before)


def start_server(place: Path) -> int:
    """Start a server, and return its process."""
    assert share.load(int, "5") == 5
    return pid_of_server()


def pid_of_server() -> int:
    status = share.status()
    assert status is not None
    return int(status["pid"])


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def entries() -> list[dict[str, Any]]:
    status = share.status()
    assert status is not None
    found: list[dict[str, Any]] = status["entries"]
    return found


def connected(place: Path) -> socket.socket:
    connection = sockets.connect(place, 20)
    assert connection is not None
    return connection


def request(op: str, **body: Any) -> dict[str, Any]:
    return {"op": op, "versions": versions.own(), **body}


def load_request(key: str = "k" * 40, **body: Any) -> dict[str, Any]:
    """Return a request for a result as a client of this process's mount namespace sends it."""
    about = {"key": key, "files": [], "namespace": file_identity.namespace(), "is_strict": False, "skip": []}
    return request("load", **{**about, **body})


def asked(connection: socket.socket, op: str, **body: Any) -> dict[str, Any]:
    frames.send(connection, request(op, **body))
    answer = frames.receive(connection)
    answer.close()
    return answer.body


def entry_of_server(pid: int, name: str) -> Path:
    """Return a file or folder below /proc that tells what the server holds. It shows that to root only."""
    if os.geteuid() != 0:
        import pytest  # Workers import this module too.

        pytest.skip("the server shows what it holds to root only")
    return Path(f"/proc/{pid}/{name}")


def descriptors_of(pid: int | None = None) -> int:
    """Return how many descriptors this process has open, or the server."""
    folder = Path("/proc/self/fd") if pid is None else entry_of_server(pid, "fd")
    return len(list(folder.iterdir()))


def wait_until(what: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def leaves_no_shared_memory(before: set[Path]) -> None:
    """Wait until /dev/shm has no file that was not there before: other processes have theirs there, but for a while."""
    wait_until(lambda: set(Path("/dev/shm").iterdir()) <= before, 90)


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, if nobody has asked how it did."""
    state = Path(f"/proc/{pid}/stat")
    try:
        return state.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def client(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a process that runs code."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
