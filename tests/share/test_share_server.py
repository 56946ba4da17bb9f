"""The model server as a process: how it starts and ends, what it keeps, and what no client can do to it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sharing
import torch
from conftest import Child

from zerocopy import share
from zerocopy.share import ServerError
from zerocopy.share.wire import frames

pytestmark = pytest.mark.slow("servers of their own, each of which imports torch")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to be another user")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Have a server that tests share, and that is none the worse for any of them."""
    with sharing.served(tmp_path_factory.mktemp("server")) as place:
        pid = sharing.start_server(place)
        yield place
        status = share.status()
        assert status is not None and status["pid"] == pid


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have a place for a server of this test's own."""
    with sharing.served(tmp_path) as place:
        yield place


def serves(place: Path) -> bool:
    """Return whether the server answers another client, soon."""
    with sharing.connected(place) as connection:
        connection.settimeout(10)
        return sharing.asked(connection, "status", entries=False)["state"] == "status"


TWENTY = """
    import os, sys
    from zerocopy.share.client import start_server
    from zerocopy.share.wire import sockets
    gate, opening = os.pipe()
    for _ in range(20):
        if os.fork() == 0:
            os.close(opening)
            os.read(gate, 1)
            connection = start_server.connected(sockets.path(), 60)
            os.write(1, f"{sockets.require_same_user(connection)}\\n".encode())
            os._exit(0)
    os.close(opening)
    statuses = {os.wait()[1] for _ in range(20)}
    sys.exit(statuses != {0})
"""


def test_twenty_that_start_at_once_have_one_server(own: Path) -> None:
    program = sharing.client(textwrap.dedent(TWENTY))
    out, err = program.communicate(timeout=180)
    assert out.split() == [str(sharing.pid_of_server())] * 20 and program.returncode == 0, err


def test_remains_of_a_dead_server_are_replaced(own: Path) -> None:
    kept = share.load(sharing.filled, 50_000, 4)
    pid = sharing.pid_of_server()
    shared_memory = set(Path("/dev/shm").iterdir())
    os.kill(pid, signal.SIGKILL)
    sharing.wait_until(lambda: not Path(f"/proc/{pid}").exists() or _state(pid) == "Z")
    assert own.exists() and int(kept.sum()) == 200_000  # the socket is stale, the tensor whole
    kept.add_(1)
    assert torch.equal(share.load(sharing.filled, 50_000, 4), kept - 1)
    assert sharing.pid_of_server() != pid
    sharing.leaves_no_shared_memory(shared_memory)
    assert sorted(path.name for path in own.parent.iterdir()) == ["socket", "socket.lock"]


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(own: Path, number: int) -> None:
    share.load(int, "5")
    pid = sharing.pid_of_server()
    children = sharing.children_of(pid)
    os.kill(pid, number)
    sharing.wait_until(lambda: not own.exists())
    for child in children:  # the fork server
        sharing.wait_until(lambda child=child: not Path(f"/proc/{child}").exists())
    assert share.status() is None


CLOSES = """
import os, sys, torch
from zerocopy import share
share.patch_all()
first = torch.load(sys.argv[1])
assert share.status()["loaded"] == 1
os.closerange(3, 256)
files = [open(os.path.join(sys.argv[2], f"f{number}"), "w+b") for number in range(8)]
second = torch.load(sys.argv[1])
del first, second
for file in files:
    file.write(b"x")
    file.flush()
    file.seek(0)
    assert file.read(50) == b"x", file.name
"""


