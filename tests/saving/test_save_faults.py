"""``zerocopy.save`` when something goes wrong, and over files that are mapped: whole or not at all."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Child, Saver, digest, lies_in_mapping, stock_load
from equality import assert_same

import zerocopy
from zerocopy.saving import sink

SIZE = 1 << 20
STATE = {"weight": torch.arange(float(SIZE)), "bias": torch.arange(float(SIZE)).neg(), "step": 1}


class FaultyError(Exception):
    """Raised by pickling a Faulty."""


class Faulty:
    def __reduce__(self) -> Any:
        raise FaultyError


def interrupt(*_: int) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("fault", ["pickling", "interrupted"])
def test_failed_save_keeps_the_old_file(tmp_path: Path, there: bool, fault: str) -> None:
    path = tmp_path / "model.pt"
    if there:
        path.write_bytes(b"as it was")
    obj, progress = ([STATE, Faulty()], None) if fault == "pickling" else (STATE, interrupt)
    with pytest.raises(FaultyError if fault == "pickling" else KeyboardInterrupt):
        zerocopy.save(obj, path, progress=progress)
    assert list(tmp_path.iterdir()) == [path] * there
    assert not there or path.read_bytes() == b"as it was"


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors", "model.h5"])
def test_interrupt_just_after_the_file_is_made_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name.endswith("h5"):
        pytest.importorskip("h5py")
    opened = []

    def open_and_interrupt(*arguments: Any, **others: Any) -> int:
        descriptor = real_open(*arguments, **others)
        if arguments[1] & (os.O_TMPFILE | os.O_CREAT) not in (0, os.O_DIRECTORY):
            opened.append(descriptor)
            signal.raise_signal(signal.SIGINT)
        return descriptor

    torch.save(STATE, tmp_path / "source.pt")
    real_open = os.open
    monkeypatch.setattr(os, "open", open_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        zerocopy.convert(tmp_path / "source.pt", tmp_path / name)
    monkeypatch.undo()
    assert len(opened) == 1 and not Path(f"/proc/self/fd/{opened[0]}").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["source.pt"]


@pytest.mark.slow("kill -9 of a Python that starts for it")
@pytest.mark.parametrize("has_name", [False, True])
def test_killed_in_the_middle(save: Saver, tmp_path: Path, has_name: bool) -> None:
    """On file systems that make files without a name nothing is left; elsewhere until the next save."""
    path = save(STATE)
    before = digest(path)
    code = """
        import sys, time, torch, zerocopy
        from zerocopy.saving import atomic_file
        def progress(done, total):
            if done > total // 2:
                print("half", flush=True)
                time.sleep(600)
        if sys.argv[2] == "True":
            os_open = atomic_file.os.open
            def open_named(path, flags, *rest, **named):
                if flags & atomic_file.os.O_TMPFILE == atomic_file.os.O_TMPFILE:
                    raise OSError(atomic_file.errno.EOPNOTSUPP, "not here")
                return os_open(path, flags, *rest, **named)
            atomic_file.os.open = open_named
        zerocopy.save({f"layer{i}": torch.ones(1 << 20) for i in range(8)}, sys.argv[1], progress=progress)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(path), str(has_name)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"half\n"
        written = set(tmp_path.iterdir()) - {path}
        # Another process saves meanwhile: it must not take the file that is being written for a leftover.
        zerocopy.save({"other": 1}, path)
        left = set(tmp_path.iterdir())
        process.kill()
    assert len(written) == has_name and left == {path, *written}
    assert stock_load(path) == {"other": 1} and digest(path) != before
    assert set(tmp_path.iterdir()) == {path, *written}
    zerocopy.save(STATE, path)
    assert list(tmp_path.iterdir()) == [path]
    assert_same(stock_load(path), STATE)


def test_files_that_only_look_like_leftovers_stay(tmp_path: Path) -> None:
    names = ("model.pt.part", ".model.pt", ".other.pt.0.part", ".model.pt.x", ".model.pt.mine.part")
    others = [tmp_path / name for name in (*names, ".model.pt.0123456789abcdef.bak.part", ".model.pt..part")]
    for other in others:
        other.write_bytes(b"mine")
    zerocopy.save(STATE, tmp_path / "model.pt")
    assert set(tmp_path.iterdir()) == {tmp_path / "model.pt", *others}


