"""``zerocopy.save`` when something goes wrong, and over files that are mapped: whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest
import torch
from conftest import Child, Saver, lies_in_mapping, stock_load
from equality import assert_same
from sharing import wait_until
from system_calls import NO_UNNAMED_FILES, Refusal, in_child, refuse

import zerocopy
from zerocopy.saving import atomic_file, snapshot

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


class Alarm(Exception):
    """Raised by the handler."""


STEPS = {
    "save": lambda path, number: zerocopy.save({"x": torch.full((3,), number)}, path),
    "background": lambda path, number: zerocopy.save(
        {"x": torch.full((3,), number)}, path, wait=False
    ).wait(),
    "replacing": lambda path, _: replace(path),
    "Writer": lambda path, number: write_early(path, number),
}


def replace(path: Path) -> None:
    with atomic_file.replacing(path) as new:
        new.write(path.with_name("source.pt").read_bytes())


def write_early(path: Path, number: int) -> None:
    with zerocopy.Writer(path) as writer:
        writer.save({"x": writer.store_early(torch.full((3,), number))})


def descriptors() -> set[str]:
    gc.collect()  # garbage of earlier tests may hold some
    return {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}


@pytest.mark.parametrize(
    "stride", [7, pytest.param(1, marks=pytest.mark.slow("every line"))], ids=["seventh", "every"]
)
@pytest.mark.parametrize("way", STEPS)
def test_exception_of_a_handler_at_any_line_leaves_nothing(tmp_path: Path, way: str, stride: int) -> None:
    """An exception is raised at a line of what saves, then at a later one, ..."""
    path = tmp_path / "m.pt"
    torch.save({"x": torch.zeros(3)}, tmp_path / "source.pt")
    STEPS[way](path, 0)
    before = descriptors()
    line, is_over = 0, False
    while not is_over:
        line += stride
        is_over = not raised_at(line, partial(STEPS[way], path, line))
        for thread in threading.enumerate():
            if thread.name == "zerocopy-save":
                thread.join()
        zerocopy.save({"x": torch.zeros(3)}, path)
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m.pt", "source.pt"], line
        assert descriptors() == before, line
    assert line > 20


def raised_at(line: int, work: Callable[[], object]) -> bool:
    """Raise an exception at a line, counted from the begin of `work`, of the modules that save."""
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if event == "call" and not is_of_saving(frame):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise Alarm
        return trace

    # CPython may leave the exception that a line handles to its thread when a trace function raises there, and to
    # all later tests with it. A generator has a state of its own.
    def in_own_state() -> Iterator[None]:
        sys.settrace(trace)
        try:
            work()
        except Alarm:
            pass
        finally:
            sys.settrace(None)
        yield

    next(in_own_state())
    return left <= 0


def is_of_saving(frame: FrameType) -> bool:
    """Return whether a line of what saves is executed, or of contextlib for it. Finalizers swallow exceptions."""
    files = [found.f_code.co_filename for found, _ in traceback.walk_stack(frame)]
    is_ours = files[0].startswith(SAVING) or (files[0] == contextlib.__file__ and files[1].startswith(SAVING))
    return is_ours and all(found.f_code.co_name != "__del__" for found, _ in traceback.walk_stack(frame))


SAVING = str(Path(zerocopy.__file__).parent / "saving")


# ----------------------------------------------------------------------------- kill -9


def written_forever(path: Path, way: str) -> None:
    number = 0
    while True:
        number += 1
        state = {"number": number, "x": torch.full((100_000,), float(number)), "y": torch.ones(200_000)}
        if way == "mapped":
            state["y"] = zerocopy.load(path)["y"]
        if way == "convert":
            zerocopy.convert(path.with_name("source.pt"), path)
        elif way == "Writer":
            with zerocopy.Writer(path) as writer:
                writer.save(writer.store_early(state))
        else:
            saving = zerocopy.save(state, path, wait=way != "background")
            if saving is not None:
                saving.wait()


def killed_writer(path: Path, way: str, kind: tuple[Refusal, ...], seconds: float) -> None:
    """Kill a process that writes to a file again and again."""
    pid = os.fork()
    if pid == 0:
        try:
            snapshot.why_not_to_fork = lambda _: ""  # type: ignore[assignment]
            refuse(*kind)
            written_forever(path, way)
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize(
    "count", [4, pytest.param(50, marks=pytest.mark.slow("400 processes are killed"))], ids=["few", "many"]
)
@pytest.mark.parametrize("kind", [(), (NO_UNNAMED_FILES,)], ids=["without a name", "named"])
@pytest.mark.parametrize("way", ["save", "mapped", "background", "Writer", "convert"])
def test_killed_writer_leaves_one_whole_file(
    tmp_path: Path, way: str, kind: tuple[Refusal, ...], count: int
) -> None:
    path = tmp_path / "m.pt"
    torch.save({"number": 0, "x": torch.zeros(100_000), "y": torch.ones(200_000)}, tmp_path / "source.pt")
    zerocopy.save(torch.load(tmp_path / "source.pt"), path)
    random = Random(way)
    for _ in range(count):
        killed_writer(path, way, kind, random.uniform(0.01, 0.1))
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
        state = stock_load(path)
        assert torch.equal(state["x"], torch.full((100_000,), float(state["number"])))
        assert torch.equal(state["y"], torch.ones(200_000))
    if way == "background" and not kind:  # the process that a killed one left behind finishes its file
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    zerocopy.save({"number": -1}, path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m.pt", "source.pt"]


def test_file_of_a_writer_at_work_is_not_a_leftover(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"

    def saved_within(_: int, __: int) -> None:
        child = os.fork()
        if child == 0:
            zerocopy.save({"other": 1}, path)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    in_child(lambda: zerocopy.save(STATE, path, progress=saved_within), NO_UNNAMED_FILES)
    assert_same(stock_load(path), STATE)
    assert list(tmp_path.iterdir()) == [path]


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
            open(path, "wb")  # noqa: SIM115
        with pytest.raises(type(wanted.value)) as caught:
            WRITERS[writer](path)
        assert (caught.value.errno, caught.value.filename) == (wanted.value.errno, path)
    with pytest.raises(zerocopy.UnsupportedError, match=r"s3://bucket/x\.pt: URLs are only read"):
        WRITERS[writer]("s3://bucket/x.pt")
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
        assert done.stderr == f"WARNING {path}: not kept, as this user may not set it: the owner\n"


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
    save: Saver, mode: str, name: str, checksum: bool
) -> None:
    path = save(STATE)
    state = zerocopy.load(path, mode=mode)
    zerocopy.save(state, path.with_name(name), checksum=checksum)
    assert_same(stock_load(path.with_name(name)), STATE)
    assert_same(state, STATE)
    with zipfile.ZipFile(path.with_name(name)) as archive:
        assert (archive.testzip() is None) is checksum


@pytest.mark.parametrize("place", [0, SIZE // 2, -1])
def test_changed_elements_of_a_mapped_tensor_are_saved(save: Saver, place: int) -> None:
    """One element, in the first page, in the middle, in the last page, which also the next storage begins in."""
    path = save(STATE)
    state = zerocopy.load(path)
    state["weight"][place] = 0.5
    zerocopy.save(state, path)
    loaded = stock_load(path)
    assert loaded["weight"][place] == 0.5
    loaded["weight"][place] = STATE["weight"][place]
    assert_same(loaded, STATE)


@pytest.mark.parametrize("gone", ["deleted", "replaced"])
def test_files_that_have_lost_their_name(save: Saver, gone: str) -> None:
    path = save(STATE)
    state = zerocopy.load(path)
    path.unlink()
    if gone == "replaced":
        save({"weight": torch.zeros(SIZE), "bias": torch.zeros(SIZE), "step": 1})
    zerocopy.save(state, path)
    assert_same(stock_load(path), STATE)


@pytest.mark.parametrize("refused", [["copy_file_range"], ["copy_file_range", "sendfile"]])
def test_file_systems_that_cannot_copy(save: Saver, refused: list[str]) -> None:
    path = save(STATE)
    state = zerocopy.load(path)
    refusals = [Refusal(name, errno.EXDEV) for name in refused]
    in_child(lambda: zerocopy.save(state, path.with_name("other.pt"), checksum=False), *refusals)
    assert_same(stock_load(path.with_name("other.pt")), STATE)


TMPFILE = os.O_TMPFILE & ~os.O_DIRECTORY
FAULTS = [
    Refusal("openat", errno.ENOSPC, 2, os.O_CREAT, os.O_CREAT),
    Refusal("openat", errno.EROFS, 2, TMPFILE, TMPFILE),
    Refusal("writev", errno.ENOSPC),
    Refusal("writev", errno.EDQUOT),
    Refusal("writev", errno.EIO),
    Refusal("lseek", errno.EIO),
    Refusal("copy_file_range", errno.ENOSPC),
    Refusal("fsync", errno.ENOSPC),
    Refusal("fsync", errno.EIO),
    Refusal("fchmod", errno.EROFS),
    Refusal("linkat", errno.ENOSPC),
    Refusal("rename", errno.EIO),
]


@pytest.mark.parametrize("wait", [True, False], ids=["wait", "background"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.name}-{errno.errorcode[fault.error]}")
def test_every_system_call_that_fails_leaves_the_old_file(
    save: Saver, tmp_path: Path, fault: Refusal, wait: bool
) -> None:
    path, source = tmp_path / "m.pt", save(STATE)
    path.write_bytes(b"as it was")
    path.chmod(0o640)
    kind = [NO_UNNAMED_FILES] if fault.mask == os.O_CREAT else []

    def failing() -> None:
        state = zerocopy.load(source)
        with pytest.raises(OSError) as caught:
            with zerocopy.skip_data() if fault.name == "lseek" else contextlib.nullcontext():
                saving = zerocopy.save(state, path, checksum=fault.name != "copy_file_range", wait=wait)
            if saving is not None:
                saving.wait()
        assert (caught.value.errno, caught.value.filename) == (fault.error, str(path))

    snapshot_before = path.stat().st_ino
    in_child(failing, *kind, fault)
    assert path.read_bytes() == b"as it was" and path.stat().st_ino == snapshot_before
    assert set(tmp_path.iterdir()) == {path, source}


def test_over_a_file_that_is_mapped(save: Saver) -> None:
    path = save(STATE)
    state = zerocopy.load(path)
    zerocopy.save({"small": 1}, path)
    assert_same(state, STATE)
    assert not lies_in_mapping(state["weight"].data_ptr(), path)  # its name is another's now
