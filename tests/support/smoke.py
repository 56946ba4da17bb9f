"""Program that uses an installed zerocopy once: ``python smoke.py``. It needs torch only, no test library.

``scripts/releases`` runs it with wheels, and ``debian/tests`` with the Debian package. It prints the versions
of Python and torch and the bridge, and ends with a traceback if a result is wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def make_state(rows: int) -> dict[str, Any]:
    """Return tensors, two of which share a storage."""
    import torch

    weight = torch.arange(rows * 3, dtype=torch.float32).reshape(rows, 3)
    return {"weight": weight, "tied": weight[1:], "step": 7, "half": weight.to(torch.bfloat16)}


def check(state: Any, expected: dict[str, Any], what: str) -> None:
    """Raise AssertionError unless the values are equal and the ties are kept."""
    import torch

    assert list(state) == list(expected), what
    for name, value in expected.items():
        if not isinstance(value, torch.Tensor):
            assert state[name] == value, (what, name)
            continue
        assert state[name].dtype == value.dtype, (what, name)
        assert torch.equal(state[name], value), (what, name)
    before = float(state["tied"][0, 0])
    state["weight"][1, 0] = before + 1
    assert float(state["tied"][0, 0]) == before + 1, f"{what}: weight and tied share no memory"
    state["weight"][1, 0] = before


def use(folder: Path) -> str:
    """Save, load and share tensors in a folder, and return the versions of Python and torch, and the bridge."""
    import smoke  # under this name its results are kept
    import torch

    import zerocopy
    from zerocopy._native import bridge_info

    expected = make_state(5)
    by_torch, by_zerocopy = folder / "torch.pt", folder / "zerocopy.pt"
    torch.save(expected, by_torch)
    zerocopy.save(expected, by_zerocopy)
    check(torch.load(by_zerocopy), expected, "torch.load of zerocopy.save")
    for path in (by_torch, by_zerocopy):
        check(zerocopy.load(path), expected, f"load of {path.name}")
        check(zerocopy.lazy_load(path), expected, f"lazy_load of {path.name}")
        with zerocopy.open(path) as checkpoint:
            assert torch.equal(checkpoint["weight"] + 0, expected["weight"])
    zerocopy.patch()
    try:
        patched = torch.load(by_torch)
    finally:
        zerocopy.unpatch()
    check(patched, expected, "patched torch.load")
    assert str(by_torch) in Path("/proc/self/maps").read_text(errors="surrogateescape"), (
        "patched torch.load did not map the file"
    )
    for _ in range(2):
        check(zerocopy.share.load(smoke.make_state, 5), expected, "share.load")

    command = subprocess.run(
        [sys.executable, "-P", "-m", "zerocopy", "env"], check=True, capture_output=True, text=True
    )
    assert zerocopy.__version__ in command.stdout, command.stdout
    assert torch.__version__ in command.stdout, command.stdout
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{python} | {torch.__version__} | {bridge_info().kind}"


def main() -> None:
    """Run in a folder of its own, with a cache of its own."""
    with tempfile.TemporaryDirectory() as name:
        os.environ["ZEROCOPY_CACHE"] = str(Path(name) / "cache")
        print(use(Path(name)))


if __name__ == "__main__":
    main()
