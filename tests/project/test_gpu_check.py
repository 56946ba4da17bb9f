"""`scripts/gpu-check` without a GPU reports this, and what a build would lack."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "scripts/gpu-check"

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without CUDA")


def check(*arguments: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [SCRIPT, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow("starts a Python with torch for each tool")
def test_gpu_check_without_device_names_the_missing_tools() -> None:
    before = sorted(SCRIPT.parent.parent.glob("benchmarks/results/*"))
    code, said = check("here", "--python", sys.executable, CXX="no-such-compiler")
    assert code == 3
    assert f"torch {torch.__version__}" in said and "missing: no-such-compiler" in said
    assert said.endswith("gpu-check: no CUDA device: nothing was tested on a GPU\n")
    assert sorted(SCRIPT.parent.parent.glob("benchmarks/results/*")) == before


def test_wrong_call_is_answered_with_the_usage() -> None:
    for arguments in ((), ("../results",), ("a", "b"), ("a", "--unknown")):
        code, said = check(*arguments)
        assert code == 2 and "scripts/gpu-check NAME" in said, arguments


def test_absent_python_is_named() -> None:
    assert check("here", "--python", "/no/such/python") == (4, "gpu-check: missing: /no/such/python\n")
