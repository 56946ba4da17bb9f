"""Compilation of a bridge to the running torch on the user's machine: ``zerocopy build-bridge``."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch
import torch.utils.cpp_extension as cpp_extension

from zerocopy import _C
from zerocopy._native.bridges import PACKAGE, cache_path
from zerocopy._native.stamp import Stamp, running_stamp
from zerocopy.errors import UnsupportedError

_LIBRARIES = ("torch_python", "torch_cpu", "torch", "c10")

# Where the source is: setup.py copies it into the package; a checkout has it in csrc.
_SOURCES = (PACKAGE / "_bridge_source", Path(__file__).resolve().parents[3] / "csrc")

# A bridge that cannot be loaded must not stop programs: another process tries it before it gets its name.
_TRIAL = """
import os, sys, torch
from zerocopy import _C
_C.load_bridge(os.fsencode(sys.argv[1]), sys.argv[2])
"""


def compile_bridge() -> Path:
    """Compile a bridge to the running torch into the user's cache, and return its path.

    Raises
    ------
    zerocopy.UnsupportedError
        If no compiler is found, if headers are missing, if the compiler fails, or if the cache cannot be written.
    """
    stamp = running_stamp(_C.bridge_abi())
    command = _command(stamp)
    try:
        target = cache_path(stamp)
        for above in (target.parents[1], target.parent):  # each, because the mode is that of the last alone
            above.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=target.parent)
    except (RuntimeError, OSError) as error:
        raise UnsupportedError(
            f"the bridge cannot be stored ({error}): set XDG_CACHE_HOME to a folder that only you can write to"
        ) from error
    with folder as name:
        made = Path(name) / target.name
        _run([*command, "-o", str(made)], "the compiler failed")
        made.chmod(0o755)
        environment = {**os.environ, "ZEROCOPY_BRIDGE": "portable"}
        trial = [sys.executable, "-P", "-c", _TRIAL, str(made), str(stamp)]
        _run(trial, "the bridge was compiled and cannot be loaded", environment)
        made.replace(target)
    return target


def _command(stamp: Stamp) -> list[str]:
    source = next((folder for folder in _SOURCES if (folder / "bridge" / "bridge.cpp").is_file()), None)
    if source is None:
        raise UnsupportedError(f"{_SOURCES[0]} has no source of a bridge: install zerocopy again")
    includes = [path for path in cpp_extension.include_paths() if Path(path).is_dir()]
    if not any((Path(path) / "c10" / "core" / "StorageImpl.h").is_file() for path in includes):
        raise UnsupportedError(
            f"PyTorch {torch.__version__} is installed without its C++ headers (looked in {', '.join(includes)}): "
            "install the package that has them, on Debian libtorch-dev"
        )
    python = sysconfig.get_paths()["include"]
    if not (Path(python) / "Python.h").is_file():
        raise UnsupportedError(f"{python} has no Python.h: install Python's headers, on Debian python3-dev")
    return [
        *_compiler(),
        "-std=c++20",
        "-O2",
        "-DNDEBUG",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-fvisibility-inlines-hidden",
        f"-D_GLIBCXX_USE_CXX11_ABI={stamp.cxx11_abi}",
        f'-DZEROCOPY_BRIDGE_TORCH="{stamp.torch}"',
        f'-DZEROCOPY_BRIDGE_PYTHON="{stamp.python}"',
        f"-I{source}",
        *(f"-isystem{path}" for path in (*includes, python)),
        str(source / "bridge" / "bridge.cpp"),
        *(f"-L{path}" for path in cpp_extension.library_paths()),
        *(f"-l{name}" for name in _LIBRARIES),
    ]


def _compiler() -> list[str]:
    """Return the command of the C++ compiler: ``CXX``, else ``c++`` or ``g++``."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    for command in [chosen] if chosen else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    tried = chosen[0] if chosen else "c++, g++ and clang++"
    raise UnsupportedError(f"no C++ compiler ({tried} not found): install one, on Debian g++, or set CXX")


def _run(command: list[str], fault: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise UnsupportedError(
            f"{fault}, with status {done.returncode}: {shlex.join(command)}\n{done.stderr}"
        )
