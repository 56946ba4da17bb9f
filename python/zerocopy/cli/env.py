"""``zerocopy env``: a block of facts for bug reports."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from zerocopy import display
from zerocopy._version import __version__
from zerocopy.cli import output, runner
from zerocopy.cli.output import escaped, say
from zerocopy.process.control_group import control_group

DESCRIPTION = """
Prints facts for a bug report: versions, the system, memory, the file system of the current folder, CUDA and cuFile,
and the variables that change how checkpoints are loaded. CUDA is not started. torch is imported in another
process, so the block is printed even if torch is missing or broken.
"""

EPILOG = """
exit codes:
  0  printed
  2  trouble: the line on standard error says why
"""

_LIBRARIES = (
    "numpy", "safetensors", "h5py", "transformers", "diffusers", "accelerate", "dill", "tqdm", "rich", "kvikio",
    "nvidia-cufile-cu12", "nvidia-cufile",
)  # fmt: skip
_TORCH_VARIABLES = (
    "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "TORCH_SERIALIZATION_DEBUG",
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "CUFILE_ENV_PATH_JSON", "LD_PRELOAD",
)  # fmt: skip
_CUFILE_FOLDERS = ("/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/usr/lib/x86_64-linux-gnu",
                   "/usr/local/cuda/targets/sbsa-linux/lib", "/usr/lib/aarch64-linux-gnu")  # fmt: skip
_TIMEOUT = 120

# The program of the process that imports torch. Its last line is JSON.
_PROBE = """
import json
found = {}
try:
    import torch
    found = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "cxx11_abi": torch.compiled_with_cxx11_abi(),
        "threads": torch.get_num_threads(),
        "error": None,
        "patched": getattr(torch.load, "__module__", "").split(".")[0] == "zerocopy",
        "extension": "loads",
    }
    try:
        from zerocopy._native import bridge_info
        found["bridge"] = str(bridge_info())
    except Exception as error:
        found["extension"] = f"{type(error).__name__}: {error}"
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}"
print()
print(json.dumps(found))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Print the block, and return the exit code."""
    found = facts()
    if options.json:
        output.say_json({**runner.head("env"), **found})
    else:
        say(_lines(found))
    return runner.FINE


def facts() -> dict[str, Any]:
    """Return the facts, in groups."""
    torch = _torch()
    return {
        "versions": {
            "zerocopy": __version__,
            "zerocopy's extension": torch.pop("extension", None) or "not loaded: torch cannot be imported",
            "torch": torch.pop("version", None) or _version("torch") or "not installed",
            "Python": f"{platform.python_version()} ({platform.python_implementation()})",
            "libc": " ".join(platform.libc_ver()).strip() or "unknown",
        },
        "torch": {name: value for name, value in torch.items() if value is not None},
        "system": _system(),
        "cuda": _cuda(),
        "libraries": {name: version for name in _LIBRARIES if (version := _version(name))},
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith("ZEROCOPY_") or name in _TORCH_VARIABLES
        },
    }


def _torch() -> dict[str, Any]:
    """Return the facts that a new process reports after importing torch."""
    command = [sys.executable, "-c", _PROBE]
    # The process looks for modules where this one does, and not in the current folder.
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(command, capture_output=True, env=environ, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    try:
        return dict(json.loads(done.stdout.decode(errors="replace").strip().rpartition("\n")[2]))
    except ValueError:
        return {"error": f"importing torch ended the process with status {done.returncode}"}


def _system() -> dict[str, Any]:
    lines = (_text_of(Path("/proc/meminfo")) or "").splitlines()
    memory = {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(":") for line in lines)
        if rest.strip()
    }
    group = control_group()
    limit = "none" if group is None or group.limit is None else display.size(group.limit)
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        distribution = "unknown"
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "distribution": distribution,
        "CPUs": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "memory": f"{display.size(memory.get('MemTotal', 0))}, {display.size(memory.get('MemAvailable', 0))} available",
        "container's limit": limit,
        "page size": os.sysconf("SC_PAGE_SIZE"),
        "file system here": _file_system(Path.cwd()),
        "locked memory": "unlimited" if locked == resource.RLIM_INFINITY else display.size(locked),
    }  # fmt: skip


def _file_system(folder: Path) -> str:
    """Return the type of the file system that holds a folder.

    This is the type of the deepest mount point at or above the folder; of several mounts there, the last.
    """
    best, kind = -1, "unknown"
    for line in (_text_of(Path("/proc/self/mountinfo")) or "").splitlines():
        before, _, after = line.partition(" - ")
        place = before.split()[4].encode("latin-1", "replace").decode("unicode_escape", "replace")
        if folder.is_relative_to(place) and len(place) >= best:
            best, kind = len(place), after.split()[0]
    return kind


def _cuda() -> dict[str, Any]:
    """Return the facts about CUDA that files contain. No CUDA library is loaded."""
    driver = (_text_of(Path("/proc/driver/nvidia/version")) or "").splitlines()
    return {
        "driver": driver[0].strip() if driver else "no NVIDIA driver",
        "devices": len([path for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdigit()]),
        "cuFile": _cufile() or "not found",
        "nvidia-fs": "loaded" if Path("/proc/driver/nvidia-fs").exists() else "not loaded",
    }


def _cufile() -> str | None:
    folders = [*_CUFILE_FOLDERS, *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)]
    folders += [f"{folder}/nvidia/cufile/lib" for folder in sys.path if folder]
    for folder in filter(None, folders):
        if found := sorted(Path(folder).glob("libcufile.so*")):
            return str(found[0])
    try:
        known = b"libcufile.so" in Path("/etc/ld.so.cache").read_bytes()
    except OSError:
        known = False
    return "known to the dynamic linker" if known else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _text_of(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _lines(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    width = max((len(name) for group in found.values() for name in group), default=0)
    for title, group in found.items():
        yield f"{title}:" if group else f"{title}: none"
        for name, value in group.items():
            yield f"  {name:<{width}}  {escaped(str(value), 1000)}"
