"""``zerocopy.overlay``: several checkpoints as one."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from conftest import Saver, maps_of

import zerocopy
from zerocopy.display import shown

WEIGHT = torch.arange(6.0).view(2, 3)
BASE = {
    "body": {"weight": WEIGHT, "tied": WEIGHT, "row": WEIGHT[1]},
    "head": torch.zeros(2),
    "step": 1,
    "lr": 0.5,
}
TUNED = {"head": torch.ones(2), "body": {"tied": torch.ones(3)}, "new": torch.full((2,), 7.0), "step": 2}
LAST = {"head": torch.full((2,), 3.0)}
NAMES = ["body.weight", "body.tied", "body.row", "head", "new"]


@pytest.fixture
def paths(save: Saver) -> tuple[Path, Path, Path]:
    return save(BASE, "base.pt"), save(TUNED, "tuned.pt"), save(LAST, "last.pt")


def test_later_ones_win(paths: tuple[Path, Path, Path]) -> None:
    with zerocopy.overlay(*paths) as merged:
        assert isinstance(merged, zerocopy.Checkpoint) and isinstance(merged, Mapping)
        assert list(merged) == list(merged.keys()) == NAMES and len(merged) == 5
        assert "new" in merged and "step" not in merged and "nothing" not in merged
        assert torch.equal(merged.get_tensor("body.weight"), WEIGHT)
        assert merged["body.tied"].tolist() == [1, 1, 1]
        assert merged.get_tensor("head").tolist() == [3, 3] and merged.get_slice("new")[1] == 7
        assert [t.shape for t in merged.values()] == [merged.info(n).shape for n, _ in merged.items()]
        assert [info.name for info in merged.tensors()] == NAMES
        assert merged.metadata() == {"step": 2, "lr": 0.5}
        assert merged.get("nothing", 3) == 3
        assert all(str(path) in merged.path for path in paths)
        assert shown(merged.path) in repr(merged) and shown(merged.path) in merged.tree()
        assert "5 tensors" in repr(merged) and "body" in merged.tree() and "body.row" in merged._repr_html_()
        assert merged._ipython_key_completions_() == NAMES
        with pytest.raises(KeyError, match=r"base\.pt.*tuned\.pt.*head"):
            merged["heat"]


def test_ties_are_within_one_file(paths: tuple[Path, Path, Path]) -> None:
    with zerocopy.overlay(*paths) as merged:
        assert merged.info("body.weight").tied == ("body.row",) and merged.info("body.tied").tied == ()
        weight, row = merged.get_tensor("body.weight"), merged.get_tensor("body.row")
        weight[1] = 9
        assert row.tolist() == [9, 9, 9] and merged.get_tensor("body.tied").tolist() == [1, 1, 1]


def test_overlay_does_not_close_open_checkpoints(paths: tuple[Path, Path, Path]) -> None:
    base = zerocopy.open(paths[0])
    merged = zerocopy.overlay(base, paths[1])
    kept = merged["body.weight"]
    assert kept is base["body.weight"]
    head = merged["head"]
    merged.close()
    assert merged.closed and not base.closed
    assert torch.equal(kept + 0, WEIGHT) and base.get_tensor("head").tolist() == [0, 0]
    for access in (
        lambda: list(merged),
        lambda: merged["body.weight"],
        lambda: "head" in merged,
        lambda: head + 1,
    ):
        with pytest.raises(zerocopy.ClosedError, match=r"tuned\.pt"):
            access()
    base.close()


def test_a_closed_part_is_said(paths: tuple[Path, Path, Path]) -> None:
    base = zerocopy.open(paths[0])
    merged = zerocopy.overlay(base, paths[1])
    base.close()
    assert merged.closed and "closed" in repr(merged)
    for access in (
        lambda: list(merged),
        lambda: merged["body.weight"],
        lambda: "lr" in merged,
        merged.metadata,
    ):
        with pytest.raises(zerocopy.ClosedError, match=r"base\.pt"):
            access()
    with pytest.raises(zerocopy.ClosedError, match=r"base\.pt"):
        zerocopy.overlay(paths[1], base)
    merged.close()


def test_filters_and_conversions_are_kept(paths: tuple[Path, Path, Path]) -> None:
    half = zerocopy.open(paths[0], prefix="body.", dtype=torch.bfloat16)
    merged = zerocopy.overlay(half, zerocopy.open(paths[1], keys=["new"]))
    assert list(merged) == ["body.weight", "body.tied", "body.row", "new"]
    assert merged.get_tensor("body.row").dtype == torch.bfloat16 and merged["new"].dtype == torch.float32
    assert merged.metadata() == {}


def test_mappings_of_tensors(paths: tuple[Path, Path, Path]) -> None:
    base = zerocopy.open(paths[0])
    head = torch.nn.Parameter(torch.full((4, 2), 5.0))
    merged = zerocopy.overlay(base, {"head": head, "lazy": base["body.row"]})
    assert list(merged) == [*base, "lazy"] and merged["head"] is merged.get_tensor("head") is head
    assert torch.equal(merged.get_slice("head")[1:, 1], head.detach()[1:, 1])
    assert type(merged.get_tensor("lazy")) is torch.Tensor and merged.get_slice("lazy").shape == (3,)
    info = merged.info("head")
    assert (info.shape, info.dtype, info.nbytes, info.offset) == ((4, 2), torch.float32, 32, None)
    assert info.requires_grad and "head" in merged.tree() and merged.metadata() == base.metadata()
    merged.close()
    assert torch.equal(head, torch.full((4, 2), 5.0))
    for wrong in ({"head": 3}, {3: head}, {"body": {"weight": head}}):
        with pytest.raises(TypeError, match="Tensor"):
            zerocopy.overlay(base, wrong)


def test_wrong_arguments() -> None:
    for arguments in ((), (3,), (None,), ([],)):
        with pytest.raises(TypeError):
            zerocopy.overlay(*arguments)


def test_failed_overlay_closes_the_files_it_opened(paths: tuple[Path, Path, Path]) -> None:
    base, missing = zerocopy.open(paths[0]), paths[0].with_name("missing.pt")
    for wrong in (missing, b"hello", 3):
        with pytest.raises((FileNotFoundError, zerocopy.FormatError, TypeError)):
            zerocopy.overlay(base, paths[1], wrong)
    gc.collect()
    assert not base.closed and maps_of(paths[1]) == []


def test_what_is_said_of_tensors_in_memory() -> None:
    whole = torch.arange(12.0).view(3, 4)
    sparse = torch.eye(3).to_sparse()
    merged = zerocopy.overlay(
        {"x": whole, "y": whole[1:], "z": whole.t(), "other": torch.ones(2), "s": sparse}
    )
    said = {info.name: (info.stride, info.tied) for info in merged.tensors()}
    assert said == {
        "x": ((4, 1), ("y", "z")),
        "y": ((4, 1), ("x", "z")),
        "z": ((1, 4), ("x", "y")),
        "other": ((1,), ()),
        "s": ((), ()),
    }
    assert merged.info("y") == merged.tensors()[1]
    assert torch.equal(merged.read({"s": ...})["s"].to_dense(), torch.eye(3))
