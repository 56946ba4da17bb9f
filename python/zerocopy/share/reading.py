"""Notes which files a call reads, so that its result is not taken for true when one of them is another.

Files are noted as Python opens them, with what they were right then. What native code opens is not seen; so the files
that arguments name are noted before, those that are mapped afterwards, and of a folder that files were read from its
weights, which libraries open natively, too.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Self

from zerocopy.share import files

# What libraries open natively.
_NATIVE = (".safetensors", ".h5", ".hdf5", ".gguf", ".bin", ".pt", ".pth", ".onnx", ".model")
_WEIGHTS = (".safetensors", ".h5", ".hdf5", ".gguf")
_CODE = (".pyc", ".pyi", ".so", ".pth")
_SYSTEM = ("/proc/", "/sys/", "/etc/", "/usr/share/", "/usr/lib/")
_MOST = 4096
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Reading:
    """Notes within its block what is read.

    Parameters
    ----------
    known : dict
        Files that arguments name, as the caller saw them.
    """

    def __init__(self, known: files.Files) -> None:
        self._known = known
        self._noted: files.Files = {}
        self._is_on = False
        self.has_relative_paths = False

    def __enter__(self) -> Self:
        for path in self._known:
            self._noted[path] = files.identity_at(path)
        self._is_on = True
        sys.addaudithook(self._hear)  # there is no way to take it away
        return self

    def __exit__(self, *_: object) -> None:
        self._is_on = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_on and event == "open":
            path, mode, flags = arguments
            if isinstance(path, (str, bytes)) and not _is_writing(mode, flags):
                self._note(os.fsdecode(path))

    def _note(self, path: str) -> None:
        absolute = path if path.startswith("/") else f"{Path.cwd()}/{path}"
        if absolute not in self._noted and len(self._noted) < _MOST and _counts(absolute):
            identity = files.identity_at(absolute)
            if identity is None or files.is_regular(absolute):  # one that is not there may come
                self._noted[absolute] = identity
                self.has_relative_paths |= absolute != path

    def found(self) -> files.Files:
        """Return the files that the result depends on."""
        found = dict(self._noted)
        for folder in {Path(path).parent for path in self._noted}:
            for beside in folder.iterdir() if folder.is_dir() else ():
                if beside.name.endswith(_WEIGHTS):
                    found.setdefault(str(beside), files.identity_at(str(beside)))
        for path in (*_mapped(), *_own_modules()):
            if len(found) < _MOST and (identity := files.identity_at(path)) is not None:
                found.setdefault(path, identity)
        # What has come or gone meanwhile was the call's own.
        return {
            path: identity
            for path, identity in found.items()
            if (identity is None) == (files.identity_at(path) is None)
        }


def _is_writing(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITING)


def _counts(path: str) -> bool:
    if path.endswith(_CODE) and not path.endswith(_NATIVE):
        return False
    return not (
        path.startswith(_SYSTEM) or ".dist-info/" in path or ".egg-info" in path or path.endswith(".py")
    )


def _mapped() -> list[str]:
    """Return the files that are mapped and hold data."""
    with Path("/proc/self/maps").open(errors="surrogateescape") as lines:
        paths = {line.rstrip("\n").split(maxsplit=5)[-1] for line in lines if " /" in line}
    return [path for path in paths if path.startswith("/") and not _is_code(path)]


def _is_code(path: str) -> bool:
    return (
        ".so" in path.rpartition("/")[2]
        or path.startswith((*_SYSTEM, "/usr/", "/memfd:"))
        or not files.is_regular(path)
    )


def _own_modules() -> list[str]:
    """Return the source files of modules that are not installed but the program's own."""
    installed = tuple(
        {sys.prefix, sys.base_prefix, sys.exec_prefix, "/usr/lib", str(Path(__file__).parents[2])}
    )
    paths = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [
        path
        for path in paths
        if isinstance(path, str)
        and path.endswith(".py")
        and path.startswith("/")
        and not path.startswith(installed)
    ]
