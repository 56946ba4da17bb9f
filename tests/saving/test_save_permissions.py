"""A file saved over another can be read by the readers of the old file, at every moment, and by nobody
else."""

from __future__ import annotations

import errno
import os
import stat
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import saved_bytes

import zerocopy
from zerocopy.saving import atomic_file, snapshot

ACL, DEFAULT_ACL = "system.posix_acl_access", "system.posix_acl_default"
STATE = {"weight": torch.arange(1000.0)}

SAVERS: dict[str, Callable[[Path], object]] = {
    "save": lambda path: zerocopy.save(STATE, path),
    "convert": lambda path: zerocopy.convert(saved_bytes(STATE), path),
    "torch.save, mapped": lambda path: save_patched(path),
}


def save_patched(path: Path) -> None:
    with zerocopy.patched():
        state = torch.load(path)
        torch.save(STATE, path)
        del state


@pytest.fixture(params=[True, False], ids=["without a name", "named"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a file, on a file system that can make files without a name, or that cannot."""
    if not request.param:
        os_open = os.open

        def opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            return os_open(path, flags, *rest, **named)

        monkeypatch.setattr(atomic_file.os, "open", opened)
    torch.save(STATE, tmp_path / "model.pt")
    return tmp_path / "model.pt"


def acl(user: int, group: int, mask: int, other: int = 0) -> bytes:
    """Pack an access control list: the owner may do all, user 1234 `user`, the group `group`, ..."""
    nobody = 0xFFFFFFFF
    entries = [(1, 6, nobody), (2, user, 1234), (4, group, nobody), (16, mask, nobody), (32, other, nobody)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def set_attribute(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        pytest.skip(f"this file system has no {name}: {error}")


@pytest.mark.slow("sixty saves beside a thread that watches")
@pytest.mark.parametrize("saver", SAVERS)
def test_private_file_is_never_readable_by_others(path: Path, saver: str) -> None:
    """A thread watches all files of the folder."""
    path.chmod(0o600)
    seen: set[int] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            for entry in os.scandir(path.parent):
                try:
                    seen.add(stat.S_IMODE(entry.stat().st_mode))
                except FileNotFoundError:
                    continue

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(20):
            SAVERS[saver](path)
    finally:
        ended.set()
        looking.join()
    assert seen == {0o600}


@pytest.mark.parametrize("saver", SAVERS)
def test_new_file_is_private_until_it_is_like_the_old_one(
    path: Path, saver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As seen each time that something about it changes."""
    path.chmod(0o640)
    modes: list[int] = []
    for name in ("fchown", "fchmod", "setxattr"):
        function = getattr(os, name)

        def noting(target: Any, *rest: Any, function: Any = function, **named: Any) -> Any:
            modes.append(stat.S_IMODE(os.fstat(target).st_mode))
            return function(target, *rest, **named)

        monkeypatch.setattr(os, name, noting)
    SAVERS[saver](path)
    monkeypatch.undo()
    assert modes and set(modes) == {0o600} and stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("saver", SAVERS)
def test_attributes_are_kept(path: Path, saver: str) -> None:
    set_attribute(path, "user.origin", b"here")
    set_attribute(path, ACL, acl(user=4, group=0, mask=4))
    before = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    mode = path.stat().st_mode
    SAVERS[saver](path)
    assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == before
    assert path.stat().st_mode == mode


def test_default_list_of_the_folder_does_not_widen(path: Path) -> None:
    set_attribute(path.parent, DEFAULT_ACL, acl(user=6, group=6, mask=6, other=6))
    path.chmod(0o640)
    zerocopy.save(STATE, path)
    assert ACL not in os.listxattr(path) and stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(("mode", "left"), [(0o664, 0o644), (0o604, 0o600), (0o666, 0o666)])
def test_group_that_cannot_be_restored_gives_its_permissions_to_no_other(
    path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, left: int
) -> None:
    path.chmod(mode)
    old = path.stat()
    monkeypatch.setattr(atomic_file, "_status_of", lambda _: StatOfAnotherGroup(old))

    def refused(*_: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", refused)
    zerocopy.save(STATE, path)
    assert stat.S_IMODE(path.stat().st_mode) == left


class StatOfAnotherGroup:
    """The stat of a file whose group its owner does not belong to."""

    def __init__(self, status: os.stat_result) -> None:
        self.st_mode, self.st_uid, self.st_gid = status.st_mode, status.st_uid, status.st_gid + 1


def test_acl_that_cannot_be_restored_adds_no_permission(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_attribute(path, ACL, acl(user=6, group=0, mask=6, other=4))

    def refused(*_: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "setxattr", refused)
    zerocopy.save(STATE, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(("way", "later"), [("process", 0o600), ("thread", 0o400)])
def test_permissions_taken_away_during_a_save_stay_away(
    path: Path, monkeypatch: pytest.MonkeyPatch, way: str, later: int
) -> None:
    monkeypatch.setattr(
        snapshot, "why_not_to_fork", lambda _: "" if way == "process" else "the test wants a thread"
    )
    path.chmod(0o644)
    saving = zerocopy.save({"a": torch.ones(9_000_000)}, path, wait=False)
    path.chmod(later)
    saving.wait()
    assert stat.S_IMODE(path.stat().st_mode) == later
    assert len(torch.load(path)["a"]) == 9_000_000


def test_mode_of_the_end_is_kept(path: Path) -> None:
    zerocopy.save(STATE, path)
    path.chmod(0o644)
    source = path.with_name("source.pt")
    zerocopy.save(STATE, source)
    zerocopy.convert(source, path, progress=lambda *_: path.chmod(0o640))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