# ----------------------------------------------------------------------------- bad input


def test_a_folder_is_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        zerocopy.save(STATE, tmp_path)
    assert caught.value.filename == str(tmp_path) and not any(tmp_path.iterdir())


WRITERS: dict[str, Callable[[str], object]] = {
    "save": lambda path: zerocopy.save({}, path),
    "Writer": lambda path: zerocopy.Writer(path).__enter__().save({}),
    "gds.save": lambda path: zerocopy.gds.save({"w": torch.ones(2)}, path),
    "convert": lambda path: zerocopy.convert({"w": torch.ones(2)}, path),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_the_name_of_a_folder(tmp_path: Path, writer: str) -> None:
    """The error of the operating system is raised, and no file is left."""
    (tmp_path / "there.pt").touch()
    for name in ("x.pt/", "x.pt/.", "there.pt/", "no folder/x.pt/", "there.pt/x.pt/"):
        path = f"{tmp_path}/{name}"
        with pytest.raises(OSError) as wanted:
            open(path, "wb")  # noqa: PTH123, SIM115
        with pytest.raises(type(wanted.value)) as caught:
            WRITERS[writer](path)
        assert (caught.value.errno, caught.value.filename) == (wanted.value.errno, path)
    assert [path.name for path in tmp_path.iterdir()] == ["there.pt"]


OF_ANOTHER = """
    import os, sys, zerocopy
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    try:
        zerocopy.save(1, sys.argv[1])
    except PermissionError as error:
        print(error.filename)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="to become somebody else")
@pytest.mark.parametrize("mode", [0o444, 0o644])
def test_a_file_that_may_not_be_written_to_is_not_replaced(forked: Child, mode: int) -> None:
    """The folder would allow it."""
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "model.pt"
        path.write_bytes(b"as it was")
        path.chmod(mode)
        if mode == 0o444:
            os.chown(path, 65534, 65534)  # its own
        path.parent.chmod(0o777)
        done = forked(OF_ANOTHER, path)
        assert done.stdout.strip() == str(path), done.stderr
        assert path.read_bytes() == b"as it was" and list(path.parent.iterdir()) == [path]


OF_A_GROUP = """
    import logging, os, sys, torch, zerocopy
    logging.basicConfig(format="%(levelname)s %(message)s")
    os.setgroups([50])
    os.setgid(1001)
    os.setuid(1001)
    zerocopy.save({"a": torch.ones(3)}, sys.argv[1])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="to become somebody else")
def test_an_owner_who_is_not_kept_is_named(forked: Child) -> None:
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "model.pt"
        path.write_bytes(b"as it was")
        path.chmod(0o660)
        os.chown(path, 1000, 50)
        path.parent.chmod(0o777)
        done = forked(OF_A_GROUP, path)
        status = path.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (1001, 50, 0o660)
        assert done.stderr == f"WARNING {path}: not kept, as this user may not set it: the owner 1000\n"


@pytest.mark.parametrize("size", [4, SIZE])
def test_a_device_that_is_full(size: int) -> None:
    with pytest.raises(OSError) as caught:
        zerocopy.save(torch.ones(size), "/dev/full")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/dev/full")


def test_a_file_without_a_name() -> None:
    with os.fdopen(os.memfd_create("model"), "rb") as file:
        before = set(Path("/").iterdir())
        zerocopy.save(STATE, f"/proc/self/fd/{file.fileno()}")
        assert set(Path("/").iterdir()) == before
        assert_same(stock_load(file), STATE)


def test_error_of_a_callback_is_raised_unchanged(save: Saver) -> None:
    path = save(STATE)

    def fail(*_: int) -> None:
        raise OSError(errno.EPIPE, "mine", "elsewhere")

    for state in (STATE, zerocopy.load(path)):  # from memory, from file to file
        with pytest.raises(BrokenPipeError) as caught:
            zerocopy.save(state, path, progress=fail)
        assert caught.value.filename == "elsewhere"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.slow("a small disk")
