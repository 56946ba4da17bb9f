"""Loads hostile files, in this process or in a child that is bounded in memory and time."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import zerocopy

#: What a load may raise on a hostile file.
CLEAN = (zerocopy.FormatError, zerocopy.UnsupportedError, pickle.UnpicklingError, OSError)

#: No message is longer, and none quotes more of a file than the second.
LONGEST_MESSAGE = 10_000
LONGEST_ECHO = 200


def refusal(path: Path, data: bytes, **options: Any) -> Exception:
    """Return what ``zerocopy.load`` raises on a file of these bytes."""
    path.write_bytes(data)
    try:
        value = zerocopy.load(path, **options)
    except Exception as error:
        assert len(str(error)) <= LONGEST_MESSAGE + len(str(path)), len(str(error))
        assert str(error).isprintable() or "\n" in str(error), ascii(str(error))
        return error
    raise AssertionError(f"loaded: a {type(value).__name__}")


_CHILD = """
import json, resource, signal, sys
sys.path.insert(0, {tests!r})
import torch, zerocopy, hostile
torch.set_num_threads(1)
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + {memory}
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
signal.alarm({seconds})
for path in sys.stdin.read().splitlines():
    print(json.dumps(hostile.describe(path)), flush=True)
"""


def describe(path: str) -> list[Any]:
    """Load, and return an exception's class and message, or ``"loaded"`` and the value's type."""
    try:
        value = zerocopy.load(path)
    except Exception as error:
        kinds = [kind.__name__ for kind in CLEAN if isinstance(error, kind)]
        return [kinds[0] if kinds else type(error).__name__, str(error)[:3000]]
    return ["loaded", type(value).__name__]


def bounded(paths: Iterable[Path], *, seconds: int = 60, memory: int = 2**30) -> list[list[Any]]:
    """Return :func:`describe` of each path, from one child that may take so many bytes and seconds."""
    script = _CHILD.format(tests=str(Path(__file__).parent), memory=memory, seconds=seconds)
    lines = "\n".join(map(str, paths))
    child = subprocess.run([sys.executable, "-c", script], input=lines, capture_output=True, text=True)
    outcomes = [json.loads(line) for line in child.stdout.splitlines()]
    assert child.returncode == 0, (
        f"killed by {-child.returncode} at file {len(outcomes)}: {child.stderr[-2000:]}"
    )
    return outcomes


def in_child(body: str) -> str:
    """Run Python code that may use ``torch``, ``zerocopy`` and ``hostile``, and return what it prints."""
    head = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nimport torch, zerocopy, hostile\n"
    )
    child = subprocess.run([sys.executable, "-c", head + body], capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr[-2000:]
    return child.stdout
