"""Ways in which what a call reads becomes another between two calls."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import mmap
import os
import pickle
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch

from share_catalog.case import explicit, patched
from zerocopy import share


def _saved(folder: Path, name: str = "a.pt", value: float = 1.0) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"w": torch.full((8192,), value)}, path)
    return path


def _prepare(folder: Path) -> None:
    _saved(folder)


def _path(folder: Path) -> tuple[str]:
    return (str(folder / "a.pt"),)


def hidden(folder: Path) -> str:
    """Return a name of a folder that nobody takes for a path, as a configuration may have it."""
    return str(folder).replace("/", "|")


def place_of(name: str) -> str:
    """Return the folder that ``hidden`` was given, with a slash behind it."""
    return name.replace("|", "/") + "/"


def _pattern(folder: Path) -> tuple[str]:
    return (f"{folder}/*.pt",)


# ------------------------------------------------------------------------------------- one file


def _rewrite(folder: Path) -> None:
    _saved(folder, value=2.0)


@patched(prepare=_prepare, change=_rewrite, always=True)
def rewritten(folder: Path) -> Any:
    return torch.load(folder / "a.pt")


def _replace(folder: Path) -> None:
    _saved(folder, "b.pt", 2.0).replace(folder / "a.pt")


@patched(prepare=_prepare, change=_replace)
def replaced(folder: Path) -> Any:
    return torch.load(folder / "a.pt")


def _rewrite_in_disguise(folder: Path) -> None:
    path = folder / "a.pt"
    before = path.stat()
    content = bytearray(path.read_bytes())
    at = content.index(b"\x00\x00\x80\x3f" * 100)
    content[at : at + 4] = b"\x00\x00\x00\x40"
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _loaded_unchecked(path: str) -> Any:
    content = Path(path).read_bytes()
    at = content.index(b"\x00\x00\x80\x3f" * 50)
    return torch.frombuffer(bytearray(content[at - at % 4 : at - at % 4 + 400]), dtype=torch.uint8)


@explicit(prepare=_prepare, change=_rewrite_in_disguise, arguments=_path, always=True)
def rewritten_with_size_and_time_kept(path: str) -> Any:
    return _loaded_unchecked(path)


def _write_through_a_mapping(folder: Path) -> None:
    with (folder / "a.bin").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[100] = 7
        mapped.flush()


def _binary(folder: Path) -> None:
    (folder / "a.bin").write_bytes(bytes(40000))


@explicit(prepare=_binary, change=_write_through_a_mapping, arguments=lambda folder: (str(folder / "a.bin"),))
def written_through_a_mapping(path: str) -> Any:
    return torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8)


@explicit(prepare=_binary, change=_write_through_a_mapping, arguments=lambda folder: (str(folder / "a.bin"),))
def mapped_file_of_torch(path: str) -> Any:
    """The tensor lies in the file."""
    return torch.from_file(path, shared=False, size=40000, dtype=torch.uint8).clone()


def _remove(folder: Path) -> None:
    (folder / "a.pt").unlink()


@patched(prepare=_prepare, change=_remove)
def removed(folder: Path) -> Any:
    return torch.load(folder / "a.pt")


@patched(prepare=lambda folder: None, change=_prepare)
def created(folder: Path) -> Any:
    return torch.load(folder / "a.pt")


def _truncate(folder: Path) -> None:
    with (folder / "a.pt").open("r+b") as file:
        file.truncate(1000)


def _reload(path: Path) -> Any:
    try:
        return torch.load(path)
    except Exception as error:
        return type(error).__name__


@patched(prepare=_prepare, change=_truncate)
def truncated(folder: Path) -> Any:
    return _reload(folder / "a.pt")


def _linked(folder: Path) -> None:
    (folder / "link.pt").symlink_to(_saved(folder, "one.pt"))
    _saved(folder, "two.pt", 2.0)


def _relink(folder: Path) -> None:
    (folder / "link.pt").unlink()
    (folder / "link.pt").symlink_to("two.pt")


@patched(prepare=_linked, change=_relink, always=True)
def link_to_another_file(folder: Path) -> Any:
    return torch.load(folder / "link.pt")


def _linked_folder(folder: Path) -> None:
    _saved(folder / "one"), _saved(folder / "two", value=2.0)
    (folder / "latest").symlink_to("one")


def _relink_folder(folder: Path) -> None:
    (folder / "latest").unlink()
    (folder / "latest").symlink_to("two")


@patched(prepare=_linked_folder, change=_relink_folder)
def link_to_another_folder(folder: Path) -> Any:
    return torch.load(folder / "latest" / "a.pt")


@explicit(
    prepare=_linked_folder,
    change=_relink_folder,
    arguments=lambda folder: (hidden(folder), "latest"),
    always=True,
)
def target_of_a_link(place: str, name: str) -> Any:
    """``readlink`` is all that the call does."""
    return os.readlink(place_of(place) + name)


def _swap_folders(folder: Path) -> None:
    (folder / "one").rename(folder / "old")
    (folder / "two").rename(folder / "one")


def _two_folders(folder: Path) -> None:
    _saved(folder / "one"), _saved(folder / "two", value=2.0)


@patched(prepare=_two_folders, change=_swap_folders)
def folder_swapped_for_another(folder: Path) -> Any:
    return torch.load(folder / "one" / "a.pt")


# ------------------------------------------------------------------------------------- folders and absence


def _add_newer(folder: Path) -> None:
    _saved(folder, "b.pt", 2.0)


@explicit(prepare=_prepare, change=_add_newer, arguments=_pattern, always=True)
def newest_of_a_pattern(pattern: str) -> Any:
    import glob

    return torch.load(max(glob.glob(pattern)))


@explicit(prepare=_prepare, change=_add_newer, arguments=_pattern)
def newest_by_listdir(pattern: str) -> Any:
    folder = os.path.dirname(pattern)
    return torch.load(os.path.join(folder, max(os.listdir(folder))))


@explicit(prepare=_prepare, change=_add_newer, arguments=_pattern)
def newest_by_scandir(pattern: str) -> Any:
    with os.scandir(os.path.dirname(pattern)) as entries:
        return torch.load(max(entry.path for entry in entries))


@explicit(prepare=_prepare, change=_add_newer, arguments=_pattern, always=True)
def file_that_appears(pattern: str) -> Any:
    beside = pattern.replace("*", "b")
    return torch.load(beside if os.path.exists(beside) else pattern.replace("*", "a"))


@explicit(prepare=_prepare, change=_add_newer, arguments=_pattern)
def file_that_appears_after_an_error(pattern: str) -> Any:
    try:
        return torch.load(pattern.replace("*", "b"))
    except FileNotFoundError:
        return torch.load(pattern.replace("*", "a"))


def _touch(folder: Path) -> None:
    os.utime(folder / "a.pt", (1, 1))


@explicit(prepare=_prepare, change=_touch, arguments=_pattern)
def time_of_a_file(pattern: str) -> Any:
    return os.stat(pattern.replace("*", "a")).st_mtime


# ------------------------------------------------------------------------------------- ways to read


def _rewritten(make: Any, *names: str) -> dict[str, Any]:
    """Return the options of a case whose source is made once more with another value."""
    return {
        "prepare": make,
        "change": lambda folder: make(folder, 22),
        "arguments": lambda folder: (hidden(folder), *names),
    }


def _database(folder: Path, value: int = 1) -> None:
    with contextlib.closing(sqlite3.connect(folder / "a.db")) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS t (x)")
        connection.execute("INSERT INTO t VALUES (?)", (value,))


@explicit(**_rewritten(_database, "a.db"), always=True)
def database(place: str, name: str) -> Any:
    with contextlib.closing(sqlite3.connect(place_of(place) + name)) as connection:
        return connection.execute("SELECT x FROM t ORDER BY x").fetchall()


@explicit(**_rewritten(_database, "a.db"))
def database_by_address(place: str, name: str) -> Any:
    with contextlib.closing(sqlite3.connect(f"file:{place_of(place)}{name}?mode=ro", uri=True)) as connection:
        return connection.execute("SELECT x FROM t ORDER BY x").fetchall()


def _array(folder: Path, value: float = 1.0) -> None:
    numpy.full(8192, value).tofile(folder / "a.raw")


@explicit(**_rewritten(_array, "a.raw"), always=True)
def memmap(place: str, name: str) -> Any:
    return numpy.array(numpy.memmap(place_of(place) + name, mode="r"))


@explicit(**_rewritten(_array, "a.raw"))
def memmap_for_update(place: str, name: str) -> Any:
    """The default mode, in which most programs read."""
    return numpy.array(numpy.memmap(place_of(place) + name))


@explicit(**_rewritten(_array, "a.raw"))
def fromfile(place: str, name: str) -> Any:
    return numpy.fromfile(place_of(place) + name)


def _npz(folder: Path, value: float = 1.0) -> None:
    numpy.savez(folder / "a.npz", w=numpy.full(5000, value))


@explicit(**_rewritten(_npz, "a.npz"))
def archive_of_numpy(place: str, name: str) -> Any:
    with numpy.load(place_of(place) + name) as archive:
        return archive["w"]


def _hdf5(folder: Path, value: float = 1.0) -> None:
    import h5py

    with h5py.File(folder / "a.h5", "w") as file:
        file["w"] = numpy.full(5000, value)


def _read_hdf5(path: str) -> Any:
    import h5py

    with h5py.File(path) as file:
        return file["w"][:]


@explicit(
    prepare=_hdf5,
    change=lambda folder: _hdf5(folder, 22),
    arguments=lambda folder: (str(folder / "a.h5"),),
    needs=("h5py",),
    always=True,
)
def hdf5(path: str) -> Any:
    return _read_hdf5(path)


@explicit(**_rewritten(_hdf5, "a.h5"), needs=("h5py",))
def hdf5_beside_a_file_that_is_opened(place: str, name: str) -> Any:
    """Native code opens a file in a folder that no argument names."""
    Path(place_of(place), "unrelated").exists()
    with contextlib.suppress(FileNotFoundError):
        Path(place_of(place), "unrelated").read_text()
    return _read_hdf5(place_of(place) + name)


@explicit(
    **_rewritten(_hdf5, "a.h5"),
    needs=("h5py",),
    limit="files that native code opens in folders that nothing else names are not seen",
)
def hdf5_by_hidden_path(place: str, name: str) -> Any:
    return _read_hdf5(place_of(place) + name)


def _safetensors(folder: Path, value: float = 1.0) -> None:
    from safetensors.torch import save_file

    save_file({"w": torch.full((8192,), value)}, folder / "a.safetensors")


@explicit(**_rewritten(_safetensors, "a.safetensors"), needs=("safetensors",))
def safetensors_by_hidden_path(place: str, name: str) -> Any:
    from safetensors import safe_open

    with safe_open(place_of(place) + name, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


def _text(folder: Path, value: int = 1) -> None:
    (folder / "a.json").write_text(json.dumps({"scale": value}))
    (folder / "a.pickle").write_bytes(pickle.dumps(value))


@explicit(**_rewritten(_text))
def configuration_beside(place: str) -> Any:
    return json.loads(Path(place_of(place), "a.json").read_text())


@explicit(**_rewritten(_text))
def file_by_its_descriptor(name: str) -> Any:
    with open(os.open(place_of(name) + "a.json", os.O_RDONLY)) as file:
        return file.read()


@explicit(**_rewritten(_text))
def file_opened_for_update(name: str) -> Any:
    with open(place_of(name) + "a.json", "r+") as file:
        return file.read()


@explicit(**_rewritten(_text))
def file_within_an_opened_folder(name: str) -> Any:
    descriptor = os.open(place_of(name), os.O_RDONLY)
    try:
        with open(os.open("a.json", os.O_RDONLY, dir_fd=descriptor)) as file:
            return file.read()
    finally:
        os.close(descriptor)


@explicit(**_rewritten(_text), limit="files that another program reads are not seen, and `unseen` says so")
def file_by_a_subprocess(name: str) -> Any:
    return subprocess.run(["cat", place_of(name) + "a.json"], capture_output=True, check=True).stdout


def _refusing(folder: Path) -> Any:
    return share.options(unseen="refuse")


@explicit(**_rewritten(_text), within=_refusing, may_refuse=True)
def file_by_a_subprocess_refused(name: str) -> Any:
    return subprocess.run(["cat", place_of(name) + "a.json"], capture_output=True, check=True).stdout


@explicit(**_rewritten(_text), within=_refusing)
def file_that_is_seen_is_not_refused(name: str) -> Any:
    return Path(place_of(name), "a.json").read_text()


@explicit(**_rewritten(_text))
def file_in_a_changed_folder(place: str) -> Any:
    os.chdir(place_of(place))
    return Path("a.json").read_text()


# ------------------------------------------------------------------------------------- code and environment


def _module(folder: Path, value: int = 1) -> None:
    (folder / "helper.py").write_text(f"VALUE = {value}\n\ndef value():\n    return VALUE\n")


def _loaded_module(place: str) -> Any:
    specification = importlib.util.spec_from_file_location(
        "loaded_helper", Path(place_of(place), "helper.py")
    )
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@explicit(**_rewritten(_module), always=True)
def module_by_its_file(place: str) -> Any:
    return _loaded_module(place).value()


@explicit(**_rewritten(_module))
def code_by_exec(place: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(compile(Path(place_of(place), "helper.py").read_text(), "helper", "exec"), namespace)
    return namespace["value"]()


def imported() -> Any:
    return importlib.import_module("helper").value()


@contextlib.contextmanager
def folder_on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


@explicit(prepare=_module, change=lambda folder: _module(folder, 22), within=folder_on_path, always=True)
def module_that_the_call_imports() -> Any:
    return imported()


def _two_modules(folder: Path) -> None:
    for i, name in enumerate(("one", "two")):
        (folder / name).mkdir()
        _module(folder / name, i)


def _mark(folder: Path) -> None:
    (folder / "changed").touch()


@contextlib.contextmanager
def one_of_two_folders_on_path(folder: Path) -> Iterator[None]:
    with folder_on_path(folder / ("two" if (folder / "changed").exists() else "one")):
        yield


@explicit(prepare=_two_modules, change=_mark, within=one_of_two_folders_on_path, always=True)
def module_of_another_program() -> Any:
    """Two programs with modules of one name."""
    return imported()


@explicit(
    prepare=_two_modules,
    change=_mark,
    within=one_of_two_folders_on_path,
    arguments=lambda folder: ("helper", "value"),
)
def function_of_another_program(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)()


@contextlib.contextmanager
def variable(folder: Path, name: str = "CATALOG_SCALE") -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = str(folder / "two") if (folder / "changed").exists() else str(folder / "one")
    yield
    if before is None:
        del os.environ[name]
    else:
        os.environ[name] = before


@explicit(change=_mark, within=variable, always=True)
def environment_variable() -> Any:
    return os.environ["CATALOG_SCALE"]


@explicit(change=_mark, within=variable)
def environment_variable_by_getenv() -> Any:
    return os.getenv("CATALOG_SCALE"), "CATALOG_SCALE" in os.environ


@contextlib.contextmanager
def variable_that_appears(folder: Path) -> Iterator[None]:
    if (folder / "changed").exists():
        os.environ["CATALOG_OPTION"] = "1"
    yield
    os.environ.pop("CATALOG_OPTION", None)


@explicit(change=_mark, within=variable_that_appears)
def environment_variable_that_appears() -> Any:
    return os.environ.get("CATALOG_OPTION", "absent")


@explicit(change=_mark, within=variable_that_appears)
def all_environment_variables() -> Any:
    return sorted(name for name in os.environ if name.startswith("CATALOG"))


@explicit(change=_mark, within=lambda folder: variable(folder, "HOME"), always=True)
def home() -> Any:
    return os.path.expanduser("~/models"), Path.home().name


# ------------------------------------------------------------------------------------- what must not count


def _touch_beside(folder: Path) -> None:
    _saved(folder / "..", "unrelated.pt", 5.0)
    (folder / "unrelated.txt").write_text("other")


@patched(prepare=_prepare, change=_touch_beside, is_shared=True, always=True)
def unrelated_file_beside(folder: Path) -> Any:
    return torch.load(folder / "a.pt")


def _two_safetensors(folder: Path) -> None:
    _safetensors(folder)


def _another_safetensors(folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({"w": torch.ones(3)}, folder / "other.safetensors")


@patched(
    prepare=_two_safetensors, change=_another_safetensors, needs=("safetensors",), is_shared=True, always=True
)
def unrelated_safetensors_beside(folder: Path) -> Any:
    from safetensors import torch as library

    return library.load_file(folder / "a.safetensors")


def _read_only(folder: Path) -> None:
    (folder / "a.pt").read_bytes()


@patched(prepare=_prepare, change=_read_only, is_shared=True)
def file_that_was_only_read(folder: Path) -> Any:
    return torch.load(folder / "a.pt")


@explicit(
    prepare=_text,
    change=lambda folder: _saved(folder, "c.pt"),
    arguments=lambda folder: (f"{folder}/a.json",),
    is_shared=True,
)
def unrelated_file_beside_an_argument(path: str) -> Any:
    return Path(path).read_text()
