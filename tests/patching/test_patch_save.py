"""``torch.save`` over a file that is mapped, while patched: live tensors keep their bytes."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Child, Saver, lies_in_mapping
from equality import assert_same
from file_systems import overlay

import zerocopy

SIZE = 100_000
STATE = {"weight": torch.arange(float(SIZE)), "epoch": 1}


def test_resume_and_save(save: Saver) -> None:
    path = save(STATE)
    with zerocopy.patched():
        resumed = torch.load(path)
        assert lies_in_mapping(resumed["weight"].data_ptr(), path)
        for epoch in range(2, 5):
            torch.save({"weight": resumed["weight"] + epoch, "epoch": epoch}, path)
            assert torch.equal(resumed["weight"], STATE["weight"])
            assert_same(torch.load(path), {"weight": STATE["weight"] + epoch, "epoch": epoch})
    assert list(path.parent.iterdir()) == [path]
    assert_same(torch.load(path)["weight"], STATE["weight"] + 4)


SMALLER = """
    import sys, torch, zerocopy
    zerocopy.patch()
    torch.save({"weight": torch.zeros(1)}, sys.argv[1])
"""


@pytest.fixture(params=["plain", pytest.param("overlay", marks=pytest.mark.slow("an overlay is mounted"))])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Give an empty folder. On an overlay the kernel does not say who maps a file."""
    if request.param == "overlay":
        with overlay(tmp_path) as mounted:
            yield mounted
    else:
        yield tmp_path


@pytest.mark.parametrize("load", [zerocopy.load, zerocopy.lazy_load])
def test_patched_save_of_another_process_leaves_mapped_tensors(
    folder: Path, forked: Child, load: Any
) -> None:
    path = folder / "model.pt"
    torch.save(STATE, path)
    state = load(path)
    real = dict(state)["weight"].materialize() if load is zerocopy.lazy_load else state["weight"]
    assert lies_in_mapping(real.data_ptr(), path)
    assert forked(SMALLER, path).returncode == 0
    assert torch.equal(real, STATE["weight"]) and torch.load(path)["weight"].numel() == 1


def test_patched_save_over_a_mapped_file_whose_name_is_not_text(tmp_path: Path) -> None:
    path = str(tmp_path / os.fsdecode(b"model-\xff.pt"))
    zerocopy.save({"a": torch.zeros(1000)}, path)
    loaded = zerocopy.load(path)
    with zerocopy.patched():
        torch.save({"a": torch.ones(1000)}, path)
    assert torch.equal(loaded["a"], torch.zeros(1000))
    assert torch.equal(zerocopy.load(path)["a"], torch.ones(1000))


def test_patched_save_of_mapped_and_lazy_tensors_over_their_file(save: Saver) -> None:
    path = save(STATE)
    with zerocopy.patched():
        state = torch.load(path)
        state["weight"][0] = 5
        torch.save(state, path)
        assert torch.load(path)["weight"][:2].tolist() == [5, 1]
        lazy = zerocopy.lazy_load(path)  # nothing of the file is mapped yet, which is open only
        torch.save({"again": lazy["weight"]}, path)
    assert torch.load(path)["again"][:2].tolist() == [5, 1]


def test_same_bytes_as_stock_writes_to_a_file_object(save: Saver, tmp_path: Path) -> None:
    with (tmp_path / "stock.pt").open("wb") as file:
        torch.save(STATE, file)
    path = save(STATE)
    with zerocopy.patched():
        state = torch.load(path)
        torch.save(STATE, path)
    assert path.read_bytes() == (tmp_path / "stock.pt").read_bytes()
    del state


def test_owner_mode_and_links_are_kept(save: Saver) -> None:
    path = save(STATE)
    if os.getuid() == 0:
        os.chown(path, 1234, 2345)
    path.chmod(0o640)
    owner = path.stat().st_uid, path.stat().st_gid
    link = path.with_name("latest.pt")
    link.symlink_to(path.name)
    with zerocopy.patched():
        state = torch.load(link)
        torch.save({"weight": torch.zeros(1)}, link)
    assert link.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert (path.stat().st_uid, path.stat().st_gid) == owner
    assert torch.load(path)["weight"].tolist() == [0]
    assert state["weight"][1] == 1


def test_failure_leaves_the_old_file(save: Saver) -> None:
    class Unpicklable:
        def __reduce__(self) -> Any:
            raise RuntimeError("not this one")

    path = save(STATE)
    before = path.read_bytes()
    with zerocopy.patched():
        state = torch.load(path)
        with pytest.raises(RuntimeError, match="not this one"):
            torch.save({"a": torch.ones(1000), "b": Unpicklable()}, path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]
    del state


