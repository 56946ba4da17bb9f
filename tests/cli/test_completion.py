"""``zerocopy completion``: bash itself completes with the script."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from commands import Capture

from zerocopy import cli


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["zerocopy", "ver"], ["verify"]),
        (["zerocopy", "diff", "--rt"], ["--rtol"]),
        (["zerocopy", "diff", "a.pt", "--js"], ["--json"]),
        (["zerocopy", "diff", "a"], []),
        (["zerocopy", ""], [*cli.COMMANDS, "--help", "--version"]),
    ],
)
def test_completion_in_bash_finds_commands_and_options(
    capsys: Capture, words: list[str], wanted: list[str]
) -> None:
    assert cli.main(["completion"]) == 0
    script = capsys.readouterr().out
    ask = '\nCOMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _zerocopy; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", script + ask, "bash", *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == wanted and done.stderr == ""
