"""The least that a loader can do, from floor.cpp, compiled against the running torch when it is first wanted."""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from os import environ
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

NAME = "floor_of_loaders"
BUILD = Path(__file__).resolve().parents[2] / "build" / "bench"


def why_not() -> str:
    """Say why the floor cannot be measured here, or return an empty string."""
    if _compiler() is None:
        return "there is no C++ compiler"
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return "" if headers.is_file() else "there are no headers of Python"


def _compiler() -> str | None:
    return environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


@functools.cache
def module() -> ModuleType:
    """Compile the loader, which takes most of a minute, unless that has been done for this torch."""
    source = Path(__file__).with_name("floor.cpp")
    version = hashlib.sha256(
        source.read_bytes() + torch.__version__.encode() + sys.version.encode()
    ).hexdigest()
    library = BUILD / f"{NAME}-{version[:16]}.so"
    if not library.is_file():
        _compile(source, library)
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(library))
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None
    made = importlib.util.module_from_spec(spec)
    loader.exec_module(made)
    return made


def _compile(source: Path, library: Path) -> None:
    from torch.utils import cpp_extension

    includes = [*cpp_extension.include_paths(), sysconfig.get_path("include")]
    abi = int(torch.compiled_with_cxx11_abi())
    flags = ["-O2", "-std=c++20", "-shared", "-fPIC", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    flags += [flag for include in includes for flag in ("-isystem", include)]
    # torch has loaded these libraries; naming them lets the linker find them again.
    libraries = [flag for folder in cpp_extension.library_paths() for flag in ("-L", folder)]
    libraries += ["-Wl,--no-as-needed", "-lc10", "-ltorch_cpu", "-ltorch_python"]
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        command = [*shlex.split(_compiler() or ""), *flags, "-o", str(made), str(source), *libraries]
        subprocess.run(command, check=True)
        made.rename(library)


def plan_of(path: str) -> tuple[Any, bool]:
    """Return what :func:`load` is given: where storages and tensors are, as ``zerocopy.open`` says."""
    import zerocopy

    is_zip = zipfile.is_zipfile(path)
    with zerocopy.open(path) as checkpoint:
        infos = checkpoint.tensors()
    extents = zerocopy.storage_offsets(path)
    numbers = {key: number for number, key in enumerate(extents)}
    storages = [(extent.offset, extent.size) for extent in extents.values()]
    if is_zip:
        with zipfile.ZipFile(path) as archive:
            records = {name.partition("/data/")[2]: i for i, name in enumerate(archive.namelist())}
        storages = [(records[key], extent.size) for key, extent in extents.items()]
    tensors = []
    for info in infos:
        size = info.nbytes // max(1, info.shape.numel())
        offset = (info.offset - extents[info.storage].offset) // size if size else 0
        tensors.append((info.name, numbers[info.storage], info.dtype, info.shape, info.stride, offset))
    return module().plan(storages, tensors), is_zip


def load(path: str, plan: tuple[Any, bool]) -> dict[str, torch.Tensor]:
    """Make the tensors."""
    made: dict[str, torch.Tensor] = module().load(path, *plan)
    return made
