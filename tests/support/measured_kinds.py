"""Loads a kind of the catalog with torch and with zerocopy, and states what must come of it."""

from __future__ import annotations

import _compat_pickle
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from conftest import lies_in_mapping, outcome
from equality import assert_same, storages_of
from kinds import Kind
from saved_kinds import allowed

import zerocopy

# Globals that zerocopy's machine builds itself, without an allow-list. A file that torch refuses and zerocopy
# loads names nothing else.
NATIVE = {
    "builtins": {"set", "bytes", "bytearray", "complex"},
    "collections": {"OrderedDict", "Counter"},
    "_codecs": {"encode"},
    "torch": {
        "Size",
        "device",
        *(name for name in vars(torch) if isinstance(getattr(torch, name), torch.dtype)),
    },
    "torch._utils": {
        f"_rebuild_{what}"
        for what in ("tensor", "tensor_v2", "tensor_v3", "parameter", "parameter_with_state")
    },
}


def measured(kind: Kind, path: Path, weights_only: bool) -> str:
    """Load with torch and with zerocopy, compare, and say what came of it. Raise AssertionError if it may not be so.

    zerocopy loads what torch loads, but for programs and exceptions with ``weights_only=True``. It also loads what
    names nothing but what it builds itself, what torch's list has, and what the entry allows.
    """
    with allowed(kind):
        torchs = outcome(lambda: torch.load(path, weights_only=weights_only))
        ours = outcome(lambda: zerocopy.load(path, weights_only=weights_only))
    trusted = outcome(lambda: torch.load(path, weights_only=False)) if weights_only else torchs
    if ours[0] == "error":
        return _why_not(kind, ours, torchs, trusted, weights_only, path)

    compare, remark = kind.same or assert_same, ""
    if torchs[0] == "error":
        remark = " (torch cannot)" if trusted[0] == "error" else " (torch refuses)"
        assert trusted[0] == "error" or may_be_loaded(kind, path), f"torch does not load this: {torchs[2]}"
        torchs = trusted
    if kind.expected is not None:
        truth = kind.expected()
        compare(ours[1], truth)
        if torchs[0] == "value" and outcome(lambda: compare(torchs[1], truth))[0] == "error":
            remark = " (torch differs)"
    elif torchs[0] == "value":
        compare(ours[1], torchs[1])
    return _placement(kind, ours[1], path) + remark


def placements(loaded: Any, path: Path) -> list[tuple[int, bool]]:
    """Return the size of each storage of an object, and whether it lies in the mapping of the file."""
    if isinstance(loaded, torch.jit.ScriptModule):
        loaded = loaded.state_dict()
    found = storages_of(loaded)
    return sorted((storage.nbytes(), lies_in_mapping(storage.data_ptr(), path)) for storage in found)


def may_be_loaded(kind: Kind, path: Path) -> bool:
    """Return whether all that a file names is native, on torch's list, or allowed by the entry."""
    torchs = torch._weights_only_unpickler._get_allowed_globals()
    given = {(entry.__module__, entry.__qualname__) for entry in (kind.allow() if kind.allow else [])}
    return all(
        name in NATIVE.get(module, ()) or f"{module}.{name}" in torchs or (module, name) in given
        for module, name in _names_in(path)
    )


def _placement(kind: Kind, loaded: Any, path: Path) -> str:
    inside = {mapped for _, mapped in placements(loaded, path)}
    if not inside:
        return "loads"
    return kind.placed or {(True,): "zero-copy", (False,): "copied"}.get(tuple(inside), "partly copied")


def _why_not(kind: Kind, ours: Any, torchs: Any, trusted: Any, weights_only: bool, path: Path) -> str:
    """Return the reason of a refusal, if there is one."""
    refusals = (pickle.UnpicklingError, zerocopy.UnsupportedError)
    if trusted[0] == "error":
        return "refused" if ours[1] is torchs[1] is pickle.UnpicklingError else "torch cannot load"
    assert weights_only, f"torch loads this: {ours}"
    assert issubclass(ours[1], refusals), ours
    if isinstance(trusted[1], torch.jit.ScriptModule):
        return "refused (torch loads it)" if torchs[0] == "value" else "refused"
    assert torchs[0] == "error" or _names_exceptions(path), f"torch loads this: {ours}"
    blames = torchs[0] == "error" and zipfile.is_zipfile(path) and "global" in ours[2]
    assert not (blames and may_be_loaded(kind, path)), f"every global in it is safe: {ours}"
    return "refused (torch loads it)" if torchs[0] == "value" else "refused"


def _names_exceptions(path: Path) -> bool:
    """Return whether a file names exceptions that torch 2.14 and later register, to send them between ranks."""
    registered = getattr(torch.serialization, "get_safe_globals", list)()
    exceptions = {
        (each.__module__, each.__qualname__)
        for each in registered
        if isinstance(each, type) and issubclass(each, BaseException)
    }
    return bool(_names_in(path) & exceptions)


class _Stub:
    """Stands for whatever a file names; takes what the file does with it."""

    def __new__(cls, *arguments: Any, **named: Any) -> _Stub:
        return super().__new__(cls)

    def __call__(self, *arguments: Any, **named: Any) -> _Stub:
        return self

    def take(self, *arguments: Any) -> None: ...

    __setstate__ = __setitem__ = append = extend = add = take


class _Names(pickle.Unpickler):
    """Runs a pickle without anything it names, and notes the names."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, encoding="bytes")
        self.found: set[tuple[str, str]] = set()

    def find_class(self, module: str, name: str) -> Any:
        module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
        self.found.add((_compat_pickle.IMPORT_MAPPING.get(module, module), name))
        return _Stub

    def persistent_load(self, pid: Any) -> Any:
        return None


def _names_in(path: Path) -> set[tuple[str, str]]:
    """Return the (module, name) pairs that a checkpoint names, as Python 3 spells them."""
    pickles = 4  # of the legacy format: magic number, version, system, object
    file = io.BytesIO(path.read_bytes())
    if zipfile.is_zipfile(path):
        pickles = 1
        with zipfile.ZipFile(file) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            file = io.BytesIO(archive.read(name))
    found: set[tuple[str, str]] = set()
    for _ in range(pickles):
        names = _Names(file)
        names.load()
        found |= names.found
    return found
