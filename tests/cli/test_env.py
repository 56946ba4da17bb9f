"""``zerocopy env``: the block for bug reports, with a torch that works, fails or ends the process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from commands import Capture
from json_schemas import require_valid

import zerocopy
from zerocopy import _native, cli


def facts(capsys: Capture) -> dict[str, dict[str, str]]:
    assert cli.main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    require_valid("env", found)
    return found


def test_env_names_the_running_versions(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROCOPY_BACKEND", "pread")
    found = facts(capsys)
    assert found["versions"]["zerocopy"] == zerocopy.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["zerocopy's extension"] == "loads"
    assert found["torch"]["patched"] is False
    assert found["torch"]["bridge"] == str(_native.bridge_info())
    assert found["variables"]["ZEROCOPY_BACKEND"] == "pread"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise ImportError('libtorch.so: cannot open')", "libtorch.so"),
        ("import os; os._exit(7)", "status 7"),
    ],
)
def test_env_with_broken_torch_says_why(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, error: str
) -> None:
    (tmp_path / "torch.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ZEROCOPY_CACHE", "/a\n/b\x1b")
    found = facts(capsys)
    assert error in found["torch"]["error"]
    assert "not loaded" in found["versions"]["zerocopy's extension"]
    assert cli.main(["env"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "/a\\n/b\\x1b" in out and error in out
