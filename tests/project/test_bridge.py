"""Bridges to torch: which one is chosen, which are refused, and that the extension itself has nothing of torch."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Child
from fork_server import ForkServer

import zerocopy
from zerocopy import _native
from zerocopy._native import bridges, compilation, stamp

PACKAGE = Path(zerocopy.__file__).parent
RUNNING = stamp.running_stamp(_native._C.bridge_abi())
NAMES = stamp.file_names(RUNNING.torch, RUNNING.cxx11_abi)
(NAME,) = (name for name in NAMES if (PACKAGE / name).is_file())

CHOICE = """
import json, sys, zerocopy
from zerocopy._native import bridge_info
storage = zerocopy.untyped_storage(bytearray(b"zero"))
info = bridge_info()
print(json.dumps([info.kind, str(info.path), list(info.refused), bytes(storage).decode(), zerocopy.__file__]))
"""

BUILD = """
import runpy
sys.argv.insert(1, "build-bridge")
runpy.run_module("zerocopy", run_name="__main__", alter_sys=True)
"""


class Installation:
    """A copy of the installed package, and a cache folder."""

    def __init__(self, folder: Path, with_torch: ForkServer) -> None:
        self._with_torch = with_torch
        self.site, self.cache = folder / "site", folder / "cache"
        shutil.copytree(PACKAGE, self.site / "zerocopy")
        self.bridge = self.site / "zerocopy" / NAME
        self.built = self.cache / "zerocopy" / "bridges" / bridges.cache_path(RUNNING).name
        self.built.parent.mkdir(mode=0o700, parents=True)

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.site), "XDG_CACHE_HOME": str(self.cache), "ZEROCOPY_BRIDGE": ""}

    def run(self, code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run code in a process that has imported torch, and imports this copy."""
        here = f"import sys; sys.path.insert(0, {str(self.site)!r})\n"
        return self._with_torch.run(here + code, *arguments, **{**self.environment(), **environment})

    def choice(self, first: str = "", **environment: str) -> Choice:
        done = self.run(first + CHOICE, **environment)
        assert done.returncode == 0, done.stderr
        kind, path, refused, content, home = json.loads(done.stdout)
        assert content == "zero"
        assert Path(home).parent == self.site / "zerocopy"
        return Choice(kind, path, "\n".join(refused), done.stderr)


class Choice:
    def __init__(self, kind: str, path: str, refused: str, stderr: str) -> None:
        self.kind, self.path, self.refused, self.stderr = kind, path, refused, stderr


@pytest.fixture(scope="module")
def with_torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    made = ForkServer(tmp_path_factory.mktemp("with_torch"), has_zerocopy=False)
    yield made
    made.close()


@pytest.fixture
def installation(tmp_path: Path, with_torch: ForkServer) -> Installation:
    return Installation(tmp_path, with_torch)


def restamp(bridge: Path, **changes: Any) -> None:
    """Change the stamp of a bridge, which keeps its length."""
    content = bridge.read_bytes()
    there = str(RUNNING).encode()
    assert content.count(there) == 1
    changed = str(RUNNING._replace(**changes)).encode()
    assert len(changed) == len(there)
    bridge.write_bytes(content.replace(there, changed))


def link_to_others(bridge: Path) -> str:
    """Link a bridge to a library that torch does not have, and return its name."""
    content = bridge.read_bytes()
    library = next(name for name in stamp.libraries_in(content) if name.startswith("libtorch"))
    other = re.sub(r".\.so", "x.so", library)
    bridge.write_bytes(content.replace(library.encode() + b"\0", other.encode() + b"\0"))
    return other


def other_release() -> str:
    """Return a version of the same length that is of another minor release."""
    return re.sub(r"^\d", lambda major: str(int(major[0]) + 1), RUNNING.torch)


# ------------------------------------------------------------------------------ what is linked


