"""The folder of kept results: whose it is, what damaged files and lost locks lead to, and how much room it takes."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sharing
import torch
from conftest import Child
from equality import assert_same
from sharing import in_another_process

from zerocopy import share
from zerocopy.share import CacheError
from zerocopy.share.cache import folder, locks, new_entry
from zerocopy.share.conditions import file_identity

LARGE = 1 << 27  # bytes that a copy of the process writes


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZEROCOPY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files(cache: Path) -> list[Path]:
    return [path for path in (cache / "results").glob("*/*") if path.is_file()]


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# ------------------------------------------------------------------------------------- whose it is


def test_files_are_the_users_alone(cache: Path) -> None:
    before = os.umask(0)
    try:
        share.load(sharing.filled, 5000, 3)
    finally:
        os.umask(before)
    (entry,) = files(cache)
    modes = {path: path.stat().st_mode & 0o777 for path in (cache, cache / "results", entry.parent, entry)}
    assert list(modes.values()) == [0o700, 0o700, 0o700, 0o400]


def test_folder_that_is_open_to_others_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache.mkdir(mode=0o755)
    for use in (lambda: share.load(int, "5"), share.status, lambda: share.unload("*")):
        with pytest.raises(CacheError, match="mode 755"):
            use()
    (tmp_path / "share.cfg").write_text("sharing::filled")
    share.patch_all(tmp_path / "share.cfg")
    try:
        assert sharing.filled(10, 2).sum() == 20, "a program never fails for the cache"
    finally:
        share.unpatch_all()
    assert len(warned(caplog)) == 1 and "mode 755" in warned(caplog)[0]
    cache.chmod(0o700)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("ZEROCOPY_CACHE", str(tmp_path / "open" / "cache"))
    with pytest.raises(CacheError, match="others may write"):
        share.load(int, "5")
    (tmp_path / "open").chmod(0o1777)
    folder._are_safe_above.cache_clear()
    assert share.load(int, "5") == 5


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_of_another_user_is_not_taken(cache: Path) -> None:
    share.load(sharing.filled, 10, 2)
    (entry,) = files(cache)
    os.chown(entry, 1, 1)
    assert share.load(sharing.filled, 10, 2).sum() == 20
    assert len(files(cache)) == 1 and files(cache) != [entry]
    os.chown(cache, 1, 1)
    with pytest.raises(CacheError, match="user 1"):
        share.load(int, "5")


def test_default_folder_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ZEROCOPY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert share.load(int, "5") == 5 and files(tmp_path / "xdg" / "zerocopy")


# ------------------------------------------------------------------------------------- damage


def _damages() -> Iterator[tuple[str, Any]]:
    yield "empty", lambda content: b""
    yield "cut in the prefix", lambda content: content[:20]
    yield "cut in the head", lambda content: content[:300]
    yield "cut at the end", lambda content: content[:-1]
    yield "longer", lambda content: content + b"x"
    generator = random.Random(3)
    for number in range(40):
        at = generator.randrange(1500)
        yield (
            f"flip {number}",
            lambda content, at=at: content[:at] + bytes([content[at] ^ 64]) + content[at + 1 :],
        )


def test_damaged_entry_is_computed_anew_with_one_line(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = {"a": torch.arange(2000.0), "b": [1, "two"]}
    for name, damage in _damages():
        caplog.clear()
        assert_same(share.load(sharing.itself, expected), expected)
        (entry,) = files(cache)
        content = entry.read_bytes()
        entry.chmod(0o600)
        entry.write_bytes(damage(content))
        assert_same(share.load(sharing.itself, expected), expected)
        lines = warned(caplog)
        assert len(lines) == 1 and "is damaged, and is computed anew" in lines[0], (name, lines)


def test_entry_that_was_not_synced_is_not_trusted_after_a_boot(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share.load(sharing.filled, 10, 2)
    (first,) = files(cache)
    monkeypatch.setattr("zerocopy.share.cache.entries.boot", lambda: "another")
    share.load(sharing.filled, 10, 2)
    assert len(files(cache)) == 2, "computed anew"
    monkeypatch.undo()
    monkeypatch.setenv("ZEROCOPY_CACHE", str(cache))
    first.unlink()
    new_entry.end()
    monkeypatch.setattr("zerocopy.share.cache.entries.boot", lambda: "a third")
    share.load(sharing.filled, 10, 2)
    assert len(files(cache)) == 1, "it was synced"


def test_numbers_of_devices_count_within_a_boot() -> None:
    one, other = (1, 2, 3, 4, 5), (9, 2, 3, 4, 5)
    assert not file_identity.is_same(one, other, within_boot=True)
    assert file_identity.is_same(one, other, within_boot=False)


# ------------------------------------------------------------------------------------- in a copy of the process


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have this process make calls of ``sharing.filled`` as a small program under ``patch_all`` does."""
    monkeypatch.setattr("zerocopy.saving.snapshot._private_memory", lambda: 0)
    (tmp_path / "share.cfg").write_text("sharing::filled")
    share.patch_all(tmp_path / "share.cfg")
    yield
    share.unpatch_all()
    new_entry.end()


