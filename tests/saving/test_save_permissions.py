"""A file saved over another can be read by the readers of the old file, at every moment, and by nobody
else."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import saved_bytes
from system_calls import NO_UNNAMED_FILES, Refusal, in_child

import zerocopy
from zerocopy.saving import snapshot

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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.save(STATE, tmp_path / "model.pt")
    return tmp_path / "model.pt"


#: File systems that make files without a name, and those that do not.
KINDS = pytest.mark.parametrize("kind", [(), (NO_UNNAMED_FILES,)], ids=["without a name", "named"])


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


@pytest.mark.parametrize("mode", [0o600, 0o640])
@pytest.mark.parametrize("saver", SAVERS)
@KINDS
def test_file_is_never_wider_than_the_old_one(
    path: Path, saver: str, mode: int, kind: tuple[Refusal, ...]
) -> None:
    """A thread watches all files of the folder, and those without a name that this process has open."""
    in_child(lambda: watch(path, saver, mode), *kind)


def watch(path: Path, saver: str, mode: int) -> None:
    path.chmod(mode)
    seen: set[int] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            for entry in [*path.parent.iterdir(), *Path("/proc/self/fd").iterdir()]:
                with contextlib.suppress(OSError):
                    fd = os.open(entry, os.O_PATH)  # the number may be another file's a moment later
                    try:
                        if os.readlink(f"/proc/self/fd/{fd}").startswith(f"{path.parent}/"):
                            seen.add(stat.S_IMODE(os.stat(fd).st_mode))
                    finally:
                        os.close(fd)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(5):
            SAVERS[saver](path)
    finally:
        ended.set()
        looking.join()
    assert {0o600, mode} >= seen >= {mode} and stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("saver", SAVERS)
@KINDS
def test_attributes_are_kept(path: Path, saver: str, kind: tuple[Refusal, ...]) -> None:
    set_attribute(path, "user.origin", b"here")
    set_attribute(path, ACL, acl(user=4, group=0, mask=4))
    before = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    mode = path.stat().st_mode
    in_child(lambda: SAVERS[saver](path), *kind)
    assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == before
    assert path.stat().st_mode == mode


def test_default_list_of_the_folder_does_not_widen(path: Path) -> None:
    set_attribute(path.parent, DEFAULT_ACL, acl(user=6, group=6, mask=6, other=6))
    path.chmod(0o640)
    zerocopy.save(STATE, path)
    assert ACL not in os.listxattr(path) and stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.skipif(os.getuid() != 0, reason="to give a file to another group")
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize(("mode", "left"), [(0o664, 0o644), (0o604, 0o600), (0o666, 0o666)])
def test_group_that_cannot_be_restored_gives_its_permissions_to_no_other(
    path: Path, mode: int, left: int, wait: bool
) -> None:
    path.chmod(mode)
    os.chown(path, -1, 4321)
    in_child(lambda: save_and_wait(path, wait), Refusal("fchown", errno.EPERM))
    assert stat.S_IMODE(path.stat().st_mode) == left


def save_and_wait(path: Path, wait: bool) -> None:
    saving = zerocopy.save(STATE, path, wait=wait)
    if saving is not None:
        saving.wait()


def test_acl_that_cannot_be_restored_adds_no_permission(path: Path) -> None:
    set_attribute(path, ACL, acl(user=6, group=0, mask=6, other=4))
    in_child(lambda: zerocopy.save(STATE, path), Refusal("fsetxattr", errno.EPERM))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(("way", "later"), [("process", 0o600), ("thread", 0o400), ("process", 0o666)])
def test_permissions_changed_during_a_save_are_kept(
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
