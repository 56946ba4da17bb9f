"""``zerocopy.save(..., wait=False)``: the file holds what the object held at the call."""

from __future__ import annotations

import ctypes
import errno
import gc
import io
import logging
import mmap
import os
import pickle
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from background_saves import LARGE, LARGEST, StoppedWriters
from conftest import Child, Saver, stock_load
from equality import assert_same
from sharing import wait_until
from system_calls import NO_COPIES, NO_UNNAMED_FILES, Refusal, in_child

import zerocopy
from zerocopy.saving import snapshot
from zerocopy.saving.pickled_object import PickledObject

BASE = torch.arange(2000.0)
STATE = {
    "weight": BASE,
    "view": BASE[10:20],
    "bias": torch.ones(3, dtype=torch.bfloat16),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "empty": torch.empty(0),
    "large": LARGE,
    "step": 7,
}


def written(obj: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    zerocopy.save(obj, file, **options)
    return file.getvalue()


@pytest.fixture(params=["process", "thread"])
def writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have that write, whatever would stop the caller for a shorter time."""
    reason = "" if request.param == "process" else "the test wants a thread"
    monkeypatch.setattr(snapshot, "why_not_to_fork", lambda _: reason)
    name: str = request.param
    return name


@pytest.fixture
def by_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "why_not_to_fork", lambda _: "")


@pytest.fixture
def stopped(by_process: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoppedWriters]:
    """Stop the processes that write."""
    writers = StoppedWriters(monkeypatch)
    yield writers
    writers.go_on()


# ----------------------------------------------------------------------------- the file


@pytest.mark.parametrize("options", [{}, {"checksum": False}, {"alignment": 1 << 16}], ids=str)
def test_background_save_writes_the_bytes_that_a_plain_save_writes(
    tmp_path: Path, writer: str, options: Any
) -> None:
    path = tmp_path / "model.pt"
    saving = zerocopy.save(STATE, path, wait=False, **options)
    assert saving.wait() is None  # type: ignore[func-returns-value]
    assert saving.done and saving.progress == (PickledObject(STATE).total,) * 2
    assert path.read_bytes() == written(STATE, **options)
    assert list(tmp_path.iterdir()) == [path]
    assert_same(stock_load(path), STATE)


def test_later_writes_never_reach_the_file(
    tmp_path: Path, writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = StoppedWriters(monkeypatch)
    state = {"weight": BASE.clone(), "large": LARGE.clone()}
    state["view"], state["tied"] = state["weight"][10:20], state["large"]
    before = written(state)
    path = tmp_path / "model.pt"
    saving = zerocopy.save(state, path, wait=False)
    for tensor in state.values():
        tensor.zero_()
    stopped.go_on()
    saving.wait()
    assert path.read_bytes() == before
    loaded = stock_load(path)
    assert loaded["view"].storage().data_ptr() == loaded["weight"].storage().data_ptr()


def test_shared_memory_is_kept_as_it_was(
    tmp_path: Path, writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the process sees what this one writes there."""
    stopped = StoppedWriters(monkeypatch)
    state = {"large": LARGE.clone(), "shared": torch.arange(1 << 20).share_memory_()}
    before = written(state)
    saving = zerocopy.save(state, tmp_path / "model.pt", wait=False)
    state["shared"].zero_()
    stopped.go_on()
    saving.wait()
    assert (tmp_path / "model.pt").read_bytes() == before


@pytest.mark.parametrize("mode", ["c", "r+"])
def test_tensors_of_a_mapped_file_that_is_mapped_for_writing_too(
    save: Saver, tmp_path: Path, writer: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = StoppedWriters(monkeypatch)
    source = save({"mapped": torch.arange(1 << 20), "small": torch.ones(3)})
    state = {"large": LARGE, **zerocopy.load(source, mode=mode)}
    shared = zerocopy.load(source, mode="r+")
    before = written(state)
    saving = zerocopy.save(state, tmp_path / "model.pt", wait=False)
    for tensor in shared.values():
        tensor.zero_()
    stopped.go_on()
    saving.wait()
    assert (tmp_path / "model.pt").read_bytes() == before


@pytest.mark.parametrize("load", [zerocopy.load, zerocopy.lazy_load], ids=["load", "lazy_load"])
def test_save_over_the_file_that_is_mapped(
    save: Saver, writer: str, load: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = StoppedWriters(monkeypatch)
    path = save({"first": torch.arange(1 << 20), "second": torch.arange(1 << 20), "large": LARGE})
    state = load(path)
    state["first"][5] = -1  # a page of its own; the others are the file's
    before = written(state)
    saving = zerocopy.save(state, path, wait=False)
    state["first"][6] = -1
    state["second"].zero_()
    stopped.go_on()
    saving.wait()
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]
    assert (state["first"][5], state["first"][6], state["first"][7]) == (-1, -1, 7)


def test_skip_data_leaves_room(tmp_path: Path, writer: str) -> None:
    with zerocopy.skip_data():
        saving = zerocopy.save({"weight": BASE}, tmp_path / "model.pt", wait=False)
        expected = written({"weight": BASE})
    saving.wait()
    assert (tmp_path / "model.pt").read_bytes() == expected
    assert saving.progress == (8000, 8000)


def test_file_objects_are_written_at_the_call(tmp_path: Path) -> None:
    file = io.BytesIO()
    saving = zerocopy.save(STATE, file, wait=False)
    assert saving.done and file.getvalue() == written(STATE)
    saving.wait()
    with pytest.raises(OSError, match="No space left"):
        zerocopy.save(STATE, "/dev/full", wait=False)


# ----------------------------------------------------------------------------- order


def test_the_later_save_to_a_path_wins(tmp_path: Path, stopped: StoppedWriters) -> None:
    path = tmp_path / "model.pt"
    first, *later = [zerocopy.save([LARGEST, number], path, wait=False) for number in (1, 2, 3)]
    stopped.go_on(1, 2)
    assert not path.exists()
    stopped.go_on()
    for saving in (*reversed(later), first):
        saving.wait()
    assert stock_load(path)[1] == 3 and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["save", "Writer", "thread"])
def test_a_save_that_waits_comes_behind_those_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: StoppedWriters, kind: str
) -> None:
    path, link = tmp_path / "model.pt", tmp_path / "link.pt"
    link.symlink_to(path)
    first = zerocopy.save([LARGEST, 1], link, wait=False)

    def save() -> None:
        if kind == "Writer":
            with zerocopy.Writer(path) as writing:
                writing.save([2])
        elif kind == "save":
            zerocopy.save([2], path)
        else:
            zerocopy.save([2], path, wait=False).wait()

    if kind == "thread":
        monkeypatch.setattr(snapshot, "why_not_to_fork", lambda _: "a thread")
    thread = threading.Thread(target=save)
    thread.start()
    assert not path.exists()
    stopped.go_on(0)
    thread.join()
    assert first.done and stock_load(path) == [2]


