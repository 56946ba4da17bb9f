"""Has the catalog's files loaded by zerocopy and by stock torch: :class:`Runner`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from attacks import CATALOG
from attacks.attack import Attack
from attacks.server import Outcome

TESTS = Path(__file__).parent.parent


class Process:
    """One process that forks, asked by a thread of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.file = folder / "checkpoint.pt"
        self.thread = ThreadPoolExecutor(1)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(TESTS), str(TESTS / "support"), os.environ.get("PYTHONPATH")])
            ),
            "PYTHONHASHSEED": "0",
            "TMPDIR": str(folder),  # torch extracts tar archives, and leaves them where it is killed
            "OMP_NUM_THREADS": "1",
            "MALLOC_PERTURB_": "165",  # memory that nobody has written is not zero, nor what it was
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "attacks.server", str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
        )  # fmt: skip

    def ask(self, attack: Attack, data: bytes, loader: str) -> Outcome:
        """Have a file of these bytes loaded."""
        self.file.unlink(missing_ok=True)  # the process may still have the file before it mapped
        self.file.write_bytes(data)
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps([*place(attack), loader]) + "\n")
        self.process.stdin.flush()
        return Outcome(**json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        self.thread.shutdown(cancel_futures=True)
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


class Runner:
    """Loads attacks by any of LOADERS, stock torch's beside zerocopy's."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="attacks-"))
        self.ours, self.torchs = Process(self.folder / "zerocopy"), Process(self.folder / "torch")
        self.file = self.ours.file
        self.digests: dict[Attack, bytes] = {}
        self.ordered: dict[tuple[Attack, str], Future[Outcome]] = {}

    def data(self, attack: Attack) -> bytes:
        """Return the file's bytes, which are the same ones each time."""
        data = attack.make()
        digest = hashlib.sha256(data).digest()
        assert self.digests.setdefault(attack, digest) == digest, f"{attack.name}: made differently each time"
        return data

    def order(self, attack: Attack, loader: str) -> Future[Outcome]:
        """Have a file loaded in the background, in a forked process."""
        process = self.ours if loader == "zerocopy" else self.torchs

        def ask() -> Outcome:
            return process.ask(attack, self.data(attack), loader)

        if (attack, loader) not in self.ordered:
            self.ordered[attack, loader] = process.thread.submit(ask)
        return self.ordered[attack, loader]

    def load(self, attack: Attack, loader: str = "zerocopy") -> Outcome:
        """Return what loading a file in a forked process comes to."""
        return self.order(attack, loader).result()

    def close(self) -> None:
        """End the processes and remove their files."""
        for process in (self.ours, self.torchs):
            process.close()
        shutil.rmtree(self.folder)


def place(attack: Attack) -> tuple[int, int]:
    """Return where in CATALOG an attack is."""
    for i, family in enumerate(CATALOG):
        for j, other in enumerate(family.attacks):
            if other is attack:
                return i, j
    raise LookupError(attack.name)