def test_other_files_are_written_in_place(save: Saver) -> None:
    path = save(STATE)
    inode = path.stat().st_ino
    with zerocopy.patched():
        torch.save(STATE, path)
        assert path.stat().st_ino == inode
        torch.save(STATE, path.with_name("new.pt"))
        with path.with_name("file.pt").open("wb") as file:
            torch.save(STATE, file)
    for name in ("new.pt", "file.pt"):
        assert_same(torch.load(path.with_name(name)), STATE)


def test_arguments_and_errors_are_the_originals(save: Saver, tmp_path: Path) -> None:
    path = save(STATE)
    with zerocopy.patched():
        state = torch.load(path)
        torch.save(STATE, f=path, _use_new_zipfile_serialization=False)
        assert path.read_bytes()[:2] != b"PK"
        assert_same(torch.load(path), STATE)
        for wrong in ((), (STATE,)):
            with pytest.raises(TypeError):
                torch.save(*wrong)
        with pytest.raises((RuntimeError, OSError)):
            torch.save(STATE, tmp_path / "nowhere" / "x.pt")
    del state


def test_a_stock_mapping_counts(save: Saver) -> None:
    """The mapping may be another library's."""
    path = save(STATE)
    storage = torch.UntypedStorage.from_file(str(path), False, path.stat().st_size)
    with zerocopy.patched():
        torch.save({"weight": torch.zeros(1)}, path)
    assert bytes(storage[:2].tolist()) == b"PK" and storage[-1] is not None


KILLED = """
    import os, signal, sys, torch, zerocopy
    class Killing:
        def __reduce__(self):
            os.kill(os.getpid(), signal.SIGKILL)
    zerocopy.patch()
    state = torch.load(sys.argv[1])
    torch.save([state, Killing()], sys.argv[1])
"""


def test_killed_process_leaves_the_old_file_alone(save: Saver, forked: Child) -> None:
    path = save(STATE)
    before = path.read_bytes()
    assert forked(KILLED, path).returncode == -9
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


OF_ANOTHER = """
    import os, sys, torch, zerocopy
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    zerocopy.patch()
    state = zerocopy.load(sys.argv[1], mmap=sys.argv[2] == "mapped")
    try:
        torch.save({"weight": torch.zeros(1)}, sys.argv[1])
    except PermissionError as error:
        print(error)
    print(float(state["weight"].sum()))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="to become somebody else")
@pytest.mark.parametrize("how", ["mapped", "read"])
def test_folder_that_cannot_be_written_to(forked: Child, how: str) -> None:
    """Stock torch.save overwrites the file. That is done unless live tensors would lose their bytes."""
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "model.pt"
        torch.save(STATE, path)
        path.parent.chmod(0o755)
        path.chmod(0o666)
        done = forked(OF_ANOTHER, path, how)
        *refusal, total = done.stdout.splitlines()
        assert float(total) == STATE["weight"].sum(), done.stderr
        assert torch.load(path)["weight"].numel() == (SIZE if how == "mapped" else 1)
        assert bool(refusal) == (how == "mapped") and all("mmap=False" in line for line in refusal)


INTERRUPTED = """
    import os, signal, sys, torch, zerocopy
    zerocopy.patch()
    path, outcomes = sys.argv[1], {}
    state = torch.load(path)
    def interrupt(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, interrupt)
    for step in range(60):
        pid = os.fork()
        if pid == 0:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + step * 0.0003)
                torch.save(state, path)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                os._exit(7)
            except BaseException as error:
                print(repr(error), flush=True)
                os._exit(8)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        outcomes[status] = outcomes.get(status, 0) + 1
        state = torch.load(path)  # The next save has to find the current file mapped.
        assert len(state) == 100
    print(set(outcomes) <= {0, 7}, outcomes)
"""


@pytest.mark.slow("interrupts sixty saves")
def test_ctrl_c_at_any_moment_is_a_keyboard_interrupt(save: Saver, forked: Child) -> None:
    path = save({f"k{number}": torch.ones(20_000) for number in range(100)})
    done = forked(INTERRUPTED, path)
    assert done.returncode == 0 and done.stdout.startswith("True"), done.stdout + done.stderr
    assert list(path.parent.iterdir()) == [path]


def test_file_that_is_mapped_is_never_cut(save: Saver) -> None:
    for spelling in (os.fspath, os.fsencode, Path):
        path = save(STATE)
        with zerocopy.patched():
            state = torch.load(path)
            content = path.read_bytes()
            try:
                torch.save({"b": torch.ones(3)}, spelling(path))
            except (AttributeError, TypeError):  # bytes
                assert path.read_bytes() == content
            assert torch.equal(state["weight"], STATE["weight"])


def test_patched_save_is_later_than_a_background_save_that_began_before(save: Saver) -> None:
    path = save(STATE)
    saving = zerocopy.save({"a": torch.ones(1_000_000)}, path, wait=False)
    with zerocopy.patched():
        torch.save({"later": torch.ones(1)}, path)
    saving.wait()
    assert list(torch.load(path)) == ["later"]
