"""The programs of examples/ run, and what they print is so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import Child
from sanitizer import SANITIZED
from torch import nn

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed(name: str, *arguments: str) -> str:
    """Run an example. Return what it printed."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        capture_output=True,
        text=True,
        timeout=300 * (5 if SANITIZED else 1),
        # An arena is 64 MiB of address space, which a thread may take after that is limited.
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(pattern: str, output: str) -> list[float]:
    """Return the numbers that a pattern's groups find."""
    found = re.search(pattern, output)
    assert found, output
    return [float(number) for number in found.groups()]


@pytest.mark.slow("a Python that computes in 48 layers")
@pytest.mark.plain_memory("it limits the address space")
def test_layer_by_layer() -> None:
    layers, width = 48, 1024
    output = printed("layer_by_layer.py", str(layers), str(width))
    (size,) = numbers(r"a checkpoint of (\d+) MB; half as much memory", output)
    assert size >= layers * width * width * 4 // 1e6
    assert "all of it at once: MemoryError\n" in output
    numbers(r"layer by layer: [\d.]+ s, ([\d.]+) GB/s", output)
    numbers(r"plain read: [\d.]+ s, ([\d.]+) GB/s", output)

    torch.manual_seed(0)  # as the example
    x = torch.ones(4, width)
    with torch.no_grad():
        for layer in nn.ModuleList(nn.Linear(width, width) for _ in range(layers)):
            x = x + layer(x).tanh()
    (result,) = numbers(r"result: (.*)", output)
    assert result == pytest.approx(x.norm().item(), rel=1e-4)


@pytest.mark.slow("starts three Pythons")
def test_tensor_parallel() -> None:
    output = printed("tensor_parallel.py", "3")
    taken = [float(found) for found in re.findall(r"process \d: ([\d.]+) of 8.40 MB", output)]
    assert taken == pytest.approx([8.40 / 3] * 3, abs=0.02)
    (difference,) = numbers(r"largest difference to the whole: (\S+)", output)
    assert difference < 1e-4


def test_merge_lora(forked: Child) -> None:
    run = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    done = forked(run, EXAMPLES / "merge_lora.py")
    assert done.returncode == 0, done.stderr
    output = done.stdout
    assert numbers(r"base.pt: (.*) MB", output)[0] > 7 * numbers(r"delta.pt: (.*) MB", output)[0]
    assert "overlay: <All keys matched successfully>\nthe same as merging in the model\n" in output


@pytest.mark.slow("a Python that quantizes in many steps")
@pytest.mark.plain_memory("it measures memory")
def test_quantize_layer_by_layer() -> None:
    output = printed("quantize_layer_by_layer.py", "8")
    (original,), (quantized,) = numbers(r"model.pt: (.*) MB", output), numbers(r"int8.pt: (.*) MB", output)
    assert original > 3.9 * quantized
    (memory,) = numbers(r"memory: (\d+) MB more", output)
    assert (
        memory < original / 2
    )  # a layer, its quotient and its values; pages of the mapping, which are the system's
    assert numbers(r"largest error: (.*) steps", output)[0] <= 0.501
    assert "tied: True\n" in output


@pytest.mark.slow("starts five ranks")
def test_change_ranks() -> None:
    pytest.importorskip("torch.distributed.tensor")
    output = printed("change_ranks.py", "2", "3")
    straight = re.search(r"throughout 2 ranks: (.*)", output)
    parts = re.findall(r"^[23] ranks: (.*)", output, flags=re.MULTILINE)
    assert straight and len(parts) == 2
    together = [float(loss) for loss in " ".join(parts).split()]
    assert together == pytest.approx([float(loss) for loss in straight[1].split()], rel=1e-4)
    assert len(set(together)) == len(together) == 8
    assert "steps: 8; equal losses\n" in output


def test_every_example_is_short_and_tested() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 100
        for place in (Path(__file__), EXAMPLES / "README.md"):
            assert path.name in place.read_text(), f"{path.name} is not in {place.name}"
