"""A Python in which torch is imported, and zerocopy as a rule, and which forks for each piece of code.

A test that may end in a signal, or is about a process's end, needs a process of its own; here one costs some
milliseconds instead of an import of torch. The code runs as ``__main__``. At its end the process joins threads, runs
what is registered for the end, and leaves. With ``whole_end`` the interpreter also takes itself down, which takes 25
times as long as all else: every object is freed, and for that a page copied.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from sanitizer import SANITIZED

# Collections take a seventh of the time of importing torch, and free nothing.
IMPORT = "import gc; gc.disable()\n"
SERVE = """
import gc, json, os, signal, sys, weakref
import torch

def orders():
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            for finalizer in () if order["whole_end"] else finalizers:
                finalizer.atexit = False
            return order
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    sys.exit()

finalizers = list(getattr(weakref.finalize, "_registry", ()))  # of torch's own libraries of operators
gc.freeze()  # collections leave torch's own hundred thousand objects alone: half of the time of an end
gc.enable()
order = orders()
signal.alarm(order["seconds"])
for name, stream, flags in (("/dev/null", 0, os.O_RDONLY), ("stdout", 1, os.O_WRONLY), ("stderr", 2, os.O_WRONLY)):
    descriptor = os.open(os.path.join(order["folder"], name), flags | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, stream)
    os.close(descriptor)
sys.argv[1:] = order["arguments"]
os.environ.clear()
os.environ.update(order["environment"])
os.chdir(order["cwd"])
code, whole_end = compile(order["code"], "<child>", "exec"), order["whole_end"]
del order, orders, name, stream, flags, descriptor, finalizers, weakref
try:
    exec(code)
except BaseException as error:
    if whole_end or isinstance(error, KeyboardInterrupt):
        raise
    import sys
    is_exit = isinstance(error, SystemExit)
    status = (error.code or 0) if is_exit else 1
    if is_exit and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    if not is_exit:
        sys.excepthook(type(error), error, error.__traceback__)
else:
    status = 0
if not whole_end:
    import atexit, os, sys, threading
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)
"""
ZEROCOPY = """
import zerocopy
for public in zerocopy.__all__:  # a child may give up its privileges, and could then import nothing
    getattr(zerocopy, public)
del public
"""


class ForkServer:
    """Runs code in forked children, one at a time.

    `imports` are further modules that the children find imported. Without `has_zerocopy` they have torch alone, to
    import zerocopy themselves. `environment` is added to the environment.
    """

    def __init__(
        self, folder: Path, imports: Sequence[str] = (), has_zerocopy: bool = True, **environment: str
    ) -> None:
        self._folder = folder
        lines = [f"import {name}\n" for name in imports]
        self._process = subprocess.Popen(
            [sys.executable, "-c", "".join([IMPORT, *lines, ZEROCOPY if has_zerocopy else "", SERVE])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def run(
        self,
        code: str,
        *arguments: object,
        timeout: float = 180,
        whole_end: bool = False,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run code; the arguments are its ``sys.argv[1:]``. After `timeout` seconds SIGALRM ends it."""
        assert self._process.stdin and self._process.stdout
        order = {
            "code": textwrap.dedent(code),
            "arguments": [str(argument) for argument in arguments],
            "folder": str(self._folder),
            "whole_end": whole_end,
            "seconds": int(timeout * (5 if SANITIZED else 1)),
            "environment": {**os.environ, **environment},
            "cwd": str(Path.cwd()),
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        stdout, stderr = (
            (self._folder / name).read_text(errors="surrogateescape") for name in ("stdout", "stderr")
        )
        return subprocess.CompletedProcess(code, status, stdout, stderr)

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=180)
