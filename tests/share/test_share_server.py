"""The model server as a process: how it starts and ends, what it keeps, and what no client can do to it."""

from __future__ import annotations

import configparser
import contextlib
import itertools
import os
import random
import signal
import socket
import stat
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sharing
import torch
from conftest import Child, mappings

from zerocopy import share
from zerocopy.share import ServerError
from zerocopy.share.errors import FrameError
from zerocopy.share.wire import frames, messages, sealed_memory, sockets

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


# ------------------------------------------------------------------------------------- one server


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


def test_loaders_that_were_forked_ahead_and_killed_are_replaced(server: Path) -> None:
    share.load(sharing.filled, 1000, 70)
    [fork_server] = sharing.children_of(sharing.pid_of_server())
    for value in range(71, 74):
        sharing.wait_until(lambda: len(sharing.children_of(fork_server)) == 2)  # the one before has ended
        for ahead in sharing.children_of(fork_server):
            os.kill(ahead, signal.SIGKILL)
            sharing.wait_until(lambda ahead=ahead: sharing.is_gone(ahead))
        assert share.load(sharing.filled, 1000, value).tolist() == [value] * 1000
    assert sharing.children_of(sharing.pid_of_server()) == [fork_server]


def test_loaders_have_no_descriptors_of_each_other(server: Path) -> None:
    own = share.load(os.getpid)
    [fork_server] = sharing.children_of(sharing.pid_of_server())
    sharing.wait_until(lambda: sharing.is_gone(own) and len(sharing.children_of(fork_server)) == 2)

    def count_sockets(pid: int) -> int:
        try:
            names = [str(entry.readlink()) for entry in sharing.entry_of_server(pid, "fd").iterdir()]
        except FileNotFoundError:  # closed meanwhile
            return -1
        return sum(name.startswith("socket:") for name in names)

    # One leads to the fork server.
    sharing.wait_until(lambda: [count_sockets(pid) for pid in sharing.children_of(fork_server)] == [1, 1])


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


LIMITED = """
import resource, sys, torch
from zerocopy import share
share.patch_all()
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
print(torch.load(sys.argv[1])["n"])
"""


def test_process_that_may_write_no_file_loads_by_itself(tmp_path: Path, child: Child) -> None:
    torch.save({"n": 3}, tmp_path / "a.pt")
    with sharing.served(tmp_path):
        done = child(LIMITED, tmp_path / "a.pt")
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


def test_idle_server_ends(tmp_path: Path) -> None:
    with sharing.served(tmp_path, ZEROCOPY_SHARE_IDLE="1") as place:
        sharing.start_server(place)
        sharing.wait_until(lambda: not place.exists())
        assert share.status() is None
        assert share.load(int, "6") == 6


def test_call_that_meets_a_server_which_leaves_is_asked_of_the_next(own: Path) -> None:
    """An idle server may end between a client's connection and its request."""
    sockets.prepare(own)
    leaving = sockets.listen(own)
    leaving.setblocking(True)

    def leave() -> None:
        connection, _ = leaving.accept()
        own.unlink()
        connection.close()
        leaving.close()

    thread = threading.Thread(target=leave)
    thread.start()
    assert share.load(int, "6") == 6
    thread.join()


def test_shutdown(own: Path) -> None:
    share.shutdown()
    assert share.status() is None and share.unload("*") == 0
    share.load(int, "5")
    pid = sharing.pid_of_server()
    share.shutdown()
    assert share.status() is None and not own.exists()
    assert not Path(f"/proc/{pid}").exists() or _state(pid) == "Z"


def test_the_server_has_no_torch(server: Path) -> None:
    maps = sharing.entry_of_server(sharing.pid_of_server(), "maps").read_text()
    assert "libtorch" not in maps and "libc.so" in maps


# ------------------------------------------------------------------------------------ what it keeps


