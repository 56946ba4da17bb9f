"""``zerocopy report``: the page as a parser of HTML sees it, and as Chromium shows it."""

from __future__ import annotations

import fcntl
import json
import math
import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Capture
from conftest import Saver

import zerocopy
from zerocopy import cli

HOSTILE = "</script><script>alert(1)"
STATE = {
    "model": {
        "layers": [{"weight": torch.arange(6.0).view(2, 3)}, {"weight": torch.ones(40, 5).half()}],
        HOSTILE: torch.ones(300),
        "é𝄞.a": torch.ones(2),
        "é𝄞.b": torch.ones(2),
        "<b>&\"'": torch.tensor([1.0, math.nan, math.inf]),
    },
    "step\n": "<i>7</i>",
}
VOID = {"meta", "input"}


class Page(HTMLParser):
    """Collects the elements of a page, and requires that each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def table(self) -> dict[str, dict[str, Any]]:
        """Return the table's rows by name."""
        found = json.loads(self.texts["script"][0])
        heads = [column["name"] for column in found["columns"]]
        rows, last = {}, ""
        for common, rest, dtype, shape, *cells in found["rows"]:
            last = last[:common] + rest
            cells = [last, found["dtypes"][dtype], found["shapes"][shape], *cells]
            rows[last] = dict(zip(heads, cells, strict=True))
        return rows


def written(tmp_path: Path, *arguments: object) -> str:
    assert cli.main(["report", *map(str, arguments), "-o", str(tmp_path / "page.html")]) == 0
    return (tmp_path / "page.html").read_text()


def test_report_has_every_tensor(save: Saver, tmp_path: Path) -> None:
    rows = Page(written(tmp_path, save(STATE))).table()
    assert list(rows) == ["model.layers.0.weight", "model.layers.1.weight", f"model.{HOSTILE}",
                          "model.é𝄞.a", "model.é𝄞.b", "model.<b>&\"'"]  # fmt: skip
    row = rows["model.layers.1.weight"]
    assert (row["dtype"], row["shape"], row["bytes"]) == ("float16", "40 x 5", 400)


def test_report_escapes_names_and_values(save: Saver, tmp_path: Path) -> None:
    text = written(tmp_path, save(STATE))
    page = Page(text)
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert not {"b", "i", "img"} & {tag for tag, _ in page.elements}
    paths = [attributes.get("data-path") for tag, attributes in page.elements if tag == "g"]
    assert f"model.{HOSTILE}" in paths
    assert "step\\n: '<i>7</i>'" in "".join(page.texts["pre"])


def test_report_asks_no_network(save: Saver, tmp_path: Path) -> None:
    page = Page(written(tmp_path, save(STATE)))
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "a", "object")
        assert not {"src", "href", "xlink:href", "action"} & attributes.keys()
    policies = [attributes["content"] for _, attributes in page.elements if "http-equiv" in attributes]
    assert policies and all(policy.startswith("default-src 'none'") for policy in policies)


