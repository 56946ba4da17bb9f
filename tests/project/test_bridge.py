"""Bridges to torch: which one is chosen, which are refused, and that the extension itself has nothing of torch."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
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


class Choice(NamedTuple):
    kind: str
    path: str
    refused: str
    stderr: str


class Installation:
    """Links to the installed package, a copy of its bridge, and a cache folder."""

    def __init__(self, site: Path, folder: Path, with_torch: ForkServer) -> None:
        self._with_torch = with_torch
        self.site, self.cache = site, folder / "cache"
        self.bridge = self.site / "zerocopy" / NAME
        for name in NAMES:
            (self.site / "zerocopy" / name).unlink(missing_ok=True)
        shutil.copy(PACKAGE / NAME, self.bridge)
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, folder / "zerocopy", copy_function=os.symlink)
    return folder


@pytest.fixture
def installation(site: Path, tmp_path: Path, server_without_zerocopy: ForkServer) -> Installation:
    return Installation(site, tmp_path, server_without_zerocopy)


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


def test_extensions_have_no_symbol_of_torch_and_the_bridge_exports_one() -> None:
    def output(*command: str | Path) -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    for module in ("_C", "_core"):
        (path,) = PACKAGE.glob(f"{module}.*.so")
        names, linked = output("nm", "-DC", path), output("readelf", "-d", path)
        assert "PyInit_" + module in names and "libc.so" in linked
        assert not re.findall(r".*(?:\bc10::|\bat::|\btorch::|THP|pybind11_torch).*", names)
        assert not re.findall(r"lib(?:torch|c10)\w*\.so", linked)
    exported = output("nm", "-D", "--defined-only", PACKAGE / NAME)
    assert re.findall(r" T (\w+)", exported) == ["zerocopy_bridge"]


# ------------------------------------------------------------------------------ choice


def test_bridge_of_the_package_is_the_first_choice(installation: Installation) -> None:
    shutil.copy(installation.bridge, installation.built)
    found = ("prebuilt", str(installation.bridge), "")
    assert installation.choice() == (*found, "")
    logged = installation.choice("import logging; logging.basicConfig(level='DEBUG')")
    (line,) = [line for line in logged.stderr.splitlines() if "bridge to PyTorch" in line]
    assert line == f"DEBUG:zerocopy:bridge to PyTorch {RUNNING.torch}: prebuilt, {installation.bridge}"


def test_bridge_in_the_cache_is_the_second_choice(installation: Installation) -> None:
    installation.bridge.rename(installation.built)
    choice = installation.choice()
    assert (choice.kind, choice.path, choice.stderr) == ("built", str(installation.built), "")


def test_no_bridge_warns_once_and_works(installation: Installation) -> None:
    installation.bridge.unlink()
    choice = installation.choice()
    assert choice.kind == "portable"
    (warning,) = choice.stderr.splitlines()
    assert RUNNING.torch in warning and "zerocopy build-bridge" in warning


def test_environment_chooses_the_portable_bridge_in_silence(installation: Installation) -> None:
    choice = installation.choice(ZEROCOPY_BRIDGE="portable")
    assert (choice.kind, choice.stderr) == ("portable", "")
    done = installation.run("import zerocopy; zerocopy.load", ZEROCOPY_BRIDGE="best")
    assert done.stderr.splitlines()[-1] == "ValueError: ZEROCOPY_BRIDGE must be auto or portable, not 'best'"


def test_bridge_with_another_stamp_is_refused(installation: Installation) -> None:
    release, version = other_release(), RUNNING.python.replace("3", "2", 1)
    fits = installation.bridge.read_bytes()
    for changes, reason in (
        ({"torch": release}, f"compiled for PyTorch {re.escape(release)}, and this is PyTorch"),
        ({"abi": RUNNING.abi + 1}, "another release of zerocopy"),
        ({"cxx11_abi": 1 - RUNNING.cxx11_abi}, r"C\+\+ ABI"),
        ({"python": version}, "compiled for cpython-2"),
    ):
        installation.bridge.write_bytes(fits)
        restamp(installation.bridge, **changes)
        choice = installation.choice()
        assert choice.kind == "portable" and re.search(reason, choice.refused), changes
        assert len(choice.stderr.splitlines()) == 1
        assert re.search(reason, choice.stderr) and "zerocopy build-bridge" in choice.stderr


def test_bridge_for_another_build_of_the_minor_release_is_taken_from_the_package_only() -> None:
    other = RUNNING.torch + "+cu999" if "+" not in RUNNING.torch else RUNNING.torch[:-1] + "?"
    assert not stamp.mismatch(RUNNING._replace(torch=other), RUNNING, exact=False)
    assert stamp.mismatch(RUNNING._replace(torch=other), RUNNING, exact=True)


def test_damaged_bridge_is_refused(installation: Installation) -> None:
    for content in (b"", b"\x7fELF of nothing", str(RUNNING).encode()):
        installation.bridge.write_bytes(content)
        choice = installation.choice()
        assert choice.kind == "portable" and str(installation.bridge) in choice.refused, content


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


def test_bridge_that_others_can_write_is_refused(installation: Installation) -> None:
    installation.bridge.rename(installation.built)
    for place in (installation.built, installation.built.parent):
        place.chmod(0o777)
        choice = installation.choice()
        assert choice.kind == "portable" and "can write to it" in choice.refused, place
        place.chmod(0o700)


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


def test_release_of_a_version() -> None:
    releases = {
        "2.13.0+cpu": "2.13",
        "2.4.1.post2+cu121": "2.4",
        "1.13.0a0+gitunknown": "1.13.0a0",
        "2.14.0.dev20260101+cpu": "2.14.0.dev20260101",
        "2.14.0rc3": "2.14.0rc3",
    }
    assert {version: stamp.release_of(version) for version in releases} == releases


# ------------------------------------------------------------------------------ build-bridge


def build_bridge(installation: Installation, *arguments: str, **environment: str) -> Any:
    """Run ``zerocopy build-bridge`` in a process that has torch."""
    return installation.run(BUILD, *arguments, **environment)


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
    shutil.rmtree(installation.cache)
    done = build_bridge(installation, CXX=str(compiler))
    assert done.returncode == 0, done.stderr
    assert str(installation.built) in done.stdout
    modes = {folder.stat().st_mode & 0o777 for folder in installation.built.parents[:2]}
    assert modes == {0o700}, "share refuses a folder that is open to others"
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


@pytest.mark.slow("starts two Pythons with torch")
def test_build_replaces_a_refused_bridge(installation: Installation, compiler: Path) -> None:
    installation.bridge.unlink()
    installation.built.write_bytes(b"damaged")
    done = subprocess.run(  # as a user does, who has no use for advice to run it
        [sys.executable, "-m", "zerocopy", "build-bridge"],
        capture_output=True,
        text=True,
        env={**os.environ, **installation.environment(), "CXX": str(compiler)},
    )
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


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("", ["no C++ compiler (", "not found): install one"]),
        ("echo 'error: no such register' >&2\nexit 3", ["status 3", "error: no such register"]),
        pytest.param(
            'while [ "$1" != -o ]; do shift; done\necho nothing >"$2"',
            ["cannot be loaded"],
            marks=pytest.mark.slow("starts a Python with torch"),
        ),
    ],
    ids=["no compiler", "failing", "writes nothing"],
)
def test_build_that_fails_says_why_and_keeps_nothing(
    installation: Installation, tmp_path: Path, script: str, words: list[str]
) -> None:
    installation.bridge.unlink()
    program = tmp_path / "compiler"
    if script:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    done = build_bridge(installation, CXX=str(program))
    assert done.returncode == 2 and [word for word in words if word not in done.stderr] == []
    assert not list(installation.built.parent.iterdir())


def test_source_of_a_bridge_is_in_the_package() -> None:
    source = Path(__file__).parents[2] / "csrc"
    for name in ("bridge/bridge.cpp", "bridge/table.h"):
        assert (compilation._SOURCES[0] / name).read_text() == (source / name).read_text()


def test_bridge_info_of_this_process() -> None:
    info = _native.bridge_info()
    assert info.torch == torch.__version__
    assert info.kind in ("prebuilt", "built", "portable")
