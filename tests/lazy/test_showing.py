"""The repr, outline and table of a checkpoint, with names from strangers."""

from __future__ import annotations

from pathlib import Path

import torch
from conftest import Saver
from html_cells import Cells

import zerocopy

STATE = {"model": {"weight": torch.ones(100, 10), "bias": torch.ones(10)}, "step": 7, "ema": [torch.ones(2)]}


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


def test_repr(tmp_path: Path) -> None:
    torch.save(STATE, path := tmp_path / "m.pt")
    assert repr(zerocopy.open(path)) == f"<Checkpoint {path}, 3 tensors>"
    assert repr(zerocopy.open(path.read_bytes())) == "<Checkpoint <bytes>, 3 tensors>"
    torch.save(STATE, path := tmp_path / "a\nb\x1b.pt")
    checkpoint = zerocopy.open(path)
    assert repr(checkpoint).isprintable() and checkpoint.path == str(path)
    assert len(checkpoint.tree().splitlines()) == 6


def test_table(save: Saver) -> None:
    checkpoint = zerocopy.open(save(STATE))
    page = Cells(checkpoint._repr_html_())
    row = page.cells[page.cells.index("model.weight") :][:4]
    assert row == ["model.weight", "float32", "100 x 10", "4.0 kB"]
    assert page.tags.count("tr") == 4
    assert checkpoint._ipython_key_completions_() == ["model.weight", "model.bias", "ema.0"]
    checkpoint.close()
    assert checkpoint._repr_html_() is None and checkpoint._ipython_key_completions_() == []
    text = zerocopy.open(save([torch.ones(100), torch.ones(25), torch.ones(0)]))._repr_html_()
    bars = [part.partition("%")[0] for part in text.split("height:0.8em;width:")[1:]]
    assert bars == ["100.0", "25.0", "0.0"]


def test_what_is_shown_is_bounded(save: Saver) -> None:
    long = {
        "x" * 10_000: torch.ones(1),
        ".".join("y" * 20_000): torch.ones(1),
        "z" * 300 + ".w": torch.ones((1,) * 60),
    }
    checkpoint = zerocopy.open(save(long))
    for line in checkpoint.tree().splitlines()[1:]:
        assert len(line) < 2100
    assert len(checkpoint._repr_html_()) < 3000
    many = zerocopy.open(save({f"a.{i}": torch.ones(1) for i in range(3000)}, "many.pt"))
    page = many._repr_html_()
    assert "and 2800 tensors more, 11.2 kB" in page and len(page) < 100_000
    assert len(repr(many)) < 300


# The names by which IPython asks an object how to show it, and one that it invents to find objects that have all names.
ASKED = ["_ipython_canary_method_should_not_exist_", "_ipython_display_", "_repr_mimebundle_", "_repr_svg_"]


def test_notebook_shows_a_placeholder_without_loading_it(save: Saver) -> None:
    for kind in (torch.ones(3, 4), torch.nn.Parameter(torch.ones(3, 4)), torch.eye(3).to_sparse()):
        path = save({"tensor": kind})
        tensor = zerocopy.lazy_load(path)["tensor"]
        path.unlink()  # so that to load it would be an error
        assert not any(hasattr(tensor, name) for name in ASKED)
        cells = Cells(tensor._repr_html_()).cells
        assert " x ".join(map(str, kind.shape)) in cells and "float32" in cells and str(path) in cells
        assert not tensor.is_loaded


def test_notebook_shows_the_values_of_a_loaded_placeholder(save: Saver) -> None:
    tensor = zerocopy.lazy_load(save({"tensor": torch.ones(3)}))["tensor"]
    tensor.add_(1)
    assert tensor._repr_html_() is None
    assert "2." in repr(tensor)


def test_placeholder_of_a_file_with_a_hostile_name_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / ("<script>alert(1)" + "x" * 100)
    torch.save(STATE, path)
    page = zerocopy.lazy_load(path)["model"]["weight"]._repr_html_()
    assert "script" not in Cells(page).tags and any("<script>" in cell for cell in Cells(page).cells)
    assert len(page) < 1000


def test_without_tensors(save: Saver) -> None:
    for content in ({}, 3):
        checkpoint = zerocopy.open(save(content))
        assert checkpoint.tree() == f"{checkpoint.path}: zip, 0 tensors, 0 B"
        assert "0 tensors" in checkpoint._repr_html_() and "0 tensors" in repr(checkpoint)
    assert "''" in zerocopy.open(save(torch.ones(2))).tree()
    assert "scalar" in zerocopy.open(save(torch.tensor(1.0))).tree()