# ----------------------------------------------------------------------------- errors


def test_error_of_pickling_is_raised_by_the_call(tmp_path: Path) -> None:
    error = AttributeError if sys.version_info < (3, 14) else pickle.PicklingError
    with pytest.raises(error, match="lambda"):
        zerocopy.save({"weight": BASE, "bad": lambda: 1}, tmp_path / "model.pt", wait=False)
    with pytest.raises(ValueError, match="a power of two"):
        zerocopy.save(STATE, tmp_path / "model.pt", wait=False, alignment=3)
    assert not any(tmp_path.iterdir())


def test_no_such_folder_comes_at_wait(tmp_path: Path) -> None:
    saving = zerocopy.save(STATE, tmp_path / "nowhere" / "model.pt", wait=False)
    for _ in range(2):
        with pytest.raises(FileNotFoundError) as caught:
            saving.wait()
        assert caught.value.filename == str(tmp_path / "nowhere" / "model.pt")
    folder = zerocopy.save(STATE, tmp_path, wait=False)
    with pytest.raises(IsADirectoryError):
        folder.wait()


def test_a_folder_that_may_not_be_written_to(tmp_path: Path, forked: Child) -> None:
    (tmp_path / "model.pt").write_bytes(b"as it was")
    tmp_path.chmod(0o555)
    code = """
        import os, sys, zerocopy, torch
        if os.getuid() == 0:
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
        saving = zerocopy.save([torch.ones(3)], sys.argv[1], wait=False)
        try:
            saving.wait()
        except PermissionError as error:
            print(error.filename)
    """
    for folder in [tmp_path, *tmp_path.parents][:3]:
        folder.chmod(0o755 if folder != tmp_path else 0o555)
    done = forked(code, tmp_path / "model.pt")
    assert done.stdout.strip() == str(tmp_path / "model.pt"), done.stderr
    tmp_path.chmod(0o755)
    assert (tmp_path / "model.pt").read_bytes() == b"as it was"


