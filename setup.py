"""Builds the extension module by CMake; everything else about the package stands in pyproject.toml."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def torch_version() -> str | None:
    """Return the version of the torch to build a bridge for, without the seconds that importing it takes."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def run(*command: str) -> None:
    """Run a command that has said itself what is wrong if it fails: a traceback would only bury that."""
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        sys.exit(f"{command[0]} failed with status {status}")


# One folder per torch and Python, so that two of them can be built side by side.
DEFAULT_BUILD = ROOT / "build" / f"{torch_version() or 'no-torch'}-{sys.implementation.cache_tag}"
BUILD = Path(os.environ.get("ZEROCOPY_BUILD_FOLDER") or DEFAULT_BUILD)
# `zerocopy build-bridge` compiles these on the user's machine.
BRIDGE_SOURCES = ("bridge.cpp", "table.h")


class CMakeBuild(build_ext):
    """Runs CMake instead of a compiler."""

    def build_extension(self, ext: Extension) -> None:
        """Configure, build, and copy the module to where setuptools wants it."""
        source = ["-S", str(ROOT), "-B", str(BUILD)]
        if "CMAKE_GENERATOR" not in os.environ and shutil.which("ninja"):
            source += ["-G", "Ninja"]
        options = [f"-DPython_EXECUTABLE={sys.executable}", *shlex.split(os.environ.get("CMAKE_ARGS", ""))]
        run("cmake", *source, *options)
        module = ext.name.rpartition(".")[2]
        if module == "_C":  # the folder may have bridges of an earlier configuration
            shutil.rmtree(BUILD / "bridges", ignore_errors=True)
        targets = [module, "bridges"] if module == "_C" else [module]
        run("cmake", "--build", str(BUILD), "--target", *targets, "--parallel", str(os.cpu_count() or 1))

        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(BUILD / target.name, target)
        if module == "_C":
            self.add_bridges(target.parent)

    @staticmethod
    def add_bridges(package: Path) -> None:
        """Copy the bridges to torch into the package, and their source."""
        for bridge in (BUILD / "bridges").glob("*.so"):
            shutil.copy2(bridge, package)
        sources = package / "_bridge_source" / "bridge"
        sources.mkdir(parents=True, exist_ok=True)
        for name in BRIDGE_SOURCES:
            shutil.copy2(ROOT / "csrc" / "bridge" / name, sources)


# setuptools copies the package here and never clears it: a module that was deleted would be packed for ever.
PACKAGE = BUILD / "package"
shutil.rmtree(PACKAGE, ignore_errors=True)

setup(
    license="Apache-2.0",
    ext_modules=[Extension(f"zerocopy.{name}", sources=[]) for name in ("_C", "_core")],
    cmdclass={"build_ext": CMakeBuild},
    options={"build": {"build_base": str(BUILD), "build_lib": str(PACKAGE)}},
)