def test_report_with_statistics_has_those_of_torch(save: Saver, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(1200, 1000) + 1000
    special = torch.tensor([1.0, math.nan, math.inf, 3.0])
    state = {
        "x": x,
        "special": special,
        "none": torch.empty(0),
        "i": torch.arange(4),
        "c": torch.tensor([complex(math.nan, 1), 3 + 4j]),
        "sparse": torch.tensor([0.0, 2.0]).to_sparse(),
        "large": torch.tensor([2**31 - 1, 2**62 + 1]),
    }
    rows = Page(written(tmp_path, "--statistics", save(state))).table()
    wide = x.double()
    wanted = [wide.min(), wide.max(), wide.mean(), wide.std(unbiased=False)]
    found = [rows["x"][name] for name in ("min", "max", "mean", "std")]
    assert found == pytest.approx([float(each) for each in wanted], rel=1e-8)
    assert [rows["special"][name] for name in ("min", "max", "mean", "std", "NaN", "Inf")] == [
        1,
        3,
        2,
        1,
        1,
        1,
    ]
    assert rows["none"]["min"] is None and rows["i"]["mean"] == 1.5 and rows["sparse"]["mean"] == 2
    assert (rows["c"]["max"], rows["c"]["NaN"]) == (5, 1)
    # JavaScript would round the larger integer, so the page has a string.
    assert (rows["large"]["min"], rows["large"]["max"]) == (2**31 - 1, str(2**62 + 1))


def test_report_with_statistics_skips_a_tensor_that_repeats_its_elements(save: Saver, tmp_path: Path) -> None:
    path = save({"w": torch.ones(1).expand(1 << 40), "x": torch.ones(2)})
    rows = Page(written(tmp_path, "--statistics", path)).table()
    assert (rows["w"]["mean"], rows["x"]["mean"]) == (None, 1)


def test_report_with_compare_names_the_differences(save: Saver, tmp_path: Path) -> None:
    a = save({"same": torch.ones(2), "other": torch.ones(2), "new": torch.ones(1)}, "a.pt")
    b = save({"same": torch.ones(2), "other": torch.zeros(2), "old": torch.ones(1)}, "b.pt")
    page = Page(written(tmp_path, "--compare", b, a))
    rows = page.table()
    assert rows["same"]["difference"] is None
    assert rows["new"]["difference"] == "only here"
    assert rows["other"]["difference"].startswith("values: 2 of 2 values differ")
    assert "+ old" in "".join(page.texts["pre"])


@pytest.mark.slow("a file of 18,864 tensors")
def test_report_of_many_tensors_is_small(save: Saver, tmp_path: Path) -> None:
    names = [f"model.layers.{i}.mlp.experts.{j}.{k}_proj.weight" for i in range(48) for j in range(131)
             for k in ("up", "down", "gate")]  # fmt: skip
    tensor = torch.ones(64)
    path = tmp_path / "many.pt"
    torch.save({name: tensor.clone() for name in names}, path)
    assert len(written(tmp_path, path)) < 2_000_000 and len(names) > 18_800


def test_report_replaces_pages_only(save: Saver, tmp_path: Path, capsys: Capture) -> None:
    path = save(STATE)
    shards = tmp_path / "shards"
    zerocopy.convert(save({"a": torch.ones(3), "b": torch.ones(3)}, "plain.pt"), shards, max_shard_size="12B")
    (tmp_path / "text").write_text("<p>mine")
    for source, target in (
        (path, path),
        (shards, next(shards.glob("*.safetensors"))),
        (path, tmp_path / "text"),
    ):
        before = target.read_bytes()
        with pytest.raises(SystemExit) as caught:
            cli.main(["report", str(source), "-o", str(target)])
        assert caught.value.code == 2 and target.read_bytes() == before
        assert "would replace a file that is not an HTML page" in capsys.readouterr().err
    assert written(tmp_path, path) == written(tmp_path, path)


def test_report_into_a_folder_that_does_not_exist_names_it(
    save: Saver, tmp_path: Path, capsys: Capture
) -> None:
    absent = tmp_path / "absent" / "x.html"
    assert cli.main(["report", str(save(STATE)), "-o", str(absent)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"zerocopy report: {absent}: ") and error.count("\n") == 1


def test_report_into_a_pipe_leaves_the_pipe_in_place(save: Saver, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)
    try:
        assert cli.main(["report", str(save({"weight": torch.ones(3)})), "-o", str(pipe)]) == 0
        assert b"weight" in os.read(reader, 1 << 20)
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_report_through_a_link_keeps_the_link(save: Saver, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<!DOCTYPE html>before")
    link = tmp_path / "link.html"
    link.symlink_to("page.html")
    assert cli.main(["report", str(save({"weight": torch.ones(3)})), "-o", str(link)]) == 0
    assert link.is_symlink() and "weight" in (tmp_path / "page.html").read_text()


def test_report_of_tied_tensors_names_the_first_and_counts_bytes_once(save: Saver, tmp_path: Path) -> None:
    weight = torch.ones(1000)
    text = written(tmp_path, save({"a": weight, "b": weight, "none": torch.empty(0)}))
    assert "3 tensors, 4.0 kB of tensors" in text
    assert {name: row["same as"] for name, row in Page(text).table().items()} == {
        "a": None,
        "b": "a",
        "none": None,
    }
    assert Page(written(tmp_path, save({}))).table() == {}
