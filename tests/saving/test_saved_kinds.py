"""Every kind of the catalog of `kinds`, written by `save`, by a `Writer` and in the background."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from background_saves import StoppedWriters, scribble
from conftest import saved_bytes, stock_load
from equality import assert_same, expected_of_save
from kinds import Kind
from saved_kinds import KINDS, SAMPLE

import zerocopy
from zerocopy.saving import snapshot

FIRST = torch.ones(2 << 20, dtype=torch.uint8)
#: An object in it has a list that is in the dict too: a Writer copies lists, and does not look into objects.
TIED_TO_OBJECTS = "scheduler: OneCycleLR"


def written(obj: Any) -> bytes:
    file = io.BytesIO()
    zerocopy.save(obj, file)
    return file.getvalue()


def by_save(kind: Kind, made: Any, expected: Any, folder: Path) -> None:
    (kind.same or assert_same)(stock_load(io.BytesIO(written(made))), expected)


def by_writer(kind: Kind, made: Any, expected: Any, folder: Path) -> None:
    if kind.name == TIED_TO_OBJECTS:
        return
    with zerocopy.Writer(folder / "early.pt") as writer:
        writer.save(writer.store_early(made))
    (kind.same or assert_same)(stock_load(folder / "early.pt"), expected)


def in_background(kind: Kind, made: Any, expected: Any, folder: Path) -> None:
    """The file holds what the object held at the call, although its storages are written to after the call."""
    if written([made, FIRST]) != written([made, FIRST]):
        return  # no two saves of it are alike
    # The file begins with the large storage, so the others are written late.
    before = written([FIRST, made])
    with pytest.MonkeyPatch.context() as patch:
        stopped = StoppedWriters(patch)
        saving = zerocopy.save([FIRST, made], folder / "model.pt", wait=False)
        scribble(made)
        stopped.go_on()
        saving.wait()
    assert (folder / "model.pt").read_bytes() == before


Check = Callable[[Kind, Any, Any, Path], None]


def offenders(kinds: Iterable[Kind], check: Check, folder: Path) -> list[str]:
    found, count = [], 0
    for kind in kinds:
        if kind.write is not torch.save or not kind.is_there():
            continue
        made = kind.make()
        try:
            expected = expected_of_save(made, stock_load(io.BytesIO(saved_bytes(made))))
        except Exception:
            continue  # stock torch of this release cannot save or load it
        try:
            check(kind, made, expected, folder)
        except (AssertionError, ValueError, TypeError, RuntimeError, OSError, pickle.PicklingError) as error:
            found.append(f"{kind.name}: {type(error).__name__}: {error}")
        count += 1
    assert count > 20
    return found


WHOLE = pytest.mark.slow("all kinds; the sample shows each pair of features once")
PARAMETERS = [pytest.param(SAMPLE, id="sample"), pytest.param(KINDS, id="all", marks=WHOLE)]


@pytest.mark.parametrize("kinds", PARAMETERS)
@pytest.mark.parametrize("check", [by_save, by_writer])
def test_kind_that_is_saved_loads_as_if_torch_had_saved_it(
    tmp_path: Path, check: Check, kinds: list[Kind]
) -> None:
    assert offenders(kinds, check, tmp_path) == []


@pytest.mark.parametrize("kinds", PARAMETERS)
@pytest.mark.parametrize("way", ["process", "thread"])
def test_background_save_of_a_kind_ignores_later_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, kinds: list[Kind]
) -> None:
    monkeypatch.setattr(snapshot, "why_not_to_fork", lambda _: "" if way == "process" else "a thread")
    assert offenders(kinds, in_background, tmp_path) == []
