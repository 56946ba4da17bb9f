"""The law of docs/security.md: memory and time in proportion to the file, at each way in to a checkpoint."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "support")]

import engine  # noqa: E402
import load_fuzz  # noqa: E402
import refusals  # noqa: E402
import torch  # noqa: E402
from sanitizer import SANITIZED  # noqa: E402

import zerocopy  # noqa: E402
from zerocopy import cli  # noqa: E402

FIXED, TIMES = 64 << 20, 20
#: AddressSanitizer keeps freed memory, by default so much.
KEPT = 512 << 20 if SANITIZED else 0
#: Of the processor, which a sanitizer has work ten times as long.
SECONDS, SECONDS_A_BYTE = (10.0, 1e-5) if SANITIZED else (1.0, 1e-6)
_INFLATED = re.compile(rb"PK\x01\x02")

ENTRIES: dict[str, Callable[[str], Any]] = {
    "load": zerocopy.load,
    "lazy_load": zerocopy.lazy_load,
    "open": lambda path: list(zerocopy.open(path)),
    "explain": lambda path: str(zerocopy.explain(path)),
    "tree": lambda path: zerocopy.open(path).tree(),
    "metadata": lambda path: zerocopy.open(path).metadata(),
    "convert": lambda path: zerocopy.convert(path, f"{path}.converted.pt", dtype=torch.float64),
    "scan": lambda path: cli.main(["scan", path]),
    "verify": lambda path: cli.main(["verify", path]),
}


def _peak() -> int:
    """Return the most memory that was resident since it was last forgotten."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10  # type: ignore[index]


def _size(data: bytes) -> int:
    """Return the bytes of a file, those that are deflated as they inflate: by what its directory claims."""
    claimed = [
        int.from_bytes(data[at.start() + 24 : at.start() + 28], "little") for at in _INFLATED.finditer(data)
    ]
    return len(data) + min(sum(claimed), 1032 * len(data))


def check(data: bytes) -> str:
    """Try one way in, which the input's checksum chooses."""
    name, entry = list(ENTRIES.items())[zlib.crc32(data) % len(ENTRIES)]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = os.path.join(folder, "f.pt")
        Path(path).write_bytes(data)
        Path("/proc/self/clear_refs").write_text("5")
        before, begin = _peak(), time.process_time()
        outcome = "loaded"
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                entry(path)
            except (*refusals.CLEAN, RuntimeError, ValueError, SystemExit):  # convert: nothing to write
                outcome = "refused"
        seconds, grown = time.process_time() - begin, _peak() - before
    size = _size(data)
    assert grown <= FIXED + TIMES * size + KEPT, f"{name}: {grown} bytes of a file of {size}"
    assert seconds <= SECONDS + SECONDS_A_BYTE * size, f"{name}: {seconds:.1f} s of a file of {size} bytes"
    return outcome


TARGET = engine.Target("law", load_fuzz.seeds, load_fuzz.mutate, check)

if __name__ == "__main__":
    engine.main(TARGET)