def test_status_and_unload(server: Path, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(100_000)}, tmp_path / "w.pt")
    kept = share.load(torch.load, str(tmp_path / "w.pt"))
    memory_only = share.load(sharing.filled, 70_000, 9)
    status = share.status()
    assert status is not None
    by_name = {entry["name"]: entry for entry in status["entries"]}
    loaded, filled = by_name["torch.serialization.load"], by_name["sharing.filled"]
    assert loaded["mapped"] >= 400_000 and loaded["memory"] < 10_000 and loaded["attached"]
    assert filled["memory"] > 70_000 and filled["mapped"] == 0 and filled["attached"]
    assert str(tmp_path / "w.pt") in loaded["files"]
    assert status["memory"] >= filled["memory"] and status["max_bytes"] is None
    del memory_only
    entries = {entry["name"]: entry for entry in (share.status() or {})["entries"]}
    assert not entries["sharing.filled"]["attached"] and entries["torch.serialization.load"]["attached"]
    assert share.unload(filled["key"]) == 1 and share.unload(filled["key"]) == 0
    assert share.unload("torch.serialization.load") == 1
    assert float(kept["w"].sum()) == 100_000


@pytest.mark.parametrize("key", [None, 5, b"key", ["*"]])
def test_unload_with_other_than_a_string_raises_type_error(server: Path, key: Any) -> None:
    assert serves(server)
    with pytest.raises(TypeError, match="expected a str as key"):
        share.unload(key)
    assert sharing.entries()


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


def test_one_key_asked_for_by_many_is_computed_once(server: Path, tmp_path: Path) -> None:
    log = os.fsencode(tmp_path / "log")
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(share.load(sharing.counted, log, 1, 0.5)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 8 and sharing.calls_in(tmp_path / "log") == 1
    results[0]["tensor"].zero_()
    assert torch.equal(results[1]["tensor"], torch.arange(1000.0))


def test_different_loads_go_side_by_side(server: Path) -> None:
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(share.load(_when, 8, 0.02, n))) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 8
    # Each was running when another began: one after the other they would not overlap.
    spans = sorted(results)
    assert any(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans))


def _when(_: int, seconds: float, number: int) -> Any:
    begun = time.monotonic()
    time.sleep(0.5 + seconds * number)
    return begun, time.monotonic()


@pytest.mark.plain_memory("it measures memory")
def test_descriptors_and_memory_of_the_server_stay_constant(server: Path) -> None:
    pid = sharing.pid_of_server()

    def cycles(count: int) -> None:
        for _ in range(count):
            assert int(share.load(sharing.filled, 20_000, 8)[0]) == 8

    cycles(100)
    before = sharing.descriptors_of(), sharing.descriptors_of(pid), len(mappings()), _resident(pid)
    cycles(10_000)
    after = sharing.descriptors_of(), sharing.descriptors_of(pid), len(mappings()), _resident(pid)
    assert after[0] <= before[0] + 2 and after[1] <= before[1] + 4 and after[2] <= before[2] + 20
    assert after[3] <= before[3] + (4 << 20)


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_sixty_four_clients_held_open(server: Path) -> None:
    connections = [sharing.connected(server) for _ in range(64)]
    for connection in connections:
        frames.send(connection, sharing.request("status", entries=False))
    assert all(frames.receive(connection).body["state"] == "status" for connection in connections)
    assert share.load(int, "9") == 9
    for connection in connections:
        connection.close()


def test_more_connections_than_it_takes(server: Path) -> None:
    connections = []
    for _ in range(1100):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(20)
        connection.connect(str(server))
        connections.append(connection)
    assert serves(server) and share.load(int, "10") == 10
    for connection in connections:
        connection.close()


# ---------------------------------------------------------------------------------------- protocol


def test_another_release_is_refused(server: Path) -> None:
    for name in ("zerocopy", "torch", "python", "groups"):
        with sharing.connected(server) as connection:
            body = sharing.load_request("k")
            body["versions"][name] = "0.0"
            frames.send(connection, body)
            answer = frames.receive(connection).body
            assert answer["state"] == "refused" and name in answer["why"]


