"""The file changes: while it is loaded, and under tensors that are alive. docs/hazards.md says what to do about it."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import os
import signal
import socket
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from archives import big_endian, payload_offset, rezip
from conftest import Child, Saver, maps_of, saved_bytes
from equality import assert_same

import zerocopy

BOTH = pytest.mark.parametrize("weights_only", [True, False])
BACKENDS = pytest.mark.parametrize("backend", ["mmap", "pread"])
STATE = {"first": torch.arange(5000.0), "late": torch.full((50_000,), 7.0)}
OTHER = {"first": torch.arange(5000.0) + 1, "late": torch.full((50_000,), 8.0)}  # a file of the same size


def long_ago(path: Path) -> Path:
    """Give a file an old date, so that a change is seen however coarse the file system's clock is."""
    os.utime(path, (1, 1))
    return path


@pytest.fixture
def path(save: Saver) -> Path:
    return long_ago(save(STATE))


# ----------------------------------------------------------------------------- while it is loaded


def overwrite(path: Path, content: bytes) -> None:
    """Write over a file as it lies, without cutting it first."""
    with path.open("r+b") as file:
        file.write(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def rewrite(path: Path) -> None:
    torch.save(OTHER, path)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0" * 100)


def touch(path: Path) -> None:
    path.touch()


def change_attributes(path: Path) -> None:
    """Change metadata only. The change time does not distinguish this from bytes with the date set back."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        path.chmod(0o600)


def rewrite_and_set_the_date_back(path: Path) -> None:
    rewrite(path)
    long_ago(path)
    change_attributes(path)


CHANGES = [truncate, rewrite, grow, touch, change_attributes, rewrite_and_set_the_date_back]


def replace(path: Path) -> None:
    torch.save(OTHER, path.with_name("new.pt"))
    path.with_name("new.pt").replace(path)


def unlink(path: Path) -> None:
    path.unlink()


def link(path: Path) -> None:
    path.with_name("link.pt").hardlink_to(path)


class Midway:
    """A ``map_location`` that calls a function when the first storage is there, in the middle of a load."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def __call__(self, storage: Any, location: str) -> Any:
        if self._call is not None:
            call, self._call = self._call, None
            call()
        return storage


@contextlib.contextmanager
def refused(path: Path) -> Iterator[None]:
    with pytest.raises(OSError, match="changed since it was opened") as error:
        yield
    assert (error.value.errno, error.value.filename) == (errno.ESTALE, str(path))


@BOTH
@BACKENDS
def test_file_that_changes_while_it_is_loaded_is_refused(
    save: Saver, backend: str, weights_only: bool
) -> None:
    for is_zip in (True, False):
        for change in CHANGES:
            path = long_ago(save(STATE, _use_new_zipfile_serialization=is_zip))
            place = Midway(functools.partial(change, path))
            with refused(path):
                zerocopy.load(path, place, backend=backend, weights_only=weights_only)


@BOTH
@BACKENDS
def test_opened_file_is_loaded_after_its_path_changed(save: Saver, backend: str, weights_only: bool) -> None:
    for change in (link, replace, unlink):
        path = long_ago(save(STATE, f"to_{change.__name__}.pt"))
        place = Midway(functools.partial(change, path))
        assert_same(zerocopy.load(path, place, backend=backend, weights_only=weights_only), STATE)


@pytest.mark.parametrize("kind", ["deflated", "big-endian", "unaligned"])
def test_copy_from_a_file_that_gets_shorter_raises(tmp_path: Path, forked: Child, kind: str) -> None:
    """By reading it: an error, where copying out of the mapping would end the process."""
    content = {
        "deflated": rezip(saved_bytes(list(STATE.values())), zipfile.ZIP_DEFLATED),
        "big-endian": big_endian(list(STATE.values())),
        "unaligned": rezip(saved_bytes([*STATE.values(), torch.ones(3, dtype=torch.uint8)]), x=b"x"),
    }[kind]
    path = tmp_path / "a.pt"
    path.write_bytes(content)
    code = """
        import os, sys, zerocopy
        def cut(storage, location):
            os.truncate(sys.argv[1], 1000)
            return storage
        try:
            zerocopy.load(sys.argv[1], cut)
        except OSError as error:
            print(error.errno, error.filename)
    """
    done = forked(code, path)
    assert done.stdout.split() == [str(errno.ESTALE), str(path)], (done.returncode, done.stderr)


class Rewriter:
    """Unpickling it changes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __setstate__(self, state: dict[str, Any]) -> None:
        overwrite(state["path"], b"PK")


def test_changed_under_a_file_object(path: Path) -> None:
    with path.open("rb") as file, refused(path):
        zerocopy.load(file, Midway(lambda: rewrite(path)))


def test_changed_under_a_patched_load(save: Saver) -> None:
    """The original is not called: the file would change for it too."""
    path = long_ago(save([torch.ones(3), Rewriter(Path("x"))]))
    torch.save([torch.ones(3), Rewriter(path)], path)
    long_ago(path)
    with zerocopy.patched(), refused(path):
        torch.load(path, weights_only=False)


def test_a_refused_load_leaves_nothing(path: Path) -> None:
    gc.collect()  # of what other tests left
    before = len(list(Path("/proc/self/fd").iterdir()))
    with refused(path):
        zerocopy.load(path, Midway(lambda: path.touch()))
    gc.collect()
    assert maps_of(path) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert_same(zerocopy.load(path), STATE)


@BOTH
def test_r_plus_is_there_to_change_the_file(path: Path, weights_only: bool) -> None:
    loaded = zerocopy.load(path, Midway(lambda: rewrite(path)), mode="r+", weights_only=weights_only)
    assert_same(loaded, OTHER)


# --------------------------------------------------------------------- under tensors that are alive

LOAD = """
    import os, sys, torch, zerocopy
    path, backend = sys.argv[1:3]
    loaded = zerocopy.load(path, backend=backend)
    first, late = loaded["first"], loaded["late"]
"""
TRUNCATED = """
    first[0], late[-1] = 5, 9
    os.truncate(path, int(sys.argv[3]))
    print(first[0].item(), first[1].item(), flush=True)
    print(late[-1].item(), flush=True)
"""


@pytest.mark.plain_memory("a sanitizer reports what is meant to be a signal")
def test_truncated_under_a_mapping(path: Path, forked: Child) -> None:
    """The pages behind the new end are gone, those that were written to here as well: SIGBUS."""
    done = forked(LOAD + TRUNCATED, path, "mmap", payload_offset(path, "data/0") + 4096)
    assert (done.returncode, done.stdout.split()) == (-signal.SIGBUS, ["5.0", "1.0"])


def test_read_tensors_survive_a_truncation(path: Path, forked: Child) -> None:
    done = forked(LOAD + TRUNCATED, path, "pread", 0)
    assert (done.returncode, done.stdout.split()) == (0, ["5.0", "1.0", "9.0"])


def test_file_replaced_by_rename_leaves_the_tensors(path: Path) -> None:
    loaded = zerocopy.load(path)
    replace(path)
    assert_same(loaded, STATE)
    assert_same(zerocopy.load(path), OTHER)


def test_written_in_place_under_a_mapping(path: Path) -> None:
    """Shows in every page that was not written to here; what was read or copied stays."""
    mapped = zerocopy.load(path)
    apart = zerocopy.load(path, backend="pread")
    copied = {name: tensor.clone() for name, tensor in zerocopy.load(path).items()}
    mapped["first"].add_(0)
    assert mapped["late"][-1] == 7, "reading a page does not hold it"
    overwrite(path, path.read_bytes().replace(b"\0\0\xe0\x40", b"\0\0\0\x41"))  # 7.0 and 8.0
    assert mapped["first"][7] == 7 and mapped["late"][-1] == 8
    assert_same(apart, STATE)
    assert_same(copied, STATE)


@pytest.mark.plain_memory("a sanitizer reports what is meant to be a signal")
def test_a_users_own_mapping_is_the_users(path: Path, forked: Child) -> None:
    """A buffer is memory: nobody can ask it whether it changed, and it may be gone while it is parsed."""
    code = """
        import mmap, os, sys, zerocopy
        with open(sys.argv[1], "rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        assert zerocopy.load(content, mode="r")["late"][-1] == 7
        os.truncate(sys.argv[1], 0)
        print("truncated", flush=True)
        zerocopy.load(content, mode="r")
    """
    done = forked(code, path)
    assert (done.returncode, done.stdout.strip()) == (-signal.SIGBUS, "truncated")


# ------------------------------------------------------------------------------- not a file


def test_paths_that_lead_to_no_file(tmp_path: Path) -> None:
    dangling, loop, listening = (tmp_path / name for name in ("dangling", "loop", "socket"))
    dangling.symlink_to(tmp_path / "nowhere")
    loop.symlink_to(loop)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(listening))
        expected = {
            str(dangling): errno.ENOENT,
            str(loop): errno.ELOOP,
            str(listening): errno.ENXIO,
            "": errno.ENOENT,
            "/dev/zero": errno.EINVAL,
            str(tmp_path / ("x" * 256)): errno.ENAMETOOLONG,
            "x" * 4096: errno.ENAMETOOLONG,
        }
        for path, code in expected.items():
            with pytest.raises(OSError) as error:
                zerocopy.load(path)
            assert (error.value.filename, error.value.errno) == (path, code)
