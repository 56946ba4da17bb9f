"""Warm starts: a whole program, from Enter to its exit, by ``python`` and by ``zerocopy run``."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ..engine.cases import Case, Side, TimeCase
from ..engine.loader import Loader, needs_module
from .share import cache

_PYTHON = [sys.executable]
_SHARE = [f"{sysconfig.get_path('scripts')}/zerocopy", "run", "--share"]
_WARM = [f"{sysconfig.get_path('scripts')}/zerocopy", "run", "--warm"]
_WARM_SHARE = [*_WARM, "--share"]
_ATTEMPTS = 20  # until a program is started warm

_PROGRAMS = {
    "ones.py": "import torch\nprint(torch.ones(3))\n",
    "bert.py": """
import torch
from transformers import BertModel

model = BertModel.from_pretrained("bert").eval()
with torch.no_grad():
    print(model(torch.ones(1, 8, dtype=torch.long)).last_hidden_state.shape)
""",
    "pipeline.py": """
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

kinds = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
unet = UNet2DModel(16, block_out_channels=(32, 32), norm_num_groups=8, layers_per_block=1, **kinds)
pipeline = DDPMPipeline(unet, DDPMScheduler())
pipeline.set_progress_bar_config(disable=True)
print(pipeline(num_inference_steps=1, output_type="np").images.shape)
""",
}
_SAVE_BERT = "import sys, transformers as t; t.BertModel(t.BertConfig()).save_pretrained(sys.argv[1])"


@functools.cache
def _folder() -> Path:
    """Return a folder with the programs, which is gone with this process, as its fork servers are."""
    folder = Path(tempfile.mkdtemp(prefix="zc.warm."))
    for name, text in _PROGRAMS.items():
        (folder / name).write_text(text)
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:
            from zerocopy.launch import control

            control.stop_all()
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return folder


def _run(program: str, command: list[str]) -> None:
    subprocess.run([*command, program], cwd=_folder(), check=True, stdout=subprocess.DEVNULL)


def _starts() -> int:
    from zerocopy.launch import control

    return sum(found["starts"] for found in control.status())


def _prepare(program: str, command: list[str]) -> list[str]:
    """Run a program until it starts as it will: its model is shared, and its imports are ready."""
    if program == "bert.py" and not (_folder() / "bert").exists():
        subprocess.run([sys.executable, "-c", _SAVE_BERT, str(_folder() / "bert")], check=True)
    if "--share" in command:
        cache()
    for _ in range(_ATTEMPTS):
        before = _starts()
        _run(program, command)
        if "--warm" not in command or _starts() > before:
            return command
        time.sleep(3)
    raise RuntimeError(f"{program} is not started warm")


def _loader(label: str, program: str, command: list[str], missing: Callable[[], str]) -> Loader:
    def load(_: str, command: list[str]) -> None:
        _run(program, command)

    return Loader(label, load, missing, lambda _: _prepare(program, command), expected=None)


def _needs(library: str) -> Callable[[], str]:
    return lambda: needs_module(library)() or needs_module("zerocopy")()


LOADERS: dict[str, Loader] = {
    "python-ones": _loader("python", "ones.py", _PYTHON, _needs("torch")),
    "warm-ones": _loader("zerocopy run --warm", "ones.py", _WARM, _needs("torch")),
    "python-bert": _loader("python", "bert.py", _PYTHON, _needs("transformers")),
    "share-bert": _loader("zerocopy run --share", "bert.py", _SHARE, _needs("transformers")),
    "warm-bert": _loader("zerocopy run --warm --share", "bert.py", _WARM_SHARE, _needs("transformers")),
    "python-pipeline": _loader("python", "pipeline.py", _PYTHON, _needs("diffusers")),
    "warm-pipeline": _loader("zerocopy run --warm", "pipeline.py", _WARM, _needs("diffusers")),
}

CASES: tuple[Case, ...] = tuple(
    TimeCase(name, Side(ours, "small.pt"), Side(peer, "small.pt"), columns=("ready",), most_rounds=15)
    for name, ours, peer in (
        ("warm/ones", "warm-ones", "python-ones"),
        ("warm/bert", "warm-bert", "python-bert"),
        ("warm/bert/share", "warm-bert", "share-bert"),
        ("warm/pipeline", "warm-pipeline", "python-pipeline"),
    )
)
