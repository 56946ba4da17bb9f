"""``zerocopy explain``: what the function says, as a command."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from commands import Capture
from conftest import Saver

import zerocopy
from zerocopy.__main__ import main


def test_explain_prints_what_the_function_returns(save: Saver, tmp_path: Path, capsys: Capture) -> None:
    path = save({"weight": torch.ones(1000)})
    assert main(["explain", str(path)]) == 0
    assert capsys.readouterr().out.strip() == str(zerocopy.explain(path))
    assert main(["explain", "--all", str(path)]) == 0
    assert capsys.readouterr().out.strip() == zerocopy.explain(path).details()
    assert main(["explain", "--json", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["command"], found["storages"][0]["how"], found["storages"][0]["names"]) == (
        "explain",
        "mapped",
        ["weight"],
    )


def test_explain_of_copied_bytes_exits_with_1(tmp_path: Path, capsys: Capture) -> None:
    header = b'{"w":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}} '
    header += b" " * (4 - len(header) % 8)  # the elements do not lie at multiples of their size
    path = tmp_path / "odd.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    assert main(["explain", str(path)]) == (0 if zerocopy.explain(path).nbytes("mapped") else 1)
    assert str(zerocopy.explain(path)) == capsys.readouterr().out.strip()