def test_a_client_of_another_release_is_told(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zerocopy.share.wire import versions

    other = {**versions.own(), "torch": "9.9"}
    monkeypatch.setattr(versions, "own", lambda: other)
    with pytest.raises(ServerError, match="torch"):
        share.load(int, "5")
    with pytest.raises(ServerError, match="torch"):
        share.status()


GARBAGE: list[bytes] = [
    b"",
    b"\0",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\0\0\0\x02{}",
    b"\0\0\0\x02[]",
    b"\0\0\0\x05hello",
    b"\0\x10\0\0" + b"[" * (1 << 20),
    b"\0\0\0\x40" + b'{"op": "load"',
    b"\x80\x04\x95" + b"cos\nsystem\n" * 20,
    b"GET / HTTP/1.1\r\n\r\n",
    *(
        frames.encode(body)
        for body in (
            {"op": "load"},
            sharing.request("nonsense"),
            sharing.load_request(key=5, skip=7, files=[[1]]),
            sharing.load_request("k", files="x"),
            sharing.load_request("k", namespace=5, skip=[[]]),
            sharing.request("compute", absent={}, namespace=[]),
            *(
                sharing.request(
                    "compute", absent=absent, namespace=[], name="n", python="/nowhere", timeout=1
                )
                for absent in ({}, 5, {"op": "unload", "key": "k"}, sharing.load_request("k"))
            ),
            sharing.request("attach", id=[]),
            sharing.request("unload", key=[]),
            {"body": "memory"},
            sharing.request("status") | {"descriptors": 3},
            sharing.request("status") | {"descriptors": -1},
            sharing.request("status") | {"descriptors": "x"},
            sharing.request("status") | {"versions": 5},
            sharing.request("status") | {"versions": {"torch": []}},
        )
    ),
]


@pytest.mark.parametrize("number", range(len(GARBAGE)))
def test_garbage_costs_its_connection_only(server: Path, number: int) -> None:
    with sharing.connected(server) as connection:
        connection.settimeout(20)
        connection.sendall(GARBAGE[number])
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError), connection.makefile("rb") as answer:
            answer.read()
    assert serves(server)


