"""The notebooks run, and the committed pages show their cells as they are."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from conftest import Child

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.py") if path.stem != "run")
RUN = """
import os, pathlib, sys
notebooks, name, folder = sys.argv[1:]
os.chdir(folder)
os.umask(0o077)
os.environ.update(SMALL="1", ZEROCOPY_CACHE=f"{folder}/c")
sys.path.insert(0, notebooks)
import run
print(run.page(pathlib.Path(notebooks, f"{name}.py")))
"""
SLOW = pytest.mark.slow("computes")
# The lines that a notebook prints about its own results. The rest of its output has times and sizes.
CLAIMS = {
    "gds": ["'0': 0, '1': 0", "the same values: True", "also by torch.load: True", "require"],
    "hdf5": ["{0}", "all mapped", "the same values: True", "<table>"],
    "kept_results": ["another process", "\n3.0\n", "\n13.0\n"],
    "layer_by_layer": ["more at most", "norm of the result"],
    "lazy": ["loaded: False", "the same output: True", "the file has not changed: True", "<table>"],
}


def code_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)\n```$", page, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.plain_memory("it limits the address space")
@pytest.mark.parametrize(
    "name", [name if name == "lazy" else pytest.param(name, marks=SLOW) for name in NAMES]
)
def test_cells_run_and_show_what_the_page_says(forked: Child, tmp_path: Path, name: str) -> None:
    if name == "hdf5" and importlib.util.find_spec("h5py") is None:
        pytest.skip("h5py is not installed")
    if name == "gds" and not hasattr(torch.Tensor, "untyped_storage"):
        pytest.skip("Tensor.untyped_storage came with PyTorch 2.0")
    tmp_path.chmod(0o700)
    done = forked(RUN, NOTEBOOKS, name, tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    committed = (NOTEBOOKS / f"{name}.md").read_text()
    for page in (done.stdout, committed):
        assert [claim for claim in CLAIMS[name] if claim.replace("<table>", "<table") not in page] == []
    assert code_of(done.stdout) == code_of(committed), "run docs/notebooks/run.py, which renews the page"


def test_each_notebook_has_a_page_on_the_front_page() -> None:
    front = (NOTEBOOKS.parent / "index.md").read_text()
    assert sorted(CLAIMS) == NAMES
    assert [name for name in NAMES if f"(notebooks/{name}.md)" not in front] == []
