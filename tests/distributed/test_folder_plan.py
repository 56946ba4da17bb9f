"""The plan in ``.metadata`` of a DCP folder: ranges, paths and chunks. Every entry point has one answer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dcp_folders import MetadataIndex, StorageInfo, Writer
from equality import assert_same

import zerocopy
from zerocopy.__main__ import main

ENTRIES: dict[str, Callable[[Path], Any]] = {
    "load": zerocopy.load,
    "lazy_load": zerocopy.lazy_load,
    "open": lambda folder: list(zerocopy.open(folder)),
    "metadata": lambda folder: zerocopy.open(folder).metadata(),
    "explain": zerocopy.explain,
    "convert": lambda folder: zerocopy.convert(folder, folder.parent / "out.pt"),
}


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    (tmp_path / "dcp").mkdir()
    writer = Writer(tmp_path / "dcp")
    writer.add("weight", torch.arange(6.0))
    writer.add("step", 7)
    return writer


def refusal(writer: Writer, kind: type[Exception] = zerocopy.FormatError) -> str:
    """Return the one message with which every entry point refuses a folder."""
    messages, folder = {}, writer.write()
    for entry, call in ENTRIES.items():
        with pytest.raises(kind) as caught:
            call(folder)
        messages[entry] = str(caught.value)
    assert len(set(messages.values())) == 1, messages
    assert messages["load"].startswith(f"{writer.folder}/.metadata: ")
    return messages["load"]


def place(writer: Writer, name: str) -> Any:
    return next(info for index, info in writer.places.items() if index.fqn == name)


def step_inside_weight(writer: Writer) -> None:
    writer.change("step", lambda info: setattr(info, "offset", 1))


def same_range(writer: Writer) -> None:
    said = place(writer, "weight").__dict__
    writer.change("step", lambda info: info.__dict__.update(said))


def same_range_by_another_spelling(writer: Writer) -> None:
    same_range(writer)
    writer.change("step", lambda info: setattr(info, "relative_path", ".//__0_0.distcp"))


def same_range_through_a_link(writer: Writer) -> None:
    same_range(writer)
    (writer.folder / "again").symlink_to(".")
    writer.change("step", lambda info: setattr(info, "relative_path", "again/again/__0_0.distcp"))


OVERLAPS = [step_inside_weight, same_range, same_range_by_another_spelling, same_range_through_a_link]


@pytest.mark.parametrize("change", OVERLAPS)
def test_archives_that_overlap_are_refused_with_both_names(
    writer: Writer, change: Callable[[Writer], None], capsys: pytest.CaptureFixture[str]
) -> None:
    change(writer)
    message = refusal(writer)
    assert "overlaps" in message and "__0_0.distcp: archives must not overlap" in message
    assert "weight" in message and "step" in message
    for command in ("scan", "verify"):
        assert main([command, str(writer.folder)]) == 1
        assert message.partition(".metadata: ")[2] in capsys.readouterr().out


def test_chunks_of_one_tensor_in_one_archive_are_refused(writer: Writer) -> None:
    chunk = torch.ones(2, 2)
    writer.add_chunks("twice", (4, 2), torch.float32, [((0, 0), chunk), ((2, 0), chunk)], files=["x"])
    said = place(writer, "twice").__dict__
    writer.change("twice", lambda info: info.__dict__.update(said))
    assert "twice overlaps twice at 0x0 of x" in refusal(writer)


def test_ranges_without_bytes_do_not_overlap(writer: Writer) -> None:
    for offset in (0, 1, 1 << 40):
        for name in ("nothing", "nothing_again"):
            writer.add(name, torch.ones(1))
            writer.change(name, lambda info, at=offset: info.__dict__.update(offset=at, length=0))
        with zerocopy.open(writer.write()) as checkpoint:
            assert_same(checkpoint.get_tensor("weight"), torch.arange(6.0))


def test_ranges_in_any_order_that_touch_are_read(writer: Writer) -> None:
    for i in range(50):
        writer.add(f"t{i}", torch.full((3,), float(i)), file=f"{i % 3}")
    writer.entries = dict(reversed(writer.entries.items()))
    loaded = zerocopy.load(writer.write())
    assert [loaded[f"t{i}"][0].item() for i in range(50)] == list(range(50))


def test_pipe_whose_ranges_overlap_is_refused_at_once(writer: Writer) -> None:
    same_range(writer)
    writer.files.clear()
    os.mkfifo(writer.folder / "__0_0.distcp")
    assert "archives must not overlap" in refusal(writer)


def test_path_that_is_too_deep_is_refused(writer: Writer) -> None:
    writer.paths["step"] = ("a",) * 100_000
    assert "a path of at most 1000 keys for 'step', found 100000" in refusal(writer)


def test_path_of_the_greatest_depth_is_loaded(writer: Writer) -> None:
    writer.paths["step"] = ("a",) * 1000
    value = zerocopy.load(writer.write())
    for _ in range(1000):
        value = value["a"]
    assert value == 7


def test_paths_that_make_many_more_dicts_than_they_spell_out_are_refused(writer: Writer) -> None:
    for i in range(600):
        writer.entries[str(i)] = writer.entries["step"]
        writer.places[MetadataIndex(fqn=str(i), index=None)] = StorageInfo(
            relative_path="x", offset=i, length=1
        )
        writer.paths[str(i)] = (str(i), *("a",) * 999)
    assert "far more dicts" in refusal(writer)


def test_one_far_item_of_a_whole_list_is_chosen(writer: Writer) -> None:
    for i in range(1500):
        writer.add(f"list.{i}", torch.tensor(i), ("list", i))
    chosen = zerocopy.lazy_load(writer.write(), keys=["list.1499"])
    assert len(chosen["list"]) == 1500 and chosen["list"][1499].item() == 1499


def test_chunks_load_if_each_element_is_in_one_of_them(writer: Writer) -> None:
    whole = torch.arange(25.0).view(5, 5)
    pinwheel = [((0, 0), (2, 3)), ((0, 3), (3, 2)), ((3, 2), (2, 3)), ((2, 0), (3, 2)), ((2, 2), (1, 1))]
    diagonal = [((i, i), (1, 1)) for i in range(1500)]
    shifted = [((0, 0), (2, 3)), ((0, 2), (3, 2)), ((3, 2), (2, 3)), ((2, 0), (3, 2)), ((2, 2), (1, 1))]

    def parts(
        boxes: list[tuple[tuple[int, int], tuple[int, int]]],
    ) -> list[tuple[tuple[int, int], torch.Tensor]]:
        return [(at, whole[at[0] :, at[1] :][: size[0], : size[1]].clone()) for at, size in boxes]

    writer.add_chunks("w", (5, 5), torch.float32, parts(pinwheel))
    assert torch.equal(zerocopy.load(writer.write())["w"], whole)
    writer.add_chunks("w", (5, 5), torch.float32, parts(shifted))
    assert "the chunks of w do not make up a tensor of (5, 5)" in refusal(writer)
    whole = torch.ones(1500, 1500)
    writer.add_chunks("w", (1500, 1500), torch.float32, parts(diagonal))
    assert "the chunks of w do not make up a tensor of (1500, 1500)" in refusal(writer)