@pytest.mark.usefixtures("program")
def test_large_result_is_written_while_the_program_changes_it(cache: Path) -> None:
    mine = sharing.filled(LARGE, 2)
    (copy,) = new_entry._copies  # for which the program does not wait
    mine.fill_(3)
    in_another_process(lambda: None)  # does not take the copy to be its own
    sharing.wait_until(lambda: new_entry.settle() or not new_entry._copies)
    with pytest.raises(ProcessLookupError):
        os.kill(copy.process, 0)
    assert sharing.filled(LARGE, 2).unique().tolist() == [2] and len(files(cache)) == 1


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("ending", ["sleep 100", "false"])
def test_copy_that_does_not_finish_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    """At the end of a program, a copy has as long as the call took. Entries that are not finished are not listed."""
    copies: list[subprocess.Popen[bytes]] = []

    def begin(_descriptor: int, _pieces: Any, _part: str, _name: str) -> int:
        copies.append(subprocess.Popen(ending.split()))
        return copies[-1].pid

    monkeypatch.setattr("zerocopy._core.write_in_copy", begin)
    sharing.filled(LARGE, 2)
    assert len(files(cache)) == 1 and share.status() == []
    new_entry.end()
    copies[0].returncode = 0  # it has been waited for
    with pytest.raises(ProcessLookupError):
        os.kill(copies[0].pid, 0)
    assert (len(warned(caplog)) == 1) is (ending == "false")
    assert files(cache) == []


# ------------------------------------------------------------------------------------- room


def test_what_was_used_least_lately_goes_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROCOPY_MAX_BYTES", "10M")
    kept = [share.load(sharing.filled, 3 << 20, value) for value in range(3)]
    oldest, *others = sorted(share.status(), key=lambda entry: entry.used)
    time.sleep(1.1)
    share.load(sharing.filled, 3 << 20, 0)
    share.load(sharing.filled, 3 << 20, 7)
    left = {entry.key for entry in share.status()}
    assert oldest.key in left and others[0].key not in left and len(left) == 3
    assert [int(tensor[5]) for tensor in kept] == [0, 1, 2], "who maps it keeps it"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZEROCOPY_MAX_BYTES", "1M")
        assert share.load(sharing.filled, 3 << 20, 9).numel() == 3 << 20, "the plain result"
    monkeypatch.setenv("ZEROCOPY_MAX_BYTES", "much")
    with pytest.raises(ValueError, match="ZEROCOPY_MAX_BYTES"):
        folder.Cache(cache).limit(0)


def test_a_key_has_eight_results_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in range(12):
        monkeypatch.setenv("ZC_TEST_VARIABLE", str(value))
        share.load(sharing.filled, 10)
    assert len(share.status()) == folder.MAX_ENTRIES


def test_litter_of_killed_processes_goes_after_a_day(cache: Path) -> None:
    share.load(sharing.filled, 10)
    young, old = (files(cache)[0].with_name(name) for name in (".young", ".old"))
    young.touch()
    old.touch()
    os.utime(old, (time.time() - 90_000,) * 2)
    os.utime(cache / "swept", (1, 1))
    share.load(sharing.filled, 11)
    assert young.exists() and not old.exists()


