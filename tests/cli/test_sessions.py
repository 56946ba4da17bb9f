"""Sessions of ``zerocopy ls`` with real layouts, on terminals of four widths: committed, to be read by eye.

``ZEROCOPY_WRITE_SESSIONS=1 pytest tests/cli/test_sessions.py`` writes the texts anew.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from terminals import run_on_terminal

import zerocopy
from benchmarks.data import shapes

SESSIONS = Path(__file__).parent / "sessions"
WIDTHS = (60, 80, 120, 200)
Entries = Iterable[tuple[str, tuple[int, ...]]]


def sdxl() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the attention blocks of Stable Diffusion XL's U-Net as diffusers names them."""
    yield "conv_in.weight", (320, 4, 3, 3)
    for block, (depth, channels) in enumerate(((2, 640), (10, 1280)), 1):
        for attention in range(2):
            stem = f"down_blocks.{block}.attentions.{attention}"
            yield f"{stem}.proj_in.weight", (channels, channels)
            for layer in range(depth):
                inside = f"{stem}.transformer_blocks.{layer}"
                for number, context in ((1, channels), (2, 2048)):
                    for part, width in (("to_q", channels), ("to_k", context), ("to_v", context)):
                        yield f"{inside}.attn{number}.{part}.weight", (channels, width)
                yield f"{inside}.ff.net.0.proj.weight", (8 * channels, channels)
    yield "conv_out.weight", (4, 320, 3, 3)


def training() -> dict[str, Any]:
    """Return what a script of AdamW saves."""
    model = dict(shapes.llm(shrink=32))
    state = {
        number: {"step": torch.tensor(5.0), "exp_avg": meta(shape), "exp_avg_sq": meta(shape)}
        for number, shape in enumerate(model.values())
    }
    group = {
        "lr": 1e-4,
        "betas": (0.9, 0.95),
        "eps": 1e-8,
        "weight_decay": 0.1,
        "params": list(range(len(model))),
    }
    return {
        "model": {name: meta(shape) for name, shape in model.items()},
        "optimizer": {"state": state, "param_groups": [group]},
        "scheduler": {"base_lrs": [1e-4], "last_epoch": 5, "verbose": False},
        "losses": [1 / n for n in range(1, 501)],
        "epoch": 5,
        "args": {"model": "llama", "bf16": True, "seeds": [0, 1, 2], "resume": None},
    }


def meta(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16)


def safetensors(path: Path, entries: Entries, dtype: str, size: int) -> None:
    """Make a file of these names and shapes, whose tensors are a hole on the disk."""
    header, end = {}, 0
    for name, shape in entries:
        begin, end = end, end + size * torch.Size(shape).numel()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + end)


LAYOUTS = {
    "bert": lambda path: safetensors(path, shapes.bert(), "F32", 4),
    "llama": lambda path: safetensors(path, shapes.llm(), "BF16", 2),
    "sdxl": lambda path: safetensors(path, sdxl(), "F16", 2),
    "lora": lambda path: safetensors(path, list(shapes.lora())[:200], "F32", 4),
    "training": lambda path: zerocopy.save(training(), path),
    "moe": lambda path: safetensors(path, shapes.moe(), "BF16", 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_session_is_as_committed(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(f"{layout}.pt" if layout == "training" else f"{layout}.safetensors")
    LAYOUTS[layout](path)
    for columns in WIDTHS:
        code, printed = run_on_terminal(["ls", str(path)], columns)
        text = re.sub(r"\x1b\[[01]m|\r", "", printed)
        session = SESSIONS / f"{layout}-{columns}.txt"
        if os.environ.get("ZEROCOPY_WRITE_SESSIONS"):
            session.write_text(text)
        assert code == 0 and text == session.read_text(), session
