"""Tell a program's own modules from installed ones, and find the files that a process would import."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.machinery
import importlib.util
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

#: A module's file, or the folders of a package that has none.
Origin = str | list[str]

_SUFFIXES = (
    *importlib.machinery.EXTENSION_SUFFIXES,
    *importlib.machinery.SOURCE_SUFFIXES,
    *importlib.machinery.BYTECODE_SUFFIXES,
)
_MAX_LISTINGS = 256


class _Listing(NamedTuple):
    modified: int
    names: frozenset[str]
    stems: frozenset[str]  # the names up to the first dot


_NOTHING = _Listing(0, frozenset(), frozenset())
_listings: dict[str, _Listing] = {}


# Code that Python and torch generate. PyTorch 2.2 to 2.6 write the last one on importing torch.distributed.
_GENERATED = ("/__pycache__", "/torchinductor_", "/_remote_module_non_scriptable.py")
_FOLDERS = (
    *(str(folder) for folder in (Path(os.__file__).parent, Path(__file__).parents[2])),
    *(f"{prefix}/{name}" for prefix in (sys.prefix, sys.base_prefix) for name in ("bin", "lib")),
)
_LIBRARIES = tuple({f"{path}/" for folder in _FOLDERS for path in (folder, os.path.realpath(folder))})


_STARTUP = 0.02  # seconds: a tick of the kernel's clock, and the start of Python itself


@functools.cache
def started(process: int) -> int:
    """Return a time before which a process imported no module, in nanoseconds since 1970."""
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return time.time_ns()
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - int((age - _STARTUP) * 1e9)


def is_of_package(path: str) -> bool:
    """Return whether an absolute path belongs to an installed package."""
    # Calling sysconfig and site takes a client some ten milliseconds.
    return "/site-packages/" in path or "/dist-packages/" in path


def is_installed(path: str) -> bool:
    """Return whether an absolute path belongs to the standard library, an installed package, or zerocopy."""
    inside = f"{path}/"
    return is_of_package(inside) or inside.startswith(_LIBRARIES)


def is_generated(path: str) -> bool:
    """Return whether a path is of code that Python or torch generated."""
    return any(mark in path for mark in _GENERATED)


@functools.lru_cache(maxsize=4096)
def is_own(path: str) -> bool:
    """Return whether a file is the program's, and neither installed nor generated."""
    path = _tidy(path)
    return path.startswith("/") and not is_installed(path) and not is_generated(path)


def origin_of(module: Any) -> Origin | None:
    """Return where a module came from; None if it has no file."""
    path = getattr(module, "__file__", None)
    if isinstance(path, str):
        return _tidy(path)
    folders = getattr(module, "__path__", None)
    return None if folders is None else [_tidy(str(folder)) for folder in folders]


@functools.cache
def imports_of(path: str, package: str) -> frozenset[str]:
    """Return the names of modules that the source file of a package's module imports, also within functions."""
    names = set[str]()
    try:
        parsed = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):  # of an archive, or of compiled code
        return frozenset()
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):  # beyond the outermost package
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                names.update((base, *(f"{base}.{alias.name}" for alias in node.names)))
    return frozenset(names)


def found(name: str, entries: Iterable[str]) -> Origin | None:
    """Return from where a module would be imported, given ``sys.path``. Archives are not searched."""
    portions = []
    for entry in entries:
        folder = _folder_of(entry)
        names = _listing_of(folder or "/").names
        if name in names:
            for suffix in _SUFFIXES:
                path = f"{folder}/{name}/__init__{suffix}"
                if os.path.isfile(path):
                    return path
        for suffix in _SUFFIXES:
            if name + suffix in names:
                return f"{folder}/{name}{suffix}"
        if name in names and os.path.isdir(f"{folder}/{name}"):
            portions.append(f"{folder}/{name}")
    return portions or None


def shadowed(names: frozenset[str], entries: Iterable[str]) -> list[str]:
    """Return the names for which one of the program's own folders on ``sys.path`` may have a module."""
    folders = [_folder_of(entry) for entry in entries] if names else []
    return sorted(
        {name for folder in folders if is_own(folder) for name in names & _listing_of(folder).stems}
    )


def here(name: str) -> Origin | None:
    """Return from where this process has imported a module, or would."""
    module = sys.modules.get(name)
    return found(name, sys.path) if module is None else origin_of(module)


def _folder_of(entry: str) -> str:
    """Return the absolute path of an entry of ``sys.path``; of the root folder an empty string."""
    return _tidy(entry if entry.startswith("/") else f"{_current()}/{entry}").rstrip("/")


def _tidy(path: str) -> str:
    """Normalise a path: releases of Python differ in the parts without a meaning that they leave in ``__file__``."""
    if "//" not in path and "/." not in path:
        return path
    return "/".join(part for i, part in enumerate(path.split("/")) if not i or part not in ("", "."))


def _current() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/nonexistent"


def _listing_of(folder: str) -> _Listing:
    """Return the names in a folder. They are read again when the folder has changed."""
    try:
        modified = os.stat(folder).st_mtime_ns
        known = _listings.get(folder)
        if known is None or known.modified != modified:
            if len(_listings) >= _MAX_LISTINGS:
                _listings.clear()
            names = frozenset(os.listdir(folder))
            stems = frozenset(name.partition(".")[0] for name in names)
            known = _listings[folder] = _Listing(modified, names, stems)
    except OSError:
        return _NOTHING
    return known