def test_random_bytes(server: Path) -> None:
    generator = random.Random(8)
    good = frames.encode(sharing.load_request())
    for _ in range(150):
        data = bytearray(good if generator.random() < 0.7 else generator.randbytes(200))
        for _ in range(generator.randrange(1, 6)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        with sharing.connected(server) as connection:
            connection.send(bytes(data[: generator.randrange(1, len(data) + 1)]))
    assert serves(server)


def test_messages_longer_than_a_frame(server: Path) -> None:
    body = sharing.request("status", entries=False, padding="x" * (1 << 21))
    pid = sharing.pid_of_server()
    with sharing.connected(server) as connection:
        frames.send(connection, body)
        assert frames.receive(connection).body["pid"] == pid
        text = frames.encode({})[4:] + b" "
        for content in (text, b"[]", b"\xff", b"x" * (1 << 21)):
            with sharing.connected(server) as other:
                held = sealed_memory.sealed("test", [content])
                frames.send_some(other, frames.encode({"body": "memory"}, 1), [held])
                os.close(held)
                other.settimeout(20)
                assert other.recv(100) == b""
    with pytest.raises(FrameError, match="a message of"):
        frames.encoded({"padding": "x" * (1 << 26)}, 0)
    assert serves(server)


def test_results_of_very_many_files(server: Path, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 200) / ("y" * 200)
    folder.mkdir(parents=True)
    for number in range(3000):
        (folder / str(number)).touch()
    for _ in range(2):
        assert share.load(sharing.box, folder).things == (folder,)
        assert share.load(sharing.read_all, sharing.box(folder)) == 3000
    found = {entry["name"]: entry["files"] for entry in sharing.entries()}
    assert len(found["sharing.read_all"]) >= 3000
    assert not [path for path in found["sharing.box"] if path.startswith(str(folder))], "nothing was read"
    (folder / "5").write_text("a")
    assert share.load(sharing.read_all, sharing.box(folder)) == 3001


def test_unexpected_descriptors_are_closed(server: Path, tmp_path: Path) -> None:
    pid = sharing.pid_of_server()
    assert serves(server)
    sharing.wait_until(lambda: sharing.descriptors_of(pid) > 0)
    before = sharing.descriptors_of(pid)
    (tmp_path / "file").write_bytes(b"x")
    frames_of = {"status": sharing.request("status", entries=False), "memory": {"body": "memory"}}
    for count, announced, body in (
        *((1, 0, "status"), (5, 5, "status"), (16, 2, "status"), (200, 0, "status"), (253, 253, "status")),
        *((1, 1, "memory"), (5, 5, "memory")),
    ):
        descriptors = [os.open(tmp_path / "file", os.O_RDONLY) for _ in range(count)]
        with sharing.connected(server) as connection:
            frame = frames.encode(frames_of[body] | {"descriptors": announced})
            frames.send_some(connection, frame, descriptors)
            connection.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                connection.recv(1 << 16)
        for descriptor in descriptors:
            os.close(descriptor)
    assert serves(server)
    sharing.wait_until(lambda: sharing.descriptors_of(pid) <= before)


def test_a_client_that_dies_between_any_two_messages(server: Path, tmp_path: Path) -> None:
    """The whole exchange of a load that computes, left after each step."""
    pid = sharing.pid_of_server()
    log = os.fsencode(tmp_path / "log")
    before = sharing.descriptors_of(pid)
    for steps in range(7):
        connection = sharing.connected(server)
        load = sharing.load_request(f"{steps:040}")
        frame = frames.encode(load)
        compute = load | {"op": "compute", "absent": load, "name": "nothing", "python": sys.executable}
        compute |= {"timeout": 20, "descriptors": 3}
        sealed = [sealed_memory.sealed("test", [b"no call"]) for _ in range(3)]
        if steps >= 1:
            connection.send(frame[:2])
        if steps >= 2:
            connection.send(frame[2:])
        if steps >= 3:
            assert frames.receive(connection).body["state"] == "absent"
        if steps >= 4:
            frames.send_some(connection, frames.encode(compute)[:3], sealed)
        if steps >= 5:
            connection.send(frames.encode(compute)[3:])
        if steps >= 6:
            assert frames.receive(connection).body["state"] in ("failed", "refused")
        connection.close()
        frames.close_all(sealed)
        assert serves(server)
    sharing.wait_until(lambda: sharing.descriptors_of(pid) <= before + 2)
    # And a real one, killed while its loader runs: that goes on, and its result is there.
    program = sharing.client(
        "import os, sys\nimport sharing\nfrom zerocopy import share\n"
        "share.load(sharing.counted, sys.argv[1].encode(), 1, 1.0)",
        os.fsdecode(log),
    )
    sharing.wait_until(lambda: sharing.calls_in(Path(os.fsdecode(log))) == 1, 60)
    program.kill()
    program.wait()
    assert share.load(sharing.counted, log, 1, 1.0)["value"] == 1
    assert sharing.calls_in(Path(os.fsdecode(log))) == 1


def test_slow_client_does_not_block_others(server: Path) -> None:
    with sharing.connected(server) as slow:
        slow.send(b"\0\0\0\x40{")
        for _ in range(20):
            assert serves(server)


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


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777])
def test_an_open_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    monkeypatch.setenv("ZEROCOPY_SOCKET", str(folder / "socket"))
    for ask in (lambda: share.load(int, "5"), share.status):
        with pytest.raises(ServerError, match="700"):
            ask()
    assert not list(folder.iterdir())


