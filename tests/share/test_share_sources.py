"""Dependencies of a result of the model server: each change of a source makes a new result, nothing else
does."""

from __future__ import annotations

import contextlib
import os
import pickle
import sqlite3
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.support import sharing, sources
from zerocopy import share


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with sharing.served(tmp_path_factory.mktemp("sources")) as place:
        yield place


def written(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content) and None


def rewritten(folder: Path) -> None:
    """Write other bytes to a file of the same size, and set its times back."""
    file = folder / "a"
    times = file.stat()
    file.write_text("2")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def replaced(folder: Path) -> None:
    (folder / "b").write_text("2")
    (folder / "b").rename(folder / "a")


def linked(target: str) -> Callable[[Path], None]:
    def link(folder: Path) -> None:
        for name in ("one", "two"):
            (folder / name).write_text(name)
        (folder / "link").unlink(missing_ok=True)
        (folder / "link").symlink_to(target)

    return link


def become_link(folder: Path) -> None:
    (folder / "a").rename(folder / "b")
    (folder / "a").symlink_to("b")


def number(value: int) -> Callable[[Path], None]:
    def store(folder: Path) -> None:
        with contextlib.closing(sqlite3.connect(folder / "a")) as connection:
            connection.execute("PRAGMA journal_mode=WAL" if value == 3 else "PRAGMA journal_mode=DELETE")
            connection.execute("CREATE TABLE IF NOT EXISTS numbers (value)")
            connection.execute("INSERT INTO numbers VALUES (?)", (value,))
            connection.commit()

    return store


def dataset(value: int) -> Callable[[Path], None]:
    def store(folder: Path) -> None:
        with pytest.importorskip("h5py").File(folder / "a", "w") as file:
            file["a"] = value

    return store


def weights(value: float) -> Callable[[Path], None]:
    return lambda folder: torch.save({"a": torch.full((5000,), value)}, folder / "a")


def synced(folder: Path) -> None:
    memory = np.memmap(folder / "a", dtype=np.uint8, mode="r+")
    memory[0] = ord("2")
    memory.flush()


def removed(folder: Path) -> None:
    (folder / "a1").unlink()


def renamed(folder: Path) -> None:
    (folder / "a1").rename(folder / "a7")


def two_files(folder: Path) -> None:
    (folder / "a0").write_text("0")
    (folder / "a1").write_text("1")


class Way(NamedTuple):
    """A function, what is there before, and a change after which it returns something else."""

    function: Callable[[str], Any]
    before: Callable[[Path], None]
    change: Callable[[Path], None]


A, LATE = written("a", "1"), written("late", "1")
MODULE = "imported_by_sources.py"
WAYS = {
    "rewritten": Way(sources.text, A, rewritten),
    "replaced": Way(sources.text, A, replaced),
    "checkpoint": Way(sources.tensor, weights(1.0), weights(2.0)),
    "synced mapping": Way(sources.text, A, synced),
    "newer in a listing": Way(sources.newest, two_files, written("a2", "")),
    "removed from a listing": Way(sources.newest, two_files, removed),
    "renamed in a listing": Way(sources.newest, two_files, renamed),
    "walk": Way(sources.walked, two_files, written("b", "")),
    "listing of a descriptor": Way(sources.listed_by_descriptor, two_files, written("b", "")),
    "exists": Way(sources.exists, A, LATE),
    "access": Way(sources.may_read, A, LATE),
    "size": Way(sources.size, A, written("a", "22")),
    "becomes a link": Way(sources.is_link, A, become_link),
    "readlink": Way(sources.link, linked("one"), linked("two")),
    "through a link": Way(sources.through_link, linked("one"), linked("two")),
    "realpath": Way(sources.real, linked("one"), linked("two")),
    "descriptor of a folder": Way(sources.within, A, rewritten),
    "opened for update": Way(sources.for_update, A, rewritten),
    "mapping": Way(sources.by_mapping, A, rewritten),
    "libc's open": Way(sources.by_libc, A, rewritten),
    "libc's fopen": Way(sources.by_stdio, A, rewritten),
    "sqlite": Way(sources.database, number(1), number(2)),
    "sqlite with a log": Way(sources.database, number(1), number(3)),
    "memmap": Way(sources.memmap, A, rewritten),
    "h5py": Way(sources.hdf5, dataset(1), dataset(2)),
    "module by its file": Way(
        sources.module_by_file, written("a.py", "VALUE=1"), written("a.py", "VALUE=22")
    ),
    "module": Way(sources.imported, written(MODULE, "VALUE=1"), written(MODULE, "VALUE=22")),
    "child": Way(sources.in_child, A, rewritten),
    "another folder": Way(sources.elsewhere, A, rewritten),
    "own files beside": Way(sources.with_scratch, A, rewritten),
}


