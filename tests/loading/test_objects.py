"""Everything that torch.save writes loads equal, where it can without a copy: the rows of docs/reference/objects.md.

``ZEROCOPY_UPDATE_DOCS=1`` writes the running release's columns of that table instead of comparing with them.
"""

from __future__ import annotations

import _compat_pickle
import io
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import objects_table
import pytest
import saved_kinds
import torch
from conftest import lies_in_mapping, outcome
from equality import assert_same, storages_of
from kinds import REPACKED, Kind, releases, subclasses
from saved_kinds import KINDS, allowed

import zerocopy

saved = saved_kinds.saved  # a fixture

UPDATE = os.environ.get("ZEROCOPY_UPDATE_DOCS") == "1"

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's about half of its own objects

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


@pytest.fixture(scope="module")
def table() -> Iterator[Callable[[Kind, bool, str], None]]:
    """Return a function that compares a cell with docs/reference/objects.md, or writes it there at the end."""
    rows = objects_table.read()
    measured: dict[tuple[str, bool], str] = {}

    def check(kind: Kind, weights_only: bool, cell: str) -> None:
        measured[kind.name, weights_only] = cell
        if not UPDATE and objects_table.release():
            documented = rows[kind.name][objects_table.column(weights_only)]
            assert cell == documented, (
                f"docs/reference/objects.md says {documented!r}; ZEROCOPY_UPDATE_DOCS=1 corrects it"
            )

    yield check
    if UPDATE and objects_table.release():
        objects_table.write(measured)


def placements(loaded: Any, path: Path) -> list[tuple[int, bool]]:
    """Return the size of each storage of an object, and whether it lies in the mapping of the file."""
    if isinstance(loaded, torch.jit.ScriptModule):
        loaded = loaded.state_dict()
    found = storages_of(loaded)
    return sorted((storage.nbytes(), lies_in_mapping(storage.data_ptr(), path)) for storage in found)


def placement(kind: Kind, loaded: Any, path: Path) -> str:
    """Return what the table says of where the data of an object lie."""
    inside = {mapped for _, mapped in placements(loaded, path)}
    if not inside:
        return "loads"
    return kind.placed or {(True,): "zero-copy", (False,): "copied"}.get(tuple(inside), "partly copied")


class Stub:
    """Stands for whatever a file names; takes what the file does with it."""

    def __new__(cls, *arguments: Any, **named: Any) -> Stub:
        return super().__new__(cls)

    def take(self, *arguments: Any) -> None: ...

    __setstate__ = __setitem__ = append = extend = add = take


class Names(pickle.Unpickler):
    """Runs a pickle without anything it names, and notes the names."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, encoding="bytes")
        self.found: set[tuple[str, str]] = set()

    def find_class(self, module: str, name: str) -> Any:
        module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
        self.found.add((_compat_pickle.IMPORT_MAPPING.get(module, module), name))
        return Stub

    def persistent_load(self, pid: Any) -> Any:
        return None


def names_in(path: Path) -> set[tuple[str, str]]:
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
        names = Names(file)
        names.load()
        found |= names.found
    return found


def may_be_loaded(kind: Kind, path: Path) -> bool:
    """Return whether all that a file names is native, on torch's list, or allowed by the entry."""
    torchs = torch._weights_only_unpickler._get_allowed_globals()
    given = {(entry.__module__, entry.__qualname__) for entry in (kind.allow() if kind.allow else [])}
    return all(
        name in NATIVE.get(module, ()) or f"{module}.{name}" in torchs or (module, name) in given
        for module, name in names_in(path)
    )


def measured(kind: Kind, path: Path, weights_only: bool) -> str:
    """Load with torch and with zerocopy, compare, and return the cell of the table."""
    compare = kind.same or assert_same
    with allowed(kind):
        torchs = outcome(lambda: torch.load(path, weights_only=weights_only))
        ours = outcome(lambda: zerocopy.load(path, weights_only=weights_only))
    trusted = outcome(lambda: torch.load(path, weights_only=False)) if weights_only else torchs
    if ours[0] == "error":
        return why_not(ours, torchs, trusted, weights_only, path)

    remark = ""
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
    return placement(kind, ours[1], path) + remark


