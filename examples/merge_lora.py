"""A fine-tuned model as two files: the base, and a small one of the tensors that the fine-tuning changed.

A LoRA adapter says for some weights ``W`` two narrow matrices, and means ``W + B @ A * scale``. The merged weights are
written to a checkpoint of their own, which is laid over the base. Nothing of the base is written again, and however
many models lie over it share its pages.

    python examples/merge_lora.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

import zerocopy

WIDTH, RANK, SCALE = 256, 4, 0.5
CHANGED = ("3.weight",)


def model(device: str = "cpu") -> nn.Sequential:
    """Make the model of which there are checkpoints here."""
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, device=device) for _ in range(8)))


def write_base_and_adapter(base: Path, adapter: Path) -> None:
    """Write what a user would have downloaded."""
    torch.manual_seed(0)
    torch.save(model().state_dict(), base)
    factors = {f"{name}.lora_A": torch.randn(RANK, WIDTH) for name in CHANGED}
    factors |= {f"{name}.lora_B": torch.randn(WIDTH, RANK) for name in CHANGED}
    torch.save(factors, adapter)


def merge(base: Path, adapter: Path, delta: Path) -> None:
    """Write the weights that the adapter changes, merged. Of the base nothing else is read."""
    with zerocopy.open(base) as weights, zerocopy.open(adapter) as factors:
        changed = [name.removesuffix(".lora_A") for name in factors if name.endswith(".lora_A")]
        merged = {
            name: weights[name] + factors[f"{name}.lora_B"] @ factors[f"{name}.lora_A"] * SCALE
            for name in changed
        }
    torch.save(merged, delta)


def main() -> None:
    """Merge, lay one over the other, and compare with merging in the model."""
    with tempfile.TemporaryDirectory() as folder:
        base, adapter, delta = (Path(folder, f"{name}.pt") for name in ("base", "adapter", "delta"))
        write_base_and_adapter(base, adapter)
        merge(base, adapter, delta)
        for path in (base, adapter, delta):
            print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")

        tuned = model("meta")
        with zerocopy.overlay(base, delta) as checkpoint:
            print(f"overlay: {zerocopy.assign(tuned, checkpoint)}")

        expected, factors = model(), torch.load(adapter)
        expected.load_state_dict(torch.load(base))
        with torch.no_grad():
            for name in CHANGED:
                expected.get_parameter(name).add_(
                    factors[f"{name}.lora_B"] @ factors[f"{name}.lora_A"] * SCALE
                )
            x = torch.randn(2, WIDTH)
            torch.testing.assert_close(tuned(x), expected(x))
    print("the same as merging in the model")


if __name__ == "__main__":
    main()
