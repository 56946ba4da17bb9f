"""Each example of docs/recipes.md runs against its package, and leaves the parameters in the file where it says so."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Child

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
RECIPES = dict(
    re.findall(
        r"^## (\w+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL
    )
)

# Files that the examples name. Nothing is fetched from anywhere.
MAKE_BERT = """
import torch, transformers
torch.manual_seed(0)
config = transformers.BertConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=99
)
config.save_pretrained("bert")
original = transformers.BertModel(config).eval()
torch.save(original.state_dict(), "bert/model.pt")
"""
MAKE_VAE = """
import diffusers, torch
torch.manual_seed(0)
original = diffusers.AutoencoderKL(
    block_out_channels=(16, 32),
    norm_num_groups=8,
    down_block_types=("DownEncoderBlock2D",) * 2,
    up_block_types=("UpDecoderBlock2D",) * 2,
).eval()
original.save_pretrained("vae")
"""
ARE_EQUAL = """
with torch.no_grad():
    words = torch.arange(1, 13).view(2, 6)
    assert torch.equal(model(words)[0], original(words)[0])
"""
LIE_IN_FILE = """
def lies_in(path, parameters):
    found = [line.split()[0] for line in open("/proc/self/maps") if line.rstrip().endswith(path)]
    ranges = [[int(end, 16) for end in part.split("-")] for part in found]
    return all(any(start <= p.data_ptr() < end for start, end in ranges) for p in parameters)
"""
CASES = {
    "transformers": (
        MAKE_BERT,
        ARE_EQUAL + LIE_IN_FILE + "assert lies_in('bert/model.pt', model.parameters())",
    ),
    "accelerate": (
        MAKE_BERT,
        ARE_EQUAL
        + LIE_IN_FILE
        + "assert {p.device.type for p in model.parameters()} == {'meta'}\n"
        + "assert lies_in('bert/model.pt', state.values())",
    ),
    "diffusers": (
        MAKE_VAE,
        LIE_IN_FILE
        + "image = torch.ones(1, 3, 8, 8)\n"
        + "with torch.no_grad():\n    assert torch.equal(model(image).sample, original(image).sample)\n"
        + "assert lies_in('.safetensors', model.parameters())",
    ),
    "pytorch_lightning": ("", ""),
    "ComfyUI": (
        """
import torch
from safetensors.torch import save_file
state = {"weight": torch.ones(5000)}
torch.save(state, "a.ckpt"), save_file(state, "b.safetensors")
""",
        LIE_IN_FILE
        + """
import safetensors
def load_torch_file(ckpt, safe_load=False, device=torch.device("cpu")):
    if ckpt.endswith(".safetensors"):
        with safetensors.safe_open(ckpt, framework="pt", device=device.type) as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    return torch.load(ckpt, map_location=device, weights_only=True, mmap=True)
loaded = {path: load_torch_file(path) for path in ("a.ckpt", "b.safetensors")}
assert all(lies_in(path, found.values()) for path, found in loaded.items())
assert not lies_in("a.ckpt", [state["weight"]])
assert {file.path.rpartition("/")[2] for file in zerocopy.memory().files} >= {"a.ckpt", "b.safetensors"}
""",
    ),
}
NEEDS = {"ComfyUI": "safetensors"}
REAL = pytest.mark.slow("imports another package")


@pytest.fixture
def run(forked: Child, tmp_path: Path) -> Callable[[str], None]:
    """Return what runs a program in an empty folder."""

    def run(program: str) -> None:
        done = forked(f"import os\nos.chdir({str(tmp_path)!r})\n{program}", timeout=240)
        assert done.returncode == 0, done.stderr

    return run


@pytest.mark.parametrize(
    "name",
    ["ComfyUI", *(pytest.param(name, marks=REAL) for name in CASES if name != "ComfyUI")],
)
def test_recipe(run: Callable[[str], None], name: str) -> None:
    if importlib.util.find_spec(NEEDS.get(name, name)) is None:
        pytest.skip(f"{NEEDS.get(name, name)} is not installed")
    before, after = CASES[name]
    run("\n".join([before, RECIPES[name], after]))


def test_every_example_of_the_page_is_run() -> None:
    assert set(RECIPES) == set(CASES)