@pytest.mark.slow("a small disk")
def test_the_disk_is_full_in_the_background(small_disk: Path, writer: str) -> None:
    path = small_disk / "model.pt"
    zerocopy.save({"small": 1}, path)
    saving = zerocopy.save(STATE, path, wait=False)
    with pytest.raises(OSError, match="No space left") as caught:
        saving.wait()
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert saving.done and saving.progress[0] < saving.progress[1]
    assert [found.name for found in small_disk.iterdir() if found.name != "lost+found"] == ["model.pt"]
    assert stock_load(path) == {"small": 1}


KINDS = pytest.mark.parametrize("kind", [(), (NO_UNNAMED_FILES,)], ids=["without a name", "named"])


@KINDS
def test_a_writer_that_is_killed_leaves_the_old_file(
    tmp_path: Path, stopped: StoppedWriters, kind: tuple[Refusal, ...]
) -> None:
    path = tmp_path / "model.pt"
    zerocopy.save({"small": 1}, path)

    def killed() -> None:
        saving = zerocopy.save([LARGEST], path, wait=False)
        assert len(list(tmp_path.iterdir())) == 1 + bool(kind)
        os.kill(stopped.processes[0], signal.SIGKILL)
        with pytest.raises(ChildProcessError, match="SIGKILL") as caught:
            saving.wait()
        assert caught.value.filename == str(path)

    in_child(killed, *kind)
    assert list(tmp_path.iterdir()) == [path] and stock_load(path) == {"small": 1}


@KINDS
def test_file_systems_without_unnamed_files(tmp_path: Path, writer: str, kind: tuple[Refusal, ...]) -> None:
    def saved() -> None:
        for number in range(2):
            zerocopy.save([LARGE, number], tmp_path / "model.pt", wait=False).wait()

    in_child(saved, *kind)
    assert list(tmp_path.iterdir()) == [tmp_path / "model.pt"]
    assert (tmp_path / "model.pt").read_bytes() == written([LARGE, 1])


def test_a_system_that_makes_no_copy_of_the_process(
    tmp_path: Path, by_process: None, caplog: pytest.LogCaptureFixture
) -> None:
    def saved() -> None:
        state = {"large": LARGE.clone()}
        before = written(state)
        with caplog.at_level(logging.INFO, "zerocopy"):
            saving = zerocopy.save(state, tmp_path / "model.pt", wait=False)
        state["large"].zero_()
        saving.wait()
        assert (tmp_path / "model.pt").read_bytes() == before
        assert "copying what is saved" in caplog.text

    in_child(saved, NO_COPIES)


def test_a_thread_writes_where_cuda_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with caplog.at_level(logging.DEBUG, "zerocopy"):
        zerocopy.save(STATE, tmp_path / "model.pt", wait=False).wait()
    assert "written by a thread: a device is in use" in caplog.text
    assert (tmp_path / "model.pt").read_bytes() == written(STATE)


def test_kernels_without_descriptors_of_processes(tmp_path: Path, by_process: None) -> None:
    path = tmp_path / "model.pt"

    def saved() -> None:
        said: list[tuple[int, int]] = []
        savings = [
            zerocopy.save([LARGE, number], path, wait=False, progress=lambda *numbers: said.append(numbers))
            for number in range(3)
        ]
        for saving in savings:
            saving.wait()
        assert said[-1] == savings[-1].progress

    in_child(saved, Refusal("pidfd_open", errno.ENOSYS))
    assert stock_load(path)[1] == 2


