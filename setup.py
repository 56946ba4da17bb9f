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


def torch_version() -> str:
    """Return the version of the torch to build for, without the seconds that importing it takes."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        sys.exit(
            "zerocopy is compiled against the torch you use, and this Python has none: "
            "install torch first, then run pip with --no-build-isolation"
        )


def run(*command: str) -> None:
    """Run a command that has said itself what is wrong if it fails: a traceback would only bury that."""
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        sys.exit(f"{command[0]} failed with status {status}")


# One folder per torch and Python: objects compiled for one torch must never be linked for another.
BUILD = ROOT / "build" / f"{torch_version()}-{sys.implementation.cache_tag}"


class CMakeBuild(build_ext):
    """Runs CMake instead of a compiler."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the path of a module's file. That of the hooks has no tag: no Python imports it."""
        if fullname.endswith("_watch"):
            return os.path.join(*fullname.split(".")) + ".so"  # noqa: PTH118
        filename: str = super().get_ext_filename(fullname)
        return filename

    def build_extension(self, ext: Extension) -> None:
        """Configure, build, and copy the module to where setuptools wants it."""
        source = ["-S", str(ROOT), "-B", str(BUILD)]
        if "CMAKE_GENERATOR" not in os.environ and shutil.which("ninja"):
            source += ["-G", "Ninja"]
        options = [f"-DPython_EXECUTABLE={sys.executable}", *shlex.split(os.environ.get("CMAKE_ARGS", ""))]
        run("cmake", *source, *options)
        module = ext.name.rpartition(".")[2]
        run("cmake", "--build", str(BUILD), "--target", module, "--parallel", str(os.cpu_count() or 1))

        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(BUILD / target.name, target)
        (target.parent / "built_for").write_text(torch_version() + "\n")  # which is asked before _C is loaded


# setuptools copies the package here and never clears it: a module that was deleted would be packed for ever.
PACKAGE = BUILD / "package"
shutil.rmtree(PACKAGE, ignore_errors=True)

setup(
    license="Apache-2.0",
    ext_modules=[Extension(f"zerocopy.{name}", sources=[]) for name in ("_C", "_core", "_watch")],
    cmdclass={"build_ext": CMakeBuild},
    options={"build": {"build_base": str(BUILD), "build_lib": str(PACKAGE)}},
)
