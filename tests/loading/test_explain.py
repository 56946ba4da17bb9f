"""``zerocopy.explain``: which storages are mapped, which are not, and why."""

from __future__ import annotations

import argparse
import io
import zipfile
from pathlib import Path

import legacy_files as legacy
import pytest
import torch
from archives import big_endian, rezip
from conftest import Saver, saved_bytes
from html_cells import Cells

import zerocopy

STATE = {"weight": torch.arange(64.0), "half": torch.ones(3, dtype=torch.float16), "tied": None}
STATE["tied"] = STATE["weight"]


def test_mapped(save: Saver) -> None:
    path = save(STATE)
    explanation = zerocopy.explain(path)
    assert explanation.container == "zip" and explanation.name == str(path) and not explanation.note
    assert [(s.key, s.dtype, s.nbytes, s.location, s.how, s.why) for s in explanation.storages] == [
        ("0", "float32", 256, "cpu", "mapped", ""),
        ("1", "float16", 6, "cpu", "mapped", ""),
    ]
    assert explanation.nbytes("mapped") == 262 and explanation.nbytes("copied") == 0
    for storage in explanation.storages:
        data = path.read_bytes()[storage.offset :][: storage.nbytes]
        assert data == STATE["weight" if storage.key == "0" else "half"].numpy().tobytes()


@pytest.mark.parametrize(
    ("content", "how", "why"),
    [
        (lambda: rezip(saved_bytes(STATE), zipfile.ZIP_DEFLATED), "inflated", "deflated"),
        (lambda: big_endian([torch.ones(3)]), "copied", "big-endian"),
        (lambda: b"1" + saved_bytes(STATE), "copied", "not aligned"),
    ],
)
def test_not_mapped(content, how: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(content())
    with path.open("rb") as file:
        file.seek(int(path.read_bytes()[:1] == b"1"))
        explanation = zerocopy.explain(file)
        assert file.tell() == int(path.read_bytes()[:1] == b"1")
    assert {storage.how for storage in explanation.storages} == {how}
    assert all(why in storage.why for storage in explanation.storages)
    assert how in str(explanation) and why in str(explanation)


def test_backend_and_buffers(save: Saver) -> None:
    path = save(STATE)
    assert {s.how for s in zerocopy.explain(path, backend="pread").storages} == {"copied"}
    assert {s.how for s in zerocopy.explain(path.read_bytes()).storages} == {"copied"}
    assert {s.how for s in zerocopy.explain(path.read_bytes(), mode="r").storages} <= {"mapped", "copied"}
    assert {s.how for s in zerocopy.explain(io.BytesIO(path.read_bytes())).storages} == {"copied"}


def test_torchscript_and_tar(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 3)), str(path))
    explanation = zerocopy.explain(path)
    assert explanation.container == "torchscript" and "zerocopy.jit.load" in str(explanation)


def test_many_storages_make_a_short_report(save: Saver) -> None:
    content = rezip(saved_bytes([torch.ones(1) for _ in range(500)]), zipfile.ZIP_DEFLATED)
    report = str(zerocopy.explain(content))
    assert "500 storages" in report and len(report) < 600


def test_str_of_a_mapped_file_is_one_line(save: Saver) -> None:
    path = save(STATE)
    assert str(zerocopy.explain(path)) == f"{path}: zip, 2 storages, 262 B: all mapped"


def test_str_names_the_tensors_that_are_not_mapped_and_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(rezip(saved_bytes({"model": STATE, "step": torch.ones(2)}), zipfile.ZIP_DEFLATED))
    report = str(zerocopy.explain(path)).splitlines()
    assert report == [
        f"{path}: zip, 3 storages, 270 B: all inflated",
        "  inflated: model.weight (shared with model.tied), model.half, step: the record is deflated",
        "  zerocopy.save writes it mappable",
    ]
    zerocopy.save(zerocopy.load(path), path)
    assert str(zerocopy.explain(path)).endswith("all mapped")


def test_str_of_a_file_that_is_read_by_choice_names_the_mapping_backend(save: Saver) -> None:
    assert 'backend="mmap"' in str(zerocopy.explain(save(STATE), backend="pread"))


def test_details_have_a_line_for_each_storage(save: Saver) -> None:
    explanation = zerocopy.explain(save([torch.ones(n + 1) for n in range(20)]))
    lines = explanation.details().splitlines()[1:]
    assert len(lines) == 20
    for number, (line, storage) in enumerate(zip(lines, explanation.storages, strict=True)):
        assert line.split() == [
            "mapped",
            str(storage.nbytes),
            "B",
            "float32",
            "at",
            str(storage.offset),
            f"{number}",
        ]


def test_storage_of_a_tensor_inside_an_object_has_its_dotted_name(save: Saver) -> None:
    explanation = zerocopy.explain(save({"config": argparse.Namespace(x=torch.ones(2)), "w": torch.ones(3)}))
    assert [storage.names for storage in explanation.storages] == [("config.x",), ("w",)]
    assert "config.x" in explanation.details()


def test_errors(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with pytest.raises(FileNotFoundError):
        zerocopy.explain(path)
    for content in (b"", b"hello", saved_bytes(STATE)[:-50]):
        path.write_bytes(content)
        with pytest.raises(zerocopy.FormatError) as error:
            zerocopy.explain(path)
        assert type(error.value) is zerocopy.FormatError and "x.pt" in str(error.value)


@pytest.mark.parametrize("key", ["\x1b[31m", "a\nb", "\u202e", ""], ids=ascii)
def test_strange_keys_are_escaped(key: str) -> None:
    """A key is any text."""
    content = legacy.checkpoint({"weight": legacy.tensor(legacy.storage(key))}, keys=(key,))
    shown = str(zerocopy.explain(content))
    assert shown.replace("\n", "").isprintable()
    assert "a\nb" not in shown


def test_notebook_shows_a_row_for_each_storage(save: Saver) -> None:
    page = Cells(zerocopy.explain(save(STATE))._repr_html_())
    row = page.cells[page.cells.index("weight (shared with tied)") :][:4]
    assert row == ["weight (shared with tied)", "mapped", "256 B", "float32"]
    assert page.tags.count("tr") == 3


def test_notebook_table_escapes_names_and_is_bounded(save: Saver) -> None:
    hostile = {f"<script>{i}" + "x" * 1000: torch.ones(1) for i in range(300)}
    text = zerocopy.explain(save(hostile))._repr_html_()
    page = Cells(text)
    assert set(page.tags) <= {"table", "caption", "tr", "th", "td", "p"}
    assert any(cell.startswith("<script>0xx") for cell in page.cells)
    assert "and 100 storages more" in page.cells
    assert len(text) < 100_000


def test_notebook_table_says_what_helps() -> None:
    text = zerocopy.explain(rezip(saved_bytes(STATE), zipfile.ZIP_DEFLATED))._repr_html_()
    assert "inflated" in Cells(text).cells and "zerocopy.save writes it mappable" in text
