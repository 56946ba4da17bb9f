"""Programs that another launcher starts: the workers are patched where the launcher starts ``zerocopy run``."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from python_programs import process

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
ACCELERATE = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
PROGRAM = """
import json, os, pathlib, sys
import torch
weight = torch.load("model.pt")["weight"]
import zerocopy
mapped = [file.path for file in zerocopy.memory().files if file.path.endswith("model.pt")]
found = {"arguments": sys.argv[1:], "patched": zerocopy.is_patched(), "mapped": len(mapped)}
pathlib.Path(f"rank{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))
"""


def ranks_of(command: list[str], folder: Path) -> list[dict[str, object]]:
    """Run a launcher in a folder, and return what each rank found."""
    (folder / "train.py").write_text(PROGRAM)
    torch.save({"weight": torch.ones(1000)}, folder / "model.pt")
    # Debian builds torch's stores without libuv, and torchrun asks for it unless told otherwise.
    done: subprocess.CompletedProcess[str] = process(
        [sys.executable, *command, "train.py"], "--epochs", 3, cwd=folder, timeout=240, USE_LIBUV="0"
    )
    if "without libuv" in done.stderr:
        pytest.skip(
            "torchrun of this release asks for libuv all the same, without which this torch was built"
        )
    assert done.returncode == 0, done.stderr
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


@pytest.fixture
def torchrun() -> list[str]:
    """Return the command of a launcher that works: that of 1.13 fails on Python 3.11 with any program."""
    api = pytest.importorskip("torch.distributed.elastic.multiprocessing.api")
    if api.Std.from_str("0") is None:
        pytest.skip("torchrun of this release does not run on this Python")
    return TORCHRUN


def test_torchrun_that_starts_zerocopy_run_has_patched_ranks(torchrun: list[str], tmp_path: Path) -> None:
    patched = {"arguments": ["--epochs", "3"], "patched": True, "mapped": 1}
    assert ranks_of([*torchrun, "-m", "zerocopy", "run"], tmp_path) == [patched, patched]


def test_torchrun_under_zerocopy_run_has_plain_ranks(torchrun: list[str], tmp_path: Path) -> None:
    """As docs/patch.md says: a launcher starts its workers as new programs."""
    plain = {"arguments": ["--epochs", "3"], "patched": False, "mapped": 0}
    assert ranks_of(["-m", "zerocopy", "run", *torchrun], tmp_path) == [plain, plain]


def test_accelerate_launch_that_starts_zerocopy_run_has_patched_processes(tmp_path: Path) -> None:
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    patched = {"arguments": ["--epochs", "3"], "patched": True, "mapped": 1}
    assert ranks_of([*ACCELERATE, "-m", "zerocopy", "run"], tmp_path) == [patched]