def test_full_or_read_only_folder_gives_the_plain_result(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (errno.ENOSPC, errno.EROFS):
        caplog.clear()
        with monkeypatch.context() as patch:

            def fail(*_: Any, number: int = number) -> int:
                raise OSError(number, os.strerror(number))

            patch.setattr(os, "pwrite", fail)
            assert share.load(sharing.filled, 10, 2).sum() == 20
        assert len(warned(caplog)) == 1 and os.strerror(number) in warned(caplog)[0]
        assert not files(cache) and not [*cache.glob("results/*/.*")]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        assert share.load(sharing.filled, 20_000, 2).sum() == 40_000

    in_another_process(limited)
    assert not share.status()


# ------------------------------------------------------------------------------------- who waits


def test_call_of_many_processes_and_threads_is_computed_once(tmp_path: Path) -> None:
    log = os.fsencode(tmp_path / "log")

    def load() -> None:
        threads = [threading.Thread(target=share.load, args=(sharing.counted, log, 1, 0.3)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert share.load(sharing.counted, log, 1, 0.3)["value"] == 1

    children = [_start(load) for _ in range(5)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 5
    assert sharing.calls_in(tmp_path / "log") == 1


def _start(work: Any) -> int:
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            work()
            os._exit(0)
        os._exit(1)
    return child


def test_program_that_finds_nothing_does_not_wait(tmp_path: Path) -> None:
    """A rank that holds a lock may stand in a collective that the other ranks have to join."""
    log = os.fsencode(tmp_path / "log")
    (tmp_path / "share.cfg").write_text("sharing::counted")
    child = _start(lambda: share.load(sharing.counted, log, 1, 60.0))
    sharing.wait_until(lambda: sharing.calls_in(tmp_path / "log") == 1)
    share.patch_all(tmp_path / "share.cfg")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "sleep", lambda _: None)
            assert sharing.counted(log, 1, 60.0)["value"] == 1
    finally:
        share.unpatch_all()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_lock_of_a_dead_process_is_free_and_a_child_has_none(tmp_path: Path) -> None:
    log = os.fsencode(tmp_path / "log")
    child = _start(lambda: share.load(sharing.counted, log, 1, 60.0))
    sharing.wait_until(lambda: sharing.calls_in(tmp_path / "log") == 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", lambda _: None)
        assert share.load(sharing.counted, log, 1, 60.0)["value"] == 1

    cache = folder.Cache(folder.default_folder())
    with cache.lock("f" * 40):

        def child_takes_it_after_us() -> None:
            with cache.lock("f" * 40):
                pass

        child = _start(child_takes_it_after_us)
        time.sleep(0.05)
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it waits"
    assert os.waitpid(child, 0)[1] == 0


def test_call_that_makes_itself_again_is_a_plain_call() -> None:
    assert share.load(sharing.countdown, 3) == 3


def test_file_system_without_locks_keeps_results_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(locks.fcntl, "lockf", fail)
    share.load(sharing.filled, 10)
    assert len(share.status()) == 1


def test_kept_result_within_a_recorded_call_hands_its_conditions_outward(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(torch.ones(3), path)
    time.sleep(0.02)
    name = str(path)[1:]
    for value in (1, 1, 2, 2):
        if value == 2 and torch.load(path).sum() != 6:
            torch.save(torch.full((3,), 2.0), path)
            time.sleep(0.02)
        assert share.load(sharing.sum_of, name) == 3 * value
        share.unload("sharing.sum_of") if value == 1 else None
    assert str(path) in next(entry for entry in share.status() if entry.what == "sharing.sum_of").depends_on


# ------------------------------------------------------------------------------------- heavy


@pytest.mark.slow("50 processes")
def test_fifty_processes_at_once_compute_once(tmp_path: Path) -> None:
    log = os.fsencode(tmp_path / "log")
    children = [_start(lambda: share.load(sharing.counted, log, 1, 0.5)) for _ in range(50)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 50
    assert sharing.calls_in(tmp_path / "log") == 1


@pytest.mark.slow("200 processes are killed")
def test_kill_of_the_computing_process_leaves_whole_entries_only(tmp_path: Path, cache: Path) -> None:
    generator = random.Random(1)
    for number in range(200):
        log = os.fsencode(tmp_path / f"log{number}")
        load = functools.partial(share.load, sharing.counted, log, number, 0.005)
        first, other = _start(load), _start(load)
        time.sleep(generator.uniform(0, 0.05))
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        assert os.waitpid(other, 0)[1] == 0
        assert share.load(sharing.counted, log, number, 0.005)["value"] == number
    assert all(path.name[0] == "." or folder.Cache(cache).opened(str(path)) for path in files(cache))


@pytest.mark.slow("a mount namespace")
@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace takes root here")
def test_container_without_the_file_computes_anew(tmp_path: Path, child: Child) -> None:
    (tmp_path / "data").mkdir()
    torch.save(torch.ones(5000), tmp_path / "data" / "a.pt")
    time.sleep(0.02)
    share.load(torch.load, str(tmp_path / "data" / "a.pt"))
    code = """
import ctypes, os, sys, time, torch
from zerocopy import share
path, hides, cache = sys.argv[1:]
if hides == "1":
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0x20000) == 0  # CLONE_NEWNS
    assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # MS_REC | MS_PRIVATE
    assert libc.mount(b"tmpfs", os.path.dirname(path).encode(), b"tmpfs", 0, None) == 0
    torch.save(torch.zeros(5000), path)
    time.sleep(0.02)
os.environ["ZEROCOPY_CACHE"] = cache
print(int(share.load(torch.load, path).sum()), len(share.status()))
"""
    for hides, expected in (("0", "5000 1\n"), ("1", "0 2\n"), ("0", "5000 2\n")):
        done = child(code, tmp_path / "data" / "a.pt", hides, os.environ["ZEROCOPY_CACHE"])
        assert done.stdout == expected, done.stderr


def test_upgrade_of_a_package_computes_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site-packages"
    (folder / "zc_package").mkdir(parents=True)
    text = "class Made:\n    number = {0}\n\ndef make():\n    return Made()\n"
    (folder / "zc_package" / "__init__.py").write_text(text.format(1))
    monkeypatch.syspath_prepend(folder)
    time.sleep(0.02)
    for version in (1, 2):
        (folder / "zc_package" / "new").write_text(text.format(version))
        (folder / "zc_package" / "new").replace(folder / "zc_package" / "__init__.py")
        time.sleep(0.02)
        module = __import__("zc_package")
        for _ in range(2):
            assert type(share.load(module.make)) is module.Made
        assert len(share.status()) == version
        del sys.modules["zc_package"]


def test_release_of_torch_and_of_zerocopy_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch.__version__", "zerocopy.share.call.__version__"):
        with monkeypatch.context() as patch:
            patch.setattr(name, "99.0")
            share.load(sharing.filled, 10)
    share.load(sharing.filled, 10)
    assert len({entry.key for entry in share.status()}) == 3
