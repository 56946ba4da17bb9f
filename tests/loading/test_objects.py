"""Everything that torch.save writes loads equal to torch's, and without a copy where that can be."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import saved_kinds
import torch
from conftest import outcome
from kinds import CATALOG, REPACKED, Group, Kind, releases, subclasses
from measured_kinds import measured, placements
from saved_kinds import KINDS, SAMPLE, allowed

import zerocopy

saved = saved_kinds.saved  # a fixture

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's about half of its own objects


def files(kinds: Any, saved: Callable[[Kind], Any]) -> list[tuple[Kind, Path]]:
    """Return those kinds that the release can save, with their files."""
    written = [(kind, saved(kind)) for kind in kinds if kind.is_there()]
    return [(kind, made[1]) for kind, made in written if made[0] == "value"]


@pytest.mark.parametrize("group", CATALOG, ids=lambda group: group.title)
def test_every_kind_loads_as_with_torch(group: Group, saved: Callable[[Kind], Any]) -> None:
    offenders = []
    for kind, path in files(group.kinds, saved):
        for weights_only in (True, False):
            found = outcome(lambda k=kind, p=path, w=weights_only: measured(k, p, w))
            is_copied = found[0] == "value" and found[1].startswith(("copied", "partly"))
            if found[0] == "error" or (is_copied and kind.write is torch.save):
                offenders.append((kind.name, weights_only, *found))
    assert not offenders, offenders


@pytest.mark.parametrize("group", CATALOG, ids=lambda group: group.title)
def test_explain_says_where_the_data_of_every_kind_come_to_lie(
    group: Group, saved: Callable[[Kind], Any]
) -> None:
    """It reads what weights_only reads, and says what comes of it with and without."""
    offenders = []
    for kind, path in files(group.kinds, saved):
        if kind.placed != REPACKED:
            found = outcome(lambda k=kind, p=path: explained_right(k, p))
            offenders += [(kind.name, *found)] * (found[0] == "error")
    assert not offenders, offenders


def explained_right(kind: Kind, path: Path) -> None:
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
        for storage in storages:
            assert bool(storage.why) == (storage.how != "mapped")
            if explained[1].container == "zip":
                assert (storage.how == "mapped") == is_mappable(kind, storage, path), storage


def is_mappable(kind: Kind, storage: Any, path: Path) -> bool:
    """Return whether a storage lies in its archive as a tensor needs it: plain, aligned, in the processor's order."""
    width = min(torch.empty(0, dtype=getattr(torch, storage.dtype)).element_size(), 8)
    with zipfile.ZipFile(path) as archive:
        [record] = [info for info in archive.infolist() if info.filename.endswith(f"/data/{storage.key}")]
    is_swapped = kind.name.startswith("big-endian") and width > 1
    return record.compress_type == zipfile.ZIP_STORED and storage.offset % width == 0 and not is_swapped


def test_sample_has_a_kind_of_each_group_and_no_name_is_used_twice() -> None:
    names = [kind.name for kind in KINDS]
    assert len(set(names)) == len(names)
    assert len(SAMPLE) <= saved_kinds.SIZE
    assert all(set(group.kinds) & set(SAMPLE) for group in CATALOG)


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