def test_planted_places_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "real"
    folder.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.setenv("ZEROCOPY_SOCKET", str(tmp_path / "link" / "socket"))
    with pytest.raises(ServerError, match="not a folder"):
        share.load(int, "5")
    (folder / "socket").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("ZEROCOPY_SOCKET", str(folder / "socket"))
    with pytest.raises(ServerError, match="not a socket"):
        share.load(int, "5")
    monkeypatch.setenv("ZEROCOPY_SOCKET", str(folder / ("x" * 120)))
    with pytest.raises(ServerError, match="107"):
        share.load(int, "5")


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


def test_peer_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair()
    with here, there:
        assert sockets.require_same_user(here) == os.getpid()
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(ServerError, match="other end"):
            sockets.require_same_user(here)


def test_memory_that_is_not_sealed_is_refused(tmp_path: Path) -> None:
    from zerocopy.share.objects import attach

    reading, writing = os.pipe()
    open_memory = sealed_memory.create("open")
    sealed_memory.reserve(open_memory, 1000)
    short = sealed_memory.sealed("short", [b"x" * 100])
    blank = sealed_memory.sealed("blank", [bytes(1000)])
    layout = {"table": 64, "storages": 0, "pickle": [64, 10], "skeleton": None}
    for descriptor, identity, why in (
        (open_memory, None, "expected a sealed memfd"),
        (short, None, "expected a sealed memfd"),
        (blank, None, "did not fill"),
        (blank, [1, 2, 3, 4, 5], "a different file"),
    ):
        with pytest.raises(ServerError, match=why):
            attach.attach(
                messages.Ready("", [[0, 1000, identity]], layout, [], {}, []), [descriptor, writing]
            )
    with pytest.raises(ServerError, match="expected 0 descriptors"):
        attach.attach(messages.Ready("", [], layout, [], {}, []), [blank, writing])
    frames.close_all([reading, writing, open_memory, short, blank])


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


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with sharing.served(tmp_path):
        program = sharing.client(
            "import os, sys, torch; from zerocopy import share\n"
            "os.mkdir(sys.argv[1]); os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])\n"
            "try: share.load(int, '5')\nexcept share.ServerError as error: print(error)",
            tmp_path / "gone",
        )
        assert program.communicate(timeout=180)[0] == "the current folder has been removed\n"


def test_one_function_in_many_folders_at_once(tmp_path: Path) -> None:
    """Each has to wait until the others have had the loader."""
    with sharing.served(tmp_path):
        sharing.start_server(tmp_path)
        programs = []
        for number in range(6):
            (tmp_path / str(number)).mkdir()
            (tmp_path / str(number) / "here").write_text(str(number))
            programs.append(
                sharing.client(
                    "import os, sys; os.chdir(sys.argv[1]); import sharing\n"
                    "from zerocopy import share\nprint(share.load(sharing.read_here))",
                    tmp_path / str(number),
                )
            )
        assert [program.communicate(timeout=100)[0] for program in programs] == [f"{n}\n" for n in range(6)]


def test_a_program_that_ignores_its_children(tmp_path: Path) -> None:
    with sharing.served(tmp_path):
        program = sharing.client(
            "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nimport sharing\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
            "from zerocopy import share\n"
            "try: share.load(sharing.kill_own_process)\nexcept share.ServerError as error: print(error)",
        )
        assert "killed by signal 9" in program.communicate(timeout=180)[0]
        os.kill(sharing.pid_of_server(), signal.SIGTERM)
        sharing.wait_until(lambda: share.status() is None)


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


def test_the_unit_of_systemd() -> None:
    from zerocopy.share.server import systemd

    unit = configparser.ConfigParser(interpolation=None, comment_prefixes=("#",))
    unit.read_string(systemd.unit({}))
    assert unit["Service"]["ExecStart"].split() == [sys.executable, "-m", "zerocopy", "serve"]
    assert unit["Install"]["WantedBy"] == "default.target"