def test_program_that_closes_all_descriptors_keeps_those_it_opens(tmp_path: Path, forked: Child) -> None:
    torch.save({"n": torch.ones(3)}, tmp_path / "a.pt")
    with sharing.served(tmp_path):
        done = forked(CLOSES, tmp_path / "a.pt", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


DROPS = """
import os, sys, torch
from zerocopy import share
share.patch_all()
torch.load(sys.argv[1])
assert share.status()["loaded"] >= 1
os.setgroups([])
os.setegid(65534)
os.seteuid(65534)
try:
    print("loaded", torch.load(sys.argv[2]))
except PermissionError as error:
    print("refused")
"""


def test_process_that_has_given_up_its_rights_gets_nothing_by_the_server(
    tmp_path: Path, forked: Child
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & stat.S_IXOTH and folder != tmp_path.parents[-1]:
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    torch.save({"n": torch.ones(3)}, tmp_path / "public.pt")
    torch.save({"n": torch.ones(3)}, tmp_path / "secret.pt")
    (tmp_path / "public.pt").chmod(0o644)
    (tmp_path / "secret.pt").chmod(0o600)
    with sharing.served(tmp_path):
        done = forked(DROPS, tmp_path / "public.pt", tmp_path / "secret.pt")
    assert done.stdout == "refused\n", done.stderr


def test_idle_server_ends(tmp_path: Path) -> None:
    with sharing.served(tmp_path, ZEROCOPY_SHARE_IDLE="1") as place:
        sharing.start_server(place)
        sharing.wait_until(lambda: not place.exists())
        assert share.status() is None
        assert share.load(int, "6") == 6


def test_shutdown(own: Path) -> None:
    share.shutdown()
    assert share.status() is None and share.unload("*") == 0
    share.load(int, "5")
    pid = sharing.pid_of_server()
    share.shutdown()
    assert share.status() is None and not own.exists()
    assert not Path(f"/proc/{pid}").exists() or _state(pid) == "Z"


# ------------------------------------------------------------------------------------ what it keeps


def test_memory_is_limited(tmp_path: Path) -> None:
    with sharing.served(tmp_path, ZEROCOPY_MAX_BYTES="1M"):
        held = share.load(sharing.filled, 400_000, 0)
        for value in range(1, 6):
            assert int(share.load(sharing.filled, 400_000, value)[0]) == value
            status = share.status()
            assert status is not None and status["memory"] <= 1 << 20
        assert [entry["hits"] for entry in status["entries"] if entry["attached"]] == [0]
        also = share.load(sharing.filled, 400_000, 5)
        with pytest.raises(ServerError, match="ZEROCOPY_MAX_BYTES"):
            share.load(sharing.filled, 400_000, 6)
        assert int(held.sum()) == 0 and int(also[0]) == 5
        del also
        assert int(share.load(sharing.filled, 400_000, 6)[0]) == 6
        kept = len(sharing.entries())
        with pytest.raises(ServerError, match="ZEROCOPY_MAX_BYTES"):
            share.load(sharing.filled, 2_000_000, 0)
        assert len(sharing.entries()) == kept, "what can never fit takes nobody's place"


# ----------------------------------------------------------------------------------------- security


def test_the_socket_is_its_users_alone(server: Path) -> None:
    assert stat.S_IMODE(server.lstat().st_mode) == 0o600
    assert stat.S_IMODE(server.parent.lstat().st_mode) == 0o700
    pid = sharing.pid_of_server()
    if os.geteuid() != 0:  # whom nothing is hidden from
        with pytest.raises(PermissionError):
            list(Path(f"/proc/{pid}/fd").iterdir())
        return
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    own = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            own.add(str(path.readlink()))
    inodes = {line.split()[9] for line in listening.splitlines()[1:] if line.strip()[0].isdigit()}
    assert own and not own & {f"socket:[{inode}]" for inode in inodes}


def in_child_as(uid: int, act: Any) -> str:
    """Return what is raised when another user does something."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "nothing"
        try:
            os.setgid(uid)
            os.setuid(uid)
            act()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as said:
        return said.read()


@as_root
def test_another_user_is_refused(server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect() -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(str(server))
            frames.send(connection, sharing.request("status"))
            frames.receive(connection)

    assert "PermissionError" in in_child_as(65534, connect)
    # Even where the folder lets everybody in, the server asks who it is.
    paths = [server.parent, *server.parents[1:-2]]
    modes = [path.stat().st_mode for path in paths]
    for path in paths:
        path.chmod(0o755)
    server.chmod(0o666)
    try:
        said = in_child_as(65534, connect)
        assert any(word in said for word in ("closed", "reset", "Broken pipe")), said
    finally:
        server.chmod(0o600)
        for path, mode in zip(paths, modes, strict=True):
            path.chmod(mode)
    assert serves(server)


@as_root
def test_a_server_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("ZEROCOPY_SOCKET", str(folder / "socket"))
    with socket.socket(socket.AF_UNIX) as planted:
        planted.bind(str(folder / "socket"))
        planted.listen()
        os.chown(folder / "socket", 65534, 65534)
        with pytest.raises(ServerError, match="not a socket of yours"):
            share.load(int, "5")
        os.chown(folder, 65534, 65534)
        with pytest.raises(ServerError, match="yours alone"):
            share.status()


@pytest.mark.parametrize("what", ["folder", "python", "no name", "long time"])
def test_where_none_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    with sharing.served(tmp_path):
        if what == "folder":
            (tmp_path / "file").touch()
            monkeypatch.setenv("ZEROCOPY_SOCKET", str(tmp_path / "file" / "s" / "socket"))
        elif what == "long time":
            monkeypatch.setenv("ZEROCOPY_SHARE_TIMEOUT", "inf")
            assert share.load(int, "5") == 5
            return
        else:
            monkeypatch.setattr(sys, "executable", "" if what == "no name" else str(tmp_path / "python"))
        with pytest.raises(ServerError, match="could not start"):
            share.load(int, "5")
        monkeypatch.undo()


def test_bad_settings_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROCOPY_SOCKET", str(tmp_path / "s" / "socket"))
    monkeypatch.setenv("ZEROCOPY_MAX_BYTES", "plenty")
    with pytest.raises(ServerError, match="ZEROCOPY_MAX_BYTES"):
        share.load(int, "5")
    monkeypatch.delenv("ZEROCOPY_MAX_BYTES")
    monkeypatch.setenv("ZEROCOPY_SHARE_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="ZEROCOPY_SHARE_TIMEOUT"):
        share.load(int, "5")
    share.shutdown()