@pytest.mark.parametrize("mapped", [False, True])
def test_the_disk_is_full(save: Saver, small_disk: Path, mapped: bool) -> None:
    path = small_disk / "model.pt"
    zerocopy.save({"small": 1}, path)
    with pytest.raises(OSError, match="No space left") as caught:
        zerocopy.save(zerocopy.load(save(STATE)) if mapped else STATE, path)
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(path)
    assert list(small_disk.iterdir()) == [path] and stock_load(path) == {"small": 1}


def test_files_may_not_be_that_large(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"as it was")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, before[1]))
    try:
        with pytest.raises(OSError) as caught:
            zerocopy.save(STATE, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert caught.value.errno == errno.EFBIG and caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b"as it was"


# ----------------------------------------------------------------------------- mapped files


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the sizes of what is copied from file to file."""
    sizes: list[int] = []

    def copy_file_range(target: int, source: int, offset: int, size: int) -> int:
        sizes.append(os.copy_file_range(source, target, size, offset))
        return sizes[-1]

    monkeypatch.setattr(sink, "_copy_file_range", copy_file_range)
    return sizes


@pytest.mark.parametrize(
    ("mode", "name", "checksum"),
    [
        ("c", "checkpoint.pt", True),
        ("c", "other.pt", False),
        ("r", "other.pt", True),
        ("r+", "other.pt", True),
    ],
)
def test_mapped_tensors_are_copied_from_file_to_file(
    save: Saver, copied: list[int], mode: str, name: str, checksum: bool
) -> None:
    path = save(STATE)
    state = zerocopy.load(path, mode=mode)
    zerocopy.save(state, path.with_name(name), checksum=checksum)
    assert sum(copied) == 8 * SIZE
    assert_same(stock_load(path.with_name(name)), STATE)
    assert_same(state, STATE)
    with zipfile.ZipFile(path.with_name(name)) as archive:
        assert (archive.testzip() is None) is checksum


@pytest.mark.parametrize("place", [0, SIZE // 2, -1])
def test_changed_elements_of_a_mapped_tensor_are_saved(save: Saver, copied: list[int], place: int) -> None:
    """One element, in the first page, in the middle, in the last page, which also the next storage begins in."""
    path = save(STATE)
    state = zerocopy.load(path)
    state["weight"][place] = 0.5
    zerocopy.save(state, path)
    loaded = stock_load(path)
    assert loaded["weight"][place] == 0.5 and sum(copied) in (0, 4 * SIZE)
    loaded["weight"][place] = STATE["weight"][place]
    assert_same(loaded, STATE)


@pytest.mark.parametrize("gone", ["deleted", "replaced"])
def test_files_that_have_lost_their_name(save: Saver, copied: list[int], gone: str) -> None:
    path = save(STATE)
    state = zerocopy.load(path)
    path.unlink()
    if gone == "replaced":
        save({"weight": torch.zeros(SIZE), "bias": torch.zeros(SIZE), "step": 1})
    zerocopy.save(state, path)
    assert not copied
    assert_same(stock_load(path), STATE)


@pytest.mark.parametrize(("refusal", "also"), [(errno.EXDEV, True), (errno.EINVAL, False)])
def test_file_systems_that_cannot_copy(
    save: Saver, monkeypatch: pytest.MonkeyPatch, refusal: int, also: bool
) -> None:
    def refuse(*_: int) -> int:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(sink, "_copy_file_range", refuse)
    if also:
        monkeypatch.setattr(os, "sendfile", refuse)
    path = save(STATE)
    zerocopy.save(zerocopy.load(path), path.with_name("other.pt"))
    assert_same(stock_load(path.with_name("other.pt")), STATE)


def test_over_a_file_that_is_mapped(save: Saver) -> None:
    path = save(STATE)
    state = zerocopy.load(path)
    zerocopy.save({"small": 1}, path)
    assert_same(state, STATE)
    assert not lies_in_mapping(state["weight"].data_ptr(), path)  # its name is another's now