@pytest.mark.parametrize("module", ["_C", "_core"])
def test_extension_has_no_symbol_of_torch(module: str) -> None:
    (path,) = PACKAGE.glob(f"{module}.*.so")
    names = subprocess.run(["nm", "-DC", path], check=True, capture_output=True, text=True).stdout
    assert "PyInit_" + module in names
    assert not re.findall(r".*(?:\bc10::|\bat::|\btorch::|THP|pybind11_torch).*", names)
    linked = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
    assert "libc.so" in linked
    assert not re.findall(r"lib(?:torch|c10)\w*\.so", linked)


def test_bridge_exports_one_name() -> None:
    names = subprocess.run(
        ["nm", "-D", "--defined-only", PACKAGE / NAME], check=True, capture_output=True, text=True
    ).stdout
    assert re.findall(r" T (\w+)", names) == ["zerocopy_bridge"]


# ------------------------------------------------------------------------------ choice


def test_bridge_of_the_package_is_the_first_choice(installation: Installation) -> None:
    shutil.copy(installation.bridge, installation.built)
    choice = installation.choice()
    assert (choice.kind, choice.path, choice.refused) == ("prebuilt", str(installation.bridge), "")
    assert choice.stderr == ""


def test_choice_is_logged_at_debug_level(installation: Installation) -> None:
    choice = installation.choice("import logging; logging.basicConfig(level='DEBUG')")
    (line,) = [line for line in choice.stderr.splitlines() if "bridge to PyTorch" in line]
    assert line == f"DEBUG:zerocopy:bridge to PyTorch {RUNNING.torch}: prebuilt, {installation.bridge}"


def test_bridge_in_the_cache_is_the_second_choice(installation: Installation) -> None:
    installation.bridge.rename(installation.built)
    choice = installation.choice()
    assert (choice.kind, choice.path) == ("built", str(installation.built))
    assert choice.stderr == ""


def test_no_bridge_warns_once_and_works(installation: Installation) -> None:
    installation.bridge.unlink()
    choice = installation.choice()
    assert choice.kind == "portable"
    (warning,) = choice.stderr.splitlines()
    assert RUNNING.torch in warning and "zerocopy build-bridge" in warning


def test_portable_bridge_by_the_environment_says_nothing(installation: Installation) -> None:
    choice = installation.choice(ZEROCOPY_BRIDGE="portable")
    assert (choice.kind, choice.stderr) == ("portable", "")


