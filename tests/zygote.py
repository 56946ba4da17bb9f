"""A Python in which torch and zerocopy are imported, and which forks for each piece of code.

A test that may end in a signal, or is about a process's end, needs a process of its own; here one costs some
milliseconds instead of an import of torch. The code runs as ``__main__``, and its end is that of the interpreter.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

# After a minute a child is ended by SIGALRM.
SERVE = """
import gc, json, os, signal, sys
import torch, zerocopy

def orders():
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            return order
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    sys.exit()

gc.freeze()  # collections leave torch's own hundred thousand objects alone: half of the time of an end
order = orders()
signal.alarm(60)
for name, stream, flags in (("/dev/null", 0, os.O_RDONLY), ("stdout", 1, os.O_WRONLY), ("stderr", 2, os.O_WRONLY)):
    descriptor = os.open(os.path.join(order["folder"], name), flags | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, stream)
    os.close(descriptor)
sys.argv[1:] = order["arguments"]
code = compile(order["code"], "<child>", "exec")
del order, orders, name, stream, flags, descriptor
exec(code)
"""


class Zygote:
    """Runs code in forked children, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run code; the arguments are its ``sys.argv[1:]``."""
        assert self._process.stdin and self._process.stdout
        order = {
            "code": textwrap.dedent(code),
            "arguments": [str(argument) for argument in arguments],
            "folder": str(self._folder),
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        stdout, stderr = ((self._folder / name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(code, status, stdout, stderr)

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)