def entry_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return what the server says of the latest result of a function."""
    found = [
        entry for entry in sharing.entries() if entry["name"] == f"tests.support.sources.{function.__name__}"
    ]
    latest: dict[str, Any] = max(found, key=lambda entry: float(entry["created"]))
    return latest


def shared(function: Callable[..., Any], folder: Path) -> Any:
    """Return a result that was computed once for two calls."""
    result = share.load(function, str(folder)[1:])
    hits = entry_of(function)["hits"]
    assert share.load(function, str(folder)[1:]) == result
    assert entry_of(function)["hits"] == hits + 1
    return result


def plain(function: Callable[[str], Any], folder: Path) -> Any:
    """Return what the function returns, called in a child: some change the process that they run in."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.write(writing, pickle.dumps(function(str(folder)[1:])))
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:  # noqa: PTH123
        content = file.read()
    os.waitpid(pid, 0)
    return pickle.loads(content)


@pytest.mark.parametrize("way", WAYS)
def test_a_changed_source_makes_a_new_result(tmp_path: Path, way: str) -> None:
    function, before, change = WAYS[way]
    before(tmp_path)
    first = shared(function, tmp_path)
    assert entry_of(function)["unseen"] == []
    change(tmp_path)
    second = shared(function, tmp_path)
    assert second != first and second == plain(function, tmp_path)


@pytest.mark.parametrize(
    "name", ["through_own_link", "through_own_link_to_the_folder", "by_own_name", "renamed_meanwhile"]
)
def test_a_file_that_the_call_gives_another_name_is_read_again(tmp_path: Path, name: str) -> None:
    function = getattr(sources, name)
    for content in ("1", "2"):
        (tmp_path / "new").write_text(content)
        (tmp_path / "new").rename(tmp_path / "a")
        time.sleep(0.02)  # files get their times from a clock that ticks seldom
        assert share.load(function, str(tmp_path)[1:]) == content


def test_files_that_the_call_extracts_from_an_archive_cost_nothing(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        (tmp_path / "a").write_text("1")
        archive.add(tmp_path / "a", "a")
    assert shared(sources.extracted, tmp_path) == "11"


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("name", ["unrelated.safetensors", "b.py", "a.txt"])
def test_an_unrelated_file_costs_nothing(tmp_path: Path, name: str, is_named: bool) -> None:
    folder = str(tmp_path) if is_named else str(tmp_path)[1:]
    (tmp_path / "a").write_text("1")
    (tmp_path / name).write_text("1")
    assert share.load(sources.text, folder) == "1"
    created = entry_of(sources.text)["created"]
    (tmp_path / name).write_text("2")
    (tmp_path / f"another-{name}").write_text("2")
    assert share.load(sources.text, folder) == "1"
    assert entry_of(sources.text)["created"] == created
    (tmp_path / "a").write_text("2")
    assert share.load(sources.text, folder) == "2"


@pytest.mark.parametrize("function", [sources.program, sources.shell, sources.network, sources.host])
def test_a_call_that_cannot_be_followed_is_marked(tmp_path: Path, function: Callable[[str], Any]) -> None:
    (tmp_path / "a").write_text("1")
    shared(function, tmp_path)
    (why,) = entry_of(function)["unseen"]
    assert ("program" if function in (sources.program, sources.shell) else "network") in why


def test_asking_about_the_machine_is_not_marked(tmp_path: Path) -> None:
    shared(sources.machine, tmp_path)
    assert entry_of(sources.machine)["unseen"] == []