def names_exceptions(path: Path) -> bool:
    """Return whether a file names exceptions that torch 2.14 and later register, to send them between ranks."""
    registered = getattr(torch.serialization, "get_safe_globals", list)()
    exceptions = {
        (each.__module__, each.__qualname__)
        for each in registered
        if isinstance(each, type) and issubclass(each, BaseException)
    }
    return bool(names_in(path) & exceptions)


def why_not(ours: Any, torchs: Any, trusted: Any, weights_only: bool, path: Path) -> str:
    """Return the cell of an object that zerocopy does not load, if it may fail to."""
    if isinstance(torchs[1], torch.jit.ScriptModule) and weights_only:
        return "refused (torch runs it)"
    if torchs[0] == "value":
        if weights_only and names_exceptions(path):
            assert ours[1] is pickle.UnpicklingError, ours
            return "refused (torch loads it)"
        assert ours[1] is zerocopy.UnsupportedError, f"torch loads this: {ours}"
        return "not yet"
    if trusted[0] == "value":
        assert issubclass(ours[1], (pickle.UnpicklingError, zerocopy.UnsupportedError)), ours
        return "refused"
    return "refused" if ours[1] is torchs[1] is pickle.UnpicklingError else "torch cannot load"


@pytest.mark.parametrize("weights_only", [True, False], ids=["safe", "trusting"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_loads_as_with_torch(
    kind: Kind,
    weights_only: bool,
    saved: Callable[[Kind], Any],
    table: Callable[[Kind, bool, str], None],
) -> None:
    if not kind.is_there():
        table(kind, weights_only, objects_table.ABSENT)
        return
    written = saved(kind)
    if written[0] == "error":
        table(kind, weights_only, "torch cannot save")
    else:
        table(kind, weights_only, measured(kind, written[1], weights_only))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.placed != REPACKED], ids=str)
def test_explain_says_where_the_data_come_to_lie(kind: Kind, saved: Callable[[Kind], Any]) -> None:
    """It reads what weights_only reads, and says what comes of it with and without."""
    written = saved(kind) if kind.is_there() else ("error",)
    if written[0] == "error":
        pytest.skip("there is no such file")
    path = written[1]
    with allowed(kind):
        loaded = outcome(lambda: zerocopy.load(path))
    explained = outcome(lambda: zerocopy.explain(path))
    if explained[0] == "error":
        assert loaded[0] == "error", "what loads can be explained"
        return
    if loaded[0] == "error":
        loaded = outcome(lambda: zerocopy.load(path, weights_only=False))
    if loaded[0] == "value" and explained[1].container in ("zip", "legacy"):
        storages = [storage for storage in explained[1].storages if storage.nbytes]
        assert sorted((s.nbytes, s.how == "mapped") for s in storages) == placements(loaded[1], path)
        assert all(bool(s.why) == (s.how != "mapped") for s in storages)


@pytest.mark.parametrize(
    ("cls", "name"),
    [(subclasses.Tagged, name) for name in ("data", "grad", "_backward_hooks", "__class__", "__dict__")]
    + [(torch.Tensor, name) for name in ("add_", "_values", "shape")],
)
def test_state_that_means_something_to_torch_is_refused(cls: type, name: str, tmp_path: Path) -> None:
    """Also in a class that the user allows, whose attributes may hide no more than methods and defaults."""
    value = releases.from_type("_rebuild_from_type_v2", cls=cls, state={name: releases.plain()})
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(releases.written(value))
    with zerocopy.safe_globals([subclasses.Tagged]), pytest.raises(pickle.UnpicklingError):
        zerocopy.load(path)


def test_the_table_has_a_row_for_each_object_and_no_other() -> None:
    names = [kind.name for kind in KINDS]
    assert len(set(names)) == len(names) and all(map(objects_table.is_well_formed, names))
    if not UPDATE:
        assert objects_table.order() == names
