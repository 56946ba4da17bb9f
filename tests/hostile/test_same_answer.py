"""The answer to a crafted archive does not depend on how its bytes are read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from attacks import CATALOG
from attacks.attack import MEBIBYTE

sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

import load_fuzz

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's about half of its own objects

#: Families of other formats, or of files whose values take long to read.
OTHERS = ("Bombs", "Tar archives", "TorchScript archives", "safetensors files", "HDF5")


def test_answer_is_the_same_however_a_file_is_read() -> None:
    families = [family for family in CATALOG if family.title not in OTHERS]
    attacks = [each for family in families for each in family.attacks if each.memory <= 64 * MEBIBYTE]
    wrong = []
    for attack in attacks:
        try:
            load_fuzz.check(attack.make())
        except AssertionError as error:
            wrong.append(f"{attack.name}: {error}")
    assert not wrong, "\n".join(wrong)[:5000]
