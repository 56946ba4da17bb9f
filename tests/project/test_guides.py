"""The examples of the guides run as they stand."""

from __future__ import annotations

import operator
import re
from pathlib import Path

import pytest
import torch
from conftest import Child

import zerocopy
from zerocopy._torch import private_names

ARCHIVES = "torch.export.pt2_archive.constants.WEIGHTS_CONFIG_FILENAME_FORMAT"
DOCS = Path(__file__).parents[2] / "docs"
RUN = """
import os, sys
import torch, zerocopy
page, folder = sys.argv[1:]
os.chdir(folder)
names = {"torch": torch, "zerocopy": zerocopy, "model": torch.nn.Linear(16, 4), "__name__": "guide"}
for number, block in enumerate(open(page).read().split("```python\\n")[1:], start=1):
    exec(compile(block.partition("```")[0], f"{page}, example {number}", "exec"), names)
"""
GUIDES = [
    "converting",
    "export",
    "hazards",
    "how-it-works",
    "index",
    "merging",
    "network-disks",
    "not-faster",
    "patch",
    "saving",
    "settings",
    "weights-only",
    "workers",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the files that the guides name."""
    torch.save(torch.nn.Linear(16, 4).state_dict(), tmp_path / "model.pt")
    torch.save({"model": {"up": torch.ones(2)}, "step": 1}, tmp_path / "checkpoint.pt")
    torch.save({"b": torch.ones(2)}, tmp_path / "b.pt")
    zerocopy.convert(tmp_path / "model.pt", tmp_path / "a.safetensors")
    return tmp_path


@pytest.mark.parametrize("name", GUIDES)
def test_examples_of_a_guide_run(forked: Child, folder: Path, name: str) -> None:
    if name == "export" and private_names.private_or_none(ARCHIVES) is None:
        pytest.skip("this release has no such archives")
    if name == "patch":  # patches safetensors too
        pytest.importorskip("safetensors")
    done = forked(RUN, DOCS / f"{name}.md", folder)
    assert done.returncode == 0, done.stderr


def test_front_page_leads_to_each_guide() -> None:
    front = (DOCS / "index.md").read_text()
    assert [name for name in GUIDES if name != "index" and f"({name}.md" not in front] == []


def test_names_on_the_reference_page_exist() -> None:
    rows = re.findall(r"^\| [a-z].*? \| (`.*) \|$", (DOCS / "api.md").read_text(), flags=re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert len(names) > 40
    assert not [name for name in names if not operator.attrgetter(name)(zerocopy).__doc__]
