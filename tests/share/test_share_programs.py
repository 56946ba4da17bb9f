"""Real programs, unchanged, under ``zerocopy run --share``: the same output as under python, to the bit, also again."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from python_programs import PYTHON, RUN, process

from zerocopy import share

pytestmark = pytest.mark.slow("programs")

PROGRAMS = Path(__file__).parent.parent / "programs" / "shared"

# The package that a program is about, and what its calls are of: each is computed once. A model comes first.
CASES = {
    "transformers_models.py": (
        "transformers",
        ["OwnModel.from_pretrained", "BertForSequenceClassification.from_pretrained", "pipelines.pipeline"],
    ),
    "diffusers_parts.py": (
        "diffusers",
        ["AutoencoderKL.from_pretrained", "DDIMScheduler.from_pretrained", "DiTPipeline.from_pretrained"],
    ),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROCOPY_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("program", CASES)
def test_same_results(tmp_path: Path, program: str) -> None:
    package, functions = CASES[program]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    outputs, kept = [], []
    for command in (PYTHON, PYTHON, *3 * [[*RUN, "--share"]]):  # the first makes the models
        done = process(
            command, PROGRAMS / program, tmp_path / "place", cwd=tmp_path,
            HF_HUB_OFFLINE="1", HF_MODULES_CACHE=str(tmp_path / "code"), timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "nothing is kept" not in done.stderr
        outputs.append(done.stdout)
        kept.append({entry.key for entry in share.status()})
    _, plain, *shared = outputs
    assert plain and shared == [plain] * 3
    *_, once, twice, thrice = kept
    assert once == twice == thrice and len(share.status()) == len(once), "each was computed once"
    found = share.status()
    assert all(any(entry.what.endswith(function) for entry in found) for function in functions), found
    (model,) = [entry for entry in found if entry.what.endswith(functions[0])]
    assert model.mapped > model.written > 0, "weights stay in their files"


def test_processes_that_a_program_starts(tmp_path: Path) -> None:
    """Also those that multiprocessing spawns are patched; and not at all where it is switched off."""
    (tmp_path / "program.py").write_text(
        "import multiprocessing, sys, torch\n"
        "def total(path):\n"
        "    return torch.load(path)['w'].sum().item()\n"
        "if __name__ == '__main__':\n"
        "    torch.save({'w': torch.ones(5000)}, sys.argv[1])\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.apply(total, sys.argv[1:]), total(sys.argv[1]))\n"
    )
    arguments = ["--share", "program.py", tmp_path / "a.pt"]
    done = process(RUN, *arguments, cwd=tmp_path, ZEROCOPY_DISABLE="1")
    assert done.stdout == "5000.0 5000.0\n" and share.status() == [], done.stderr
    done = process(RUN, *arguments, cwd=tmp_path)
    assert done.stdout == "5000.0 5000.0\n", done.stderr
    assert {entry.what for entry in share.status()} == {"torch.serialization.load"}


def test_a_file_of_the_programs_own_class(tmp_path: Path) -> None:
    """A class of ``__main__`` is the program's own. An error of a load has no context."""
    (tmp_path / "program.py").write_text(
        "import torch\n"
        "class Own(torch.nn.Linear):\n"
        "    pass\n"
        "torch.save(Own(2, 2), 'own.pt')\n"
        "options = {'weights_only': False} if torch.__version__ >= '2' else {}\n"
        "print(type(torch.load('own.pt', **options)) is Own)\n"
        "try:\n"
        "    torch.load('absent.pt')\n"
        "except FileNotFoundError as error:\n"
        "    print(error.__context__)\n"
    )
    for _ in range(2):
        done = process([*RUN, "--share"], "program.py", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "True\nNone\n", "")
