"""The repr, outline and table of a checkpoint, with names from strangers."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from conftest import Saver

import zerocopy

STATE = {"model": {"weight": torch.ones(100, 10), "bias": torch.ones(10)}, "step": 7, "ema": [torch.ones(2)]}
HOSTILE = {
    "\x1b[31m": torch.ones(1),
    "a\nb": torch.ones(2),
    "\u202e": torch.ones(3),
    "<b>&": torch.ones(4),
    "": torch.ones(5),
}


class Cells(HTMLParser):
    """Collects tags and the text of each cell."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


def test_outline(save: Saver) -> None:
    checkpoint = zerocopy.open(save(STATE))
    title, *lines = checkpoint.tree().splitlines()
    assert title == f"{checkpoint.path}: zip, 3 tensors, 4.0 kB"
    assert lines == [
        "  model     2 tensors            4.0 kB",
        "    weight  float32    100 x 10  4.0 kB",
        "    bias    float32    10          40 B",
        "  ema       1 tensor                8 B",
        "    0       float32    2            8 B",
    ]
    assert checkpoint.tree(0) == title
    assert checkpoint.tree(1).splitlines()[1:] == [
        "  model  2 tensors    4.0 kB",
        "  ema    1 tensor        8 B",
    ]


def test_repr(save: Saver) -> None:
    path = save(STATE)
    assert repr(zerocopy.open(path)) == f"<Checkpoint {path}, 3 tensors>"
    assert repr(zerocopy.open(path.read_bytes())) == "<Checkpoint <bytes>, 3 tensors>"


def test_table(save: Saver) -> None:
    page = Cells(zerocopy.open(save(STATE))._repr_html_())
    row = page.cells[page.cells.index("model.weight") :][:4]
    assert row == ["model.weight", "float32", "100 x 10", "4.0 kB"]
    assert page.tags.count("tr") == 4


def test_bars_are_in_proportion(save: Saver) -> None:
    text = zerocopy.open(save([torch.ones(100), torch.ones(25), torch.ones(0)]))._repr_html_()
    assert [part.partition("%")[0] for part in text.split("height:0.8em;width:")[1:]] == [
        "100.0",
        "25.0",
        "0.0",
    ]
    assert "width:0.0%" in zerocopy.open(save([torch.ones(0)]))._repr_html_()


def test_names_are_escaped(save: Saver) -> None:
    checkpoint = zerocopy.open(save(HOSTILE))
    assert len(checkpoint) == 5
    assert len(checkpoint.tree().splitlines()) == 6
    assert checkpoint.tree().replace("\n", "").isprintable()
    page = checkpoint._repr_html_()
    assert page.isprintable() and set(Cells(page).tags) <= {"table", "caption", "tr", "th", "td", "div"}
    assert "<b>&" in Cells(page).cells


def test_what_is_shown_is_bounded(save: Saver) -> None:
    long = {
        "x" * 10_000: torch.ones(1),
        ".".join("y" * 20_000): torch.ones(1),
        "z" * 300 + ".w": torch.ones((1,) * 60),
    }
    checkpoint = zerocopy.open(save(long))
    for line in checkpoint.tree().splitlines()[1:]:
        assert len(line) < 200
    assert len(checkpoint._repr_html_()) < 3000
    many = zerocopy.open(save({f"a.{i}": torch.ones(1) for i in range(3000)}, "many.pt"))
    page = many._repr_html_()
    assert "and 2800 tensors more, 11.2 kB" in page and len(page) < 100_000
    assert len(repr(many)) < 300


@pytest.mark.parametrize("content", [{}, 3])
def test_without_tensors(save: Saver, content: object) -> None:
    checkpoint = zerocopy.open(save(content))
    assert checkpoint.tree() == f"{checkpoint.path}: zip, 0 tensors, 0 B"
    assert "0 tensors" in checkpoint._repr_html_() and "0 tensors" in repr(checkpoint)


def test_bare_tensor(save: Saver) -> None:
    checkpoint = zerocopy.open(save(torch.ones(2)))
    assert "''" in checkpoint.tree() and "scalar" in zerocopy.open(save(torch.tensor(1.0))).tree()


def test_key_completions(save: Saver) -> None:
    assert zerocopy.open(save(STATE))._ipython_key_completions_() == ["model.weight", "model.bias", "ema.0"]


def test_file_names_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a\nb\x1b.pt"
    torch.save(STATE, path)
    checkpoint = zerocopy.open(path)
    assert repr(checkpoint).isprintable() and checkpoint.path == str(path)
    assert len(checkpoint.tree().splitlines()) == 6
