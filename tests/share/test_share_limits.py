"""The model server where something has an end: descriptors, the memory of a control group, what a namespace shows."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sharing
from conftest import Child

from zerocopy import share
from zerocopy.share import ServerError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it takes root")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[int]:
    """Have a server of this test's own; give its process."""
    with sharing.served(tmp_path) as place:
        yield sharing.start_server(place)


def test_as_many_results_as_a_server_has_descriptors_for(server: int) -> None:
    before = resource.prlimit(server, resource.RLIMIT_NOFILE)
    resource.prlimit(server, resource.RLIMIT_NOFILE, (64, before[1]))
    kept: list[Any] = []
    refusals: list[str] = []
    for size in range(20_000, 20_100):
        try:
            kept.append(share.load(sharing.filled, size, 7))
        except ServerError as error:
            refusals.append(str(error))
    assert len(kept) >= 10 and all("Too many open files" in refusal for refusal in refusals)
    assert len(kept) + len(refusals) == 100 and refusals
    assert all(int(tensor.sum()) == 7 * len(tensor) for tensor in kept)
    assert sharing.pid_of_server() == server and int(share.load(sharing.filled, 20_000, 7)[0]) == 7
    resource.prlimit(server, resource.RLIMIT_NOFILE, before)
    assert int(share.load(sharing.filled, 20_099, 7)[0]) == 7


def test_client_without_descriptors_says_so(server: int, child: Child) -> None:
    """The server is there, so nobody may be told that it is not."""
    code = """
        import os, resource
        from zerocopy import share
        import sharing
        share.load(sharing.filled, 20_000, 7)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        used = len(os.listdir("/proc/self/fd")) - 1
        for free in range(8):
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + free, hard))
            try:
                share.load(sharing.filled, 20_000, 7)
                print("loaded")
            except share.ServerError as error:
                print(error)
        """
    done = child(code, PYTHONPATH=os.pathsep.join(sys.path))
    *refusals, last = done.stdout.splitlines()
    assert last == "loaded", done.stderr
    assert all("cannot ask the model server: [Errno 24]" in each for each in refusals if each != "loaded")
    assert refusals[0] != "loaded" and sharing.pid_of_server() == server


@pytest.mark.parametrize(
    "apart",
    ["--mount", "--pid --fork", "--pid --fork --mount-proc", "--user --map-root-user --pid --fork --mount"],
)
def test_namespaces(server: int, apart: str) -> None:
    """The socket is all that both sides share."""
    program = (
        "from zerocopy import share; import sharing; print(int(share.load(sharing.filled, 20_000, 8)[0]))"
    )
    command = ["unshare", *apart.split(), sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command[:-3], "true"], capture_output=True).returncode
    ):
        pytest.skip("no such namespace can be had here")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180)
    assert (done.returncode, done.stdout) == (0, "8\n"), done.stderr
    assert sharing.pid_of_server() == server
    assert [entry["hits"] for entry in share.status()["entries"] if entry["memory"] >= 20_000] == [0]


def tree_of(process: int) -> list[int]:
    """Return a process and all that came from it, parents first."""
    found = [process]
    for one in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            found += sharing.children_of(one)
    return found


@contextlib.contextmanager
def limited(server: int, limit: int) -> Iterator[None]:
    """Have a control group of a server, and of what it forks, with so many bytes of memory."""
    for root, limiting in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = Path(root, f"zerocopy_test_{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limiting).write_text(str(limit))
            for _ in range(2):  # the second time those that were forked meanwhile
                for process in tree_of(server):
                    with contextlib.suppress(ProcessLookupError):
                        (group / "cgroup.procs").write_text(str(process))
        except OSError:
            group.rmdir()
            continue
        try:
            yield
        finally:
            share.shutdown()
            sharing.wait_until(lambda: not (group / "cgroup.procs").read_text())  # noqa: B023  used at once
            group.rmdir()
        return
    pytest.skip("no control group of memory can be had here")


def test_a_control_group_whose_memory_ends(server: int) -> None:
    with limited(server, 200 << 20):
        # The kernel may also choose the fork server.
        with pytest.raises(ServerError, match=r"killed by signal 9|has gone"):
            share.load(sharing.filled, 400 << 20, 3)
        assert int(share.load(sharing.filled, 1 << 20, 3)[-1]) == 3
        assert sharing.pid_of_server() == server
