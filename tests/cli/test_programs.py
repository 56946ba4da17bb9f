"""Real programs, unchanged, under ``zerocopy run``: the same output as under python, to the bit.

Each program of tests/programs prints digests of its results; on stderr it says which loads were served
(tests/programs/witness.py).
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from python_programs import PYTHON, RUN, process

PROGRAMS = Path(__file__).parent.parent / "programs"

# The package that a program is about, and how many loads zerocopy serves in it.
CASES = {
    "accelerate_checkpoint.py": ("accelerate", 7),
    "dataloader_workers.py": ("torch", 4),
    "hub_file_address.py": ("torch", 2),
    "lightning_resume.py": ("pytorch_lightning", 2),
    "resume_and_save.py": ("torch", 3),
    "transformers_pretrained.py": ("transformers", 7),
}

# This load may go to torch: transformers asks for a checkpoint's dtypes by map_location="meta".
HANDED_ON = "goes to torch.load: meta tensors are wanted"


def test_every_program_is_run() -> None:
    assert set(CASES) == {path.name for path in PROGRAMS.glob("*_*.py")}


@pytest.mark.slow("real programs, of other packages, in two processes each")
@pytest.mark.parametrize("program", CASES)
def test_same_results(tmp_path: Path, program: str) -> None:
    package, loads = CASES[program]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    outputs = []
    for command in (PYTHON, RUN):
        place = tmp_path / "place"  # the same for both, since some libraries print it
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        done = process(command, PROGRAMS / program, place, cwd=tmp_path, HF_HUB_OFFLINE="1")
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] and outputs[0] == outputs[1]
    said = [line for line in done.stderr.splitlines() if "witness: " in line]
    handed_on = [line for line in said if "goes to torch.load" in line]
    assert all(line.endswith(HANDED_ON) for line in handed_on)
    assert sum("witness: loaded" in line for line in said) - len(handed_on) >= loads, said
