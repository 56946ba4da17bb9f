"""Memory and page cache that one use of a file takes, counted by the kernel in a separate process.

Run as a program it loads a file once, when it is told to, and prints its memory before and after; `measure_use` runs it
and watches it from outside:

- "peak": most private memory (``RssAnon``) beyond what there was before, read twice a millisecond.
- "resident": most resident memory beyond that (``VmHWM``), with the pages of the file that are mapped. The kernel keeps
  this one, so nothing is too short for it.
- "read": bytes of the file in the page cache afterwards, of one that was not there before.
"""

from __future__ import annotations

import gc
import json
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..rows import LOADERS
from ..system.pagecache import cached_bytes, drop
from .memory import import_for

EVERY = 0.0005  # seconds
ROOT = Path(__file__).resolve().parents[2]


def measure_use(loader: str, path: Path, columns: tuple[str, ...]) -> dict[str, Any]:
    """Load a file in a fresh process; return bytes by column, and what they were made of.

    Parameters
    ----------
    loader : str
        A name of `rows.LOADERS`.
    path : Path
        The file.
    columns : tuple of str
        One of "peak", "resident", "read". Before "read" the file is dropped from the page cache.
    """
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.engine.use", loader, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        before = json.loads(process.stdout.readline() or "null")
        if before is not None and "read" in columns:
            drop(path)
            before["cached"] = cached_bytes(path)
        most, samples = 0, 0
        process.stdin.write("now\n")
        process.stdin.flush()
        while not select.select([process.stdout], [], [], EVERY)[0]:
            most, samples = max(most, _status(process.pid)["RssAnon"]), samples + 1
        after = json.loads(process.stdout.readline() or "null")
    if after is None:
        raise subprocess.CalledProcessError(process.returncode, command)
    found: dict[str, Any] = {"before": before, "after": after, "most": most, "samples": samples}
    found["peak"] = max(most, after["RssAnon"]) - before["RssAnon"]
    found["resident"] = after["VmHWM"] - before["VmRSS"]
    if "read" in columns:
        found["read"] = cached_bytes(path) - before["cached"]
    return found


def _status(pid: int | str) -> dict[str, int]:
    """Return the kernel's counters of a process, in bytes; zeros for one that has ended."""
    text = Path(f"/proc/{pid}/status").read_text()
    kilobytes = dict(re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE))
    return {name: int(kilobytes.get(name, 0)) * 1024 for name in ("VmRSS", "VmHWM", "RssAnon", "RssFile")}


def main() -> None:
    """Prepare, wait for a line, load, print."""
    loader, path = sys.argv[1:]
    import_for(loader)
    call = LOADERS[loader].call(path)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    print(json.dumps(_status("self")), flush=True)
    sys.stdin.readline()
    result = call()
    print(json.dumps(_status("self")), flush=True)
    del result


if __name__ == "__main__":
    main()
