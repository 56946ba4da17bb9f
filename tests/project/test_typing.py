"""A type checker accepts the right calls of the public functions, and rejects the wrong ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow("mypy reads torch's annotations")

HEAD = """
import io, mmap, pathlib, tempfile
import numpy, torch, zerocopy
from typing import assert_type
path, module = pathlib.Path("model.pt"), torch.nn.Linear(2, 2)
def loader(path: str, *, depth: int = 0) -> dict[str, torch.Tensor]: return {}
"""
RIGHT = """
zerocopy.load("model.pt", mode="r", backend="pread", unknown="stub")
zerocopy.load(path, map_location="cpu", weights_only=False, encoding="latin1")
zerocopy.load(io.BytesIO(b""))
zerocopy.load(tempfile.NamedTemporaryFile())
zerocopy.load(path.open("rb"), mmap=True)
zerocopy.load(memoryview(b""))
zerocopy.load(mmap.mmap(-1, 1))
zerocopy.load(numpy.zeros(3))
zerocopy.untyped_storage(numpy.zeros(3), allow_readonly=True)
zerocopy.jit.load(path, mode="c")
assert_type(zerocopy.numpy.load(path, view="uint16")["weight"].nbytes, int)
zerocopy.save({}, io.BytesIO())
zerocopy.save({}, path, wait=False).wait()
zerocopy.convert(path, "model.safetensors", dtype=torch.bfloat16)
zerocopy.convert([path, "b.pt"], "merged.pt", unknown="stub")
zerocopy.load_model(module, path, mode="r").missing_keys
assert_type(zerocopy.open(path).get_tensor("weight"), torch.Tensor)
zerocopy.overlay(zerocopy.open(path), "tuned.pt", {"head": torch.ones(1)})
print(zerocopy.explain(path, backend="mmap").storages[0].nbytes)
assert_type(zerocopy.share.load(loader, "model.pt", depth=2), dict[str, torch.Tensor])
zerocopy.share.load(torch.load, path, map_location="cpu")
zerocopy.gds.load(path, require="direct")
"""
WRONG = """
zerocopy.load(3)
zerocopy.load(path, mode="q")
zerocopy.load(path, mode="w")
zerocopy.load(path, backend="fast")
zerocopy.load(path, unknown="ignore")
zerocopy.load(path.open())
zerocopy.lazy_load(path, mode="q")
zerocopy.open(None)
zerocopy.open(path, backend="fast")
zerocopy.explain(["model.pt"])
zerocopy.overlay({"head": 3})
zerocopy.load_model("model.pt", path)
zerocopy.untyped_storage("text")
zerocopy.jit.load(path, mode="rw")
zerocopy.numpy.open(path, mode="r+")
zerocopy.save({}, 3)
zerocopy.save({}, path).wait()
zerocopy.convert(3, path)
zerocopy.convert(path, path, unknown="ignore")
zerocopy.share.load("model.pt")
zerocopy.share.load(loader)
zerocopy.share.load(loader, 3)
zerocopy.share.load(loader, "model.pt", width=2)
zerocopy.gds.load(path, require="posix")
zerocopy.lode(path)
"""


@pytest.fixture(scope="module")
def verdicts() -> dict[str, list[str]]:
    """Return the errors of mypy for each line of the calls above."""
    if find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    lines = (HEAD + RIGHT + WRONG).splitlines()
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder) / "calls.py"
        calls.write_text("\n".join(lines))
        # A cache of its own: the settings of this repository do not apply to a user's program.
        command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull]
        command += ["--cache-dir", str(Path(folder) / "cache"), calls]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, list[str]] = {line: [] for line in lines}
    for number, error in re.findall(r"^calls\.py:(\d+): error: (.*)$", done.stdout, flags=re.MULTILINE):
        found[lines[int(number) - 1]].append(error)
    return found


def test_right_calls_are_accepted(verdicts: dict[str, list[str]]) -> None:
    assert not {line: verdicts[line] for line in (HEAD + RIGHT).splitlines() if line and verdicts[line]}


def test_wrong_calls_are_rejected(verdicts: dict[str, list[str]]) -> None:
    assert not [line for line in WRONG.splitlines() if line and not verdicts[line]]