def test_unknown_bridge_in_the_environment_is_a_value_error(child: Child) -> None:
    done = child("import torch, zerocopy", ZEROCOPY_BRIDGE="best")
    assert done.stderr.splitlines()[-1] == "ValueError: ZEROCOPY_BRIDGE must be auto or portable, not 'best'"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"torch": other_release()},
            f"compiled for PyTorch {re.escape(other_release())}, and this is PyTorch",
        ),
        ({"abi": RUNNING.abi + 1}, "another release of zerocopy"),
        ({"cxx11_abi": 1 - RUNNING.cxx11_abi}, r"C\+\+ ABI"),
        ({"python": RUNNING.python.replace("3", "2", 1)}, "compiled for cpython-2"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bridge_with_another_stamp_is_refused(
    installation: Installation, changes: dict[str, Any], reason: str
) -> None:
    restamp(installation.bridge, **changes)
    choice = installation.choice()
    assert choice.kind == "portable"
    assert re.search(reason, choice.refused)
    assert len(choice.stderr.splitlines()) == 1
    assert re.search(reason, choice.stderr) and "zerocopy build-bridge" in choice.stderr


def test_bridge_for_another_build_of_the_minor_release_is_taken_from_the_package_only(
    installation: Installation,
) -> None:
    other = RUNNING.torch + "+cu999" if "+" not in RUNNING.torch else RUNNING.torch[:-1] + "?"
    assert not stamp.mismatch(RUNNING._replace(torch=other), RUNNING, exact=False)
    assert stamp.mismatch(RUNNING._replace(torch=other), RUNNING, exact=True)


@pytest.mark.parametrize("content", [b"", b"\x7fELF of nothing", str(RUNNING).encode()])
def test_damaged_bridge_is_refused(installation: Installation, content: bytes) -> None:
    installation.bridge.write_bytes(content)
    choice = installation.choice()
    assert choice.kind == "portable"
    assert str(installation.bridge) in choice.refused


def test_truncated_bridge_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dynamic linker would end the process, so this one is told from a whole bridge before it is loaded."""
    whole = (PACKAGE / NAME).read_bytes()
    begin = whole.index(b"zerocopy-bridge-stamp") + 200
    monkeypatch.setattr(bridges, "PACKAGE", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for size in range(begin, len(whole), (len(whole) - begin) // 4):
        (tmp_path / NAME).write_bytes(whole[:size])
        if stamp.is_whole(whole[:size]):  # only the names of sections are missing
            continue
        assert bridges.choose().refused[0] == f"{tmp_path / NAME}: the file is truncated"
    assert stamp.is_whole(whole) and not stamp.is_whole(whole[:begin])


def test_bridge_to_another_build_of_torch_is_refused(installation: Installation) -> None:
    """Loading it would bring a second torch into the process, if the system has one."""
    other = link_to_others(installation.bridge)
    choice = installation.choice()
    assert choice.kind == "portable"
    assert f"it is linked to {other}" in choice.refused


def test_bridge_for_the_libraries_of_a_system_has_another_name(installation: Installation) -> None:
    """A package may have both, and takes the one that fits."""
    first, second = (installation.site / "zerocopy" / name for name in NAMES)
    fits = installation.bridge.read_bytes()
    first.write_bytes(fits)
    second.write_bytes(fits)
    other = link_to_others(first)
    choice = installation.choice()
    assert (choice.kind, choice.path, choice.stderr) == ("prebuilt", str(second), "")
    assert choice.refused.startswith(f"{first}: it is linked to {other}")


@pytest.mark.parametrize("place", ["the file", "its folder"])
def test_bridge_that_others_can_write_is_refused(installation: Installation, place: str) -> None:
    installation.bridge.rename(installation.built)
    (installation.built if place == "the file" else installation.built.parent).chmod(0o777)
    choice = installation.choice()
    assert choice.kind == "portable"
    assert "can write to it" in choice.refused


def test_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert bridges.cache_path(RUNNING).is_relative_to(Path.home() / ".cache")


def test_user_without_a_home_has_the_bridge_of_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert bridges.choose().kind == "prebuilt"
    monkeypatch.setattr(bridges, "PACKAGE", tmp_path)
    assert bridges.choose().kind == "portable"


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("2.13.0+cpu", "2.13"),
        ("2.13.1", "2.13"),
        ("2.4.1.post2+cu121", "2.4"),
        ("1.13.0a0", "1.13.0a0"),
        ("1.13.0a0+gitunknown", "1.13.0a0"),
        ("2.14.0.dev20260101+cpu", "2.14.0.dev20260101"),
        ("2.14.0rc3", "2.14.0rc3"),
    ],
)
def test_release_of_a_version(version: str, release: str) -> None:
    assert stamp.release_of(version) == release


# ------------------------------------------------------------------------------ build-bridge


def build_bridge(installation: Installation, *arguments: str, **environment: str) -> Any:
    """Run ``zerocopy build-bridge`` in a process that has torch."""
    return installation.run(BUILD, *arguments, **environment)


def run_build_bridge(installation: Installation, **environment: str) -> Any:
    """Run it as a user does, who has no use for advice to run it."""
    return subprocess.run(
        [sys.executable, "-m", "zerocopy", "build-bridge"],
        capture_output=True,
        text=True,
        env={**os.environ, **installation.environment(), **environment},
    )


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    """Give a compiler that notes its arguments and returns the installed bridge: a real one takes a minute."""
    program = tmp_path / "compiler"
    program.write_text(
        f"""#!{sys.executable}
import pathlib, shutil, sys
(pathlib.Path(__file__).parent / "arguments").write_text("\\n".join(sys.argv[1:]))
shutil.copy({str(PACKAGE / NAME)!r}, sys.argv[sys.argv.index("-o") + 1])
"""
    )
    program.chmod(0o755)
    return program


def test_built_bridge_is_used_by_the_next_process(installation: Installation, compiler: Path) -> None:
    installation.bridge.unlink()
    done = run_build_bridge(installation, CXX=str(compiler))
    assert done.returncode == 0, done.stderr
    assert str(installation.built) in done.stdout
    source = next(
        line for line in (compiler.parent / "arguments").read_text().split() if line.endswith(".cpp")
    )
    assert Path(source).read_text() == (Path(__file__).parents[2] / "csrc/bridge/bridge.cpp").read_text()
    assert installation.choice().kind == "built"

    compiler.unlink()
    again = build_bridge(installation, CXX=str(compiler))
    assert (again.returncode, "there already" in again.stdout) == (0, True)
    assert build_bridge(installation, "--force", CXX=str(compiler)).returncode == 2


def test_build_beside_a_bridge_of_the_package_compiles_nothing(installation: Installation) -> None:
    done = build_bridge(installation, CXX="/nonexistent/c++")
    assert done.returncode == 0 and "no compiled bridge" not in done.stderr
    assert f"there already, prebuilt, {installation.bridge}" in done.stdout


def test_build_replaces_a_refused_bridge(installation: Installation, compiler: Path) -> None:
    installation.bridge.unlink()
    installation.built.write_bytes(b"damaged")
    done = run_build_bridge(installation, CXX=str(compiler))
    assert done.returncode == 0 and "no compiled bridge" not in done.stderr
    assert installation.built.read_bytes() == (PACKAGE / NAME).read_bytes()


def test_build_into_a_folder_that_cannot_be_written_says_which_variable_to_set(
    installation: Installation, compiler: Path, tmp_path: Path
) -> None:
    installation.bridge.unlink()
    (tmp_path / "file").touch()
    done = build_bridge(installation, CXX=str(compiler), XDG_CACHE_HOME=str(tmp_path / "file"))
    assert done.returncode == 2
    assert "the bridge cannot be stored" in done.stderr and "set XDG_CACHE_HOME" in done.stderr


def test_build_without_a_compiler_names_the_package(installation: Installation) -> None:
    installation.bridge.unlink()
    done = build_bridge(installation, CXX="/nonexistent/c++")
    assert done.returncode == 2
    assert "no C++ compiler (/nonexistent/c++ not found): install one" in done.stderr
    assert not list(installation.built.parent.iterdir())


def test_build_by_a_failing_compiler_shows_its_words(installation: Installation, tmp_path: Path) -> None:
    installation.bridge.unlink()
    program = tmp_path / "failing"
    program.write_text("#!/bin/sh\necho 'error: no such register' >&2\nexit 3\n")
    program.chmod(0o755)
    done = build_bridge(installation, CXX=str(program))
    assert done.returncode == 2
    assert "status 3" in done.stderr and "error: no such register" in done.stderr
    assert not list(installation.built.parent.iterdir())


def test_built_bridge_that_cannot_be_loaded_is_not_kept(installation: Installation, tmp_path: Path) -> None:
    installation.bridge.unlink()
    program = tmp_path / "compiler"
    program.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho nothing >"$2"\n')
    program.chmod(0o755)
    done = build_bridge(installation, CXX=str(program))
    assert done.returncode == 2
    assert "cannot be loaded" in done.stderr
    assert not list(installation.built.parent.iterdir())


def test_source_of_a_bridge_is_in_the_package() -> None:
    source = Path(__file__).parents[2] / "csrc"
    for name in ("bridge/bridge.cpp", "bridge/table.h"):
        assert (compilation._SOURCES[0] / name).read_text() == (source / name).read_text()


def test_bridge_info_of_this_process() -> None:
    info = _native.bridge_info()
    assert info.torch == torch.__version__
    assert info.kind in ("prebuilt", "built", "portable")
