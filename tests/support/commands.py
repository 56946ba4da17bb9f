"""Runs commands in one Python that cannot import torch, and names the fixture that hears what commands print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

Capture = pytest.CaptureFixture[str]

_PROGRAM = """
import contextlib, io, json, os, sys
class Without:
    def find_spec(self, name, path, target=None):
        if name in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
from zerocopy.__main__ import main
found = []
for arguments in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
    found.append((code, out.getvalue(), err.getvalue()))
json.dump(found, sys.stdout)
"""


class Done(NamedTuple):
    """The end of a command."""

    code: int
    out: str
    err: str


def run_without_torch(
    *commands: Sequence[object], absent: Sequence[str] = ("torch",), cwd: Path | None = None
) -> list[Done]:
    """Run commands, each with the modules of those before it. The modules `absent` cannot be imported."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.replace("ABSENT", repr(tuple(absent)))],
        input=json.dumps([list(map(os.fspath, command)) for command in commands]),
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr
    return [Done(*each) for each in json.loads(done.stdout)]
