"""Runs a program in a process of its own, under Python or under ``zerocopy run``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PYTHON = [sys.executable]
RUN = [sys.executable, "-m", "zerocopy", "run"]

# With several threads, torch rounds some sums differently from run to run when the machine is busy.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def process(
    command: list[str], *arguments: object, cwd: Path, timeout: float = 180, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **ONE_THREAD, **environment},
    )
