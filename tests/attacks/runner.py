"""Has files of the catalog loaded by zerocopy and by stock torch: :class:`Runner`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attacks import CATALOG
from attacks.attack import Attack, Family
from attacks.server import Outcome, file_of

TESTS = Path(__file__).parent.parent


class Runner:
    """Loads attacks in forks of one process.

    A loader is "zerocopy", "stub" (zerocopy with ``unknown="stub"``), "torch", or "trusting", which is stock
    torch.load with ``weights_only=False``.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="attacks-"))
        paths = [str(TESTS), str(TESTS / "support"), os.environ.get("PYTHONPATH")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONHASHSEED": "0",
            "TMPDIR": str(self.folder),  # torch extracts tar archives, and leaves them where it is killed
            "OMP_NUM_THREADS": "1",
            "MALLOC_PERTURB_": "165",  # memory that nobody has written is not zero, nor what it was
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "attacks.server", str(self.folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
        )  # fmt: skip

    def path(self, attack: Attack, family: Family) -> Path:
        """Return the file of an attack, which is there until the next call of :meth:`outcomes`."""
        return file_of(self.folder, family.attacks.index(attack))

    def outcomes(
        self, family: Family, loader: str = "zerocopy", attacks: Sequence[Attack] | None = None
    ) -> dict[Attack, Outcome]:
        """Return what loading each of a family's files comes to, or each of some of them."""
        attacks = family.attacks if attacks is None else attacks
        files = file_of(self.folder, 0).parent
        shutil.rmtree(files, ignore_errors=True)
        files.mkdir()
        for attack in attacks:
            self.path(attack, family).write_bytes(attack.make())
        numbers = [family.attacks.index(attack) for attack in attacks]
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps([CATALOG.index(family), numbers, loader]) + "\n")
        self.process.stdin.flush()
        return {attack: Outcome(**json.loads(self.process.stdout.readline())) for attack in attacks}

    def load(self, attack: Attack, loader: str = "zerocopy") -> Outcome:
        """Return what loading one file comes to."""
        family = next(family for family in CATALOG if attack in family.attacks)
        return self.outcomes(family, loader, [attack])[attack]

    def close(self) -> None:
        """End the process, and remove its files."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.folder)