def test_memory_that_a_copy_of_the_process_does_not_have(tmp_path: Path, by_process: None) -> None:
    memory = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.madvise(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(1 << 20), mmap.MADV_DONTFORK) == 0
    saving = zerocopy.save(tensor, tmp_path / "model.pt", wait=False)
    with pytest.raises(OSError, match="MADV_DONTFORK") as caught:
        saving.wait()
    assert caught.value.errno == errno.ESTALE and not any(tmp_path.iterdir())


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _interrupt_after(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    def started(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    return started


@pytest.mark.parametrize("moment", ["before", "after"])
def test_interrupted_call_leaves_later_saves_and_files_alone(
    tmp_path: Path, writer: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception of a signal handler comes just before or after the start of the thread."""
    path, other, before = tmp_path / "m.pt", tmp_path / "other.bin", descriptors()
    zerocopy.save({"x": torch.zeros(3)}, path)
    start = threading.Thread.start
    with monkeypatch.context() as patch:
        patch.setattr(
            threading.Thread, "start", _interrupt if moment == "before" else _interrupt_after(start)
        )
        with pytest.raises(KeyboardInterrupt):
            zerocopy.save(STATE, path, wait=False)
    with other.open("wb") as file:  # it gets the lowest number that is free
        file.write(b"other")
        zerocopy.save({"x": torch.ones(3)}, path)
    assert other.read_bytes() == b"other"
    assert_same(zerocopy.load(path), {"x": torch.ones(3)})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m.pt", "other.bin"]
    assert descriptors() == before


def test_interrupted_call_keeps_the_old_file_if_it_has_no_snapshot(
    tmp_path: Path, writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program may go on to change its tensors, so nothing may be written of them."""
    path, may_go_on = tmp_path / "m.pt", threading.Event()
    zerocopy.save({"small": 1}, path)
    plan = snapshot.plan
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "plan", lambda *args, **named: may_go_on.wait() and plan(*args, **named))
        patch.setattr(threading.Event, "wait", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            zerocopy.save(STATE, path, wait=False)
    may_go_on.set()
    zerocopy.save([1], tmp_path / "other.pt", wait=False).wait()
    for thread in threading.enumerate():
        if thread.name == "zerocopy-save":
            thread.join()
    assert stock_load(path) == {"small": 1}


@pytest.mark.parametrize("progress", [None, lambda done, total: None])
def test_call_itself_writes_where_no_thread_can_start(
    tmp_path: Path, writer: str, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    zerocopy.save(STATE, tmp_path / "m.pt", wait=False, progress=progress).wait()
    assert_same(zerocopy.load(tmp_path / "m.pt"), STATE)


def test_error_without_a_wait_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saving = zerocopy.save(STATE, tmp_path / "nowhere" / "model.pt", wait=False)
    told = zerocopy.save(STATE, tmp_path / "elsewhere" / "model.pt", wait=False)
    with pytest.raises(FileNotFoundError):
        told.wait()
    assert not caplog.records
    del saving, told
    wait_until(lambda: caplog.records)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "nowhere" in caplog.text


# ----------------------------------------------------------------------------- progress


def test_progress_is_told(tmp_path: Path, writer: str) -> None:
    said: list[tuple[int, int]] = []
    total = PickledObject(STATE).total
    saving = zerocopy.save(
        STATE, tmp_path / "model.pt", wait=False, progress=lambda *numbers: said.append(numbers)
    )
    saving.wait()
    assert said == sorted(set(said)) and said[-1] == (total, total) == saving.progress


@pytest.mark.parametrize("size", [1000, 4 << 20])
@pytest.mark.parametrize("options", [{"dtype": torch.float16}, {}])
def test_converted_placeholders_are_kept_as_they_were(
    tmp_path: Path, stopped: StoppedWriters, options: dict[str, Any], size: int
) -> None:
    torch.save({"a": torch.ones(size), "b": torch.ones(size)}, tmp_path / "source.pt")
    state = zerocopy.lazy_load(tmp_path / "source.pt", **options)
    used = state["b"].materialize()
    saving = zerocopy.save(state, tmp_path / "model.pt", wait=False)
    state["a"].zero_()
    used.zero_()
    stopped.go_on()
    saving.wait()
    assert all(
        torch.equal(value.float(), torch.ones(size)) for value in stock_load(tmp_path / "model.pt").values()
    )


@pytest.mark.parametrize("waits", ["wait", "save"])
def test_progress_that_waits_for_its_own_save_is_an_error(tmp_path: Path, writer: str, waits: str) -> None:
    begun, found, path = threading.Event(), [], tmp_path / "model.pt"

    def progress(*_: int) -> None:
        begun.wait()
        found[0].wait() if waits == "wait" else zerocopy.save([1], path)

    found.append(zerocopy.save(STATE, path, wait=False, progress=progress))
    begun.set()
    with pytest.raises(RuntimeError, match="cannot wait for the save that calls it"):
        found[0].wait()
    assert_same(stock_load(path), STATE)


def test_wait_gives_up_in_time(tmp_path: Path, stopped: StoppedWriters) -> None:
    saving = zerocopy.save([LARGEST], tmp_path / "model.pt", wait=False)
    with pytest.raises(TimeoutError, match="bytes are written"):
        saving.wait(0.01)
    assert not saving.done and "of" in repr(saving)
    stopped.go_on()
    saving.wait(180)
    assert saving.done and "done" in repr(saving)


def test_errors_of_the_progress_function_come_at_wait(tmp_path: Path, writer: str) -> None:
    def fail(*_: int) -> None:
        raise BrokenPipeError(errno.EPIPE, "mine")

    saving = zerocopy.save(STATE, tmp_path / "model.pt", wait=False, progress=fail)
    with pytest.raises(BrokenPipeError, match="mine"):
        saving.wait()
    assert_same(stock_load(tmp_path / "model.pt"), STATE)


# ----------------------------------------------------------------------------- processes


def test_the_programs_own_waiting_sees_nothing(tmp_path: Path, forked: Child) -> None:
    code = """
        import contextlib, os, signal, sys, torch, zerocopy
        from zerocopy.saving import snapshot
        snapshot.why_not_to_fork = lambda _: ""
        heard = []
        for action in (lambda *_: heard.append(1), signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(signal.SIGCHLD, action)
            saving = zerocopy.save([torch.ones(1 << 22)], sys.argv[1], wait=False)
            with contextlib.suppress(ChildProcessError):
                print(os.waitpid(-1, os.WNOHANG))
            saving.wait()
            with contextlib.suppress(ChildProcessError):
                print(os.waitpid(-1, os.WNOHANG | 0x40000000))  # of every kind: nothing is left
        print(heard)
    """
    done = forked(code, tmp_path / "model.pt")
    assert done.stdout.split("\n")[-2] == "[]" and len(done.stdout.splitlines()) == 1, done


def test_the_writer_holds_nothing_of_the_program(tmp_path: Path, stopped: StoppedWriters) -> None:
    """No signal reaches it, and no descriptor whose end others wait for."""
    reading, writing = os.pipe()
    saving = zerocopy.save([LARGEST], tmp_path / "model.pt", wait=False)
    process = stopped.processes[0]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(process, number)
    os.close(writing)
    stopped.go_on()
    assert os.read(reading, 1) == b""
    os.close(reading)
    saving.wait()
    assert_same(stock_load(tmp_path / "model.pt"), [LARGEST])


@pytest.mark.slow("twenty saves beside four busy threads")
def test_threads_that_hold_locks_do_no_harm(tmp_path: Path, by_process: None) -> None:
    """Threads allocate, log and import all the time: a child of theirs could wait for any of these locks."""
    ends = threading.Event()

    def work() -> None:
        while not ends.is_set():
            logging.getLogger("zerocopy.test").debug("%s", [bytearray(5000) for _ in range(50)])
            torch.mm(torch.ones(300, 300), torch.ones(300, 300))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for number in range(20):
            zerocopy.save([BASE, number], tmp_path / "model.pt", wait=False).wait(180)
            assert stock_load(tmp_path / "model.pt")[1] == number
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def descriptors() -> set[str]:
    gc.collect()  # garbage of earlier tests may hold some
    return {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}


def test_many_saves_at_once_leave_nothing(tmp_path: Path, writer: str) -> None:
    before = descriptors()
    savings = [zerocopy.save([BASE, n], tmp_path / f"model{n % 3}.pt", wait=False) for n in range(12)]
    for saving in savings:
        saving.wait()
    assert [stock_load(tmp_path / f"model{n}.pt")[1] for n in range(3)] == [9, 10, 11]
    assert len(list(tmp_path.iterdir())) == 3
    assert descriptors() == before


def test_a_child_of_the_program_does_not_wait(tmp_path: Path, by_process: None) -> None:
    saving = zerocopy.save(STATE, tmp_path / "model.pt", wait=False)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            saving.wait()
        except RuntimeError:
            # A save of its own comes behind nothing of its parent's.
            zerocopy.save([1], tmp_path / "other.pt", wait=False).wait()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    saving.wait()
    assert_same(stock_load(tmp_path / "model.pt"), STATE)


PROGRAM = """
    import os, signal, sys, torch, zerocopy
    from zerocopy.saving import snapshot
    snapshot.why_not_to_fork = lambda _: sys.argv[2]
    saving = zerocopy.save([torch.ones(8 << 20), 5], sys.argv[1], wait=False)
"""


def test_a_program_that_ends_has_saved_or_logs_the_error(tmp_path: Path, forked: Child) -> None:
    for way in ("", "thread"):
        done = forked(PROGRAM, tmp_path / f"{way}.pt", way)
        assert done.returncode == 0 and not done.stderr
        assert stock_load(tmp_path / f"{way}.pt")[1] == 5
    done = forked(PROGRAM, tmp_path / "nowhere" / "model.pt", "")
    assert "was not saved" in done.stderr and str(tmp_path / "nowhere") in done.stderr


def test_a_program_that_is_killed_has_saved(tmp_path: Path, forked: Child) -> None:
    """The writing process goes on."""
    path = tmp_path / "model.pt"
    zerocopy.save({"small": 1}, path)
    done = forked(textwrap.dedent(PROGRAM) + "os.kill(os.getpid(), signal.SIGKILL)\n", path, "")
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: isinstance(stock_load(path), list), 60)
    assert stock_load(path)[1] == 5 and list(tmp_path.iterdir()) == [path]
