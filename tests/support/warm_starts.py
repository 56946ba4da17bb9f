"""Runs programs by ``python`` and by ``zerocopy run --warm``, with fork servers of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from zerocopy.launch import control

T = TypeVar("T")
PYTHON = [sys.executable]
# By the script, as users do: "python -m zerocopy" would search the program's folder for its own imports.
WARM = [f"{sysconfig.get_path('scripts')}/zerocopy", "run", "--warm"]
_PATIENCE = 180


class Place:
    """A folder with a program, and the fork servers of a runtime folder within it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # The address of a socket is short, and pytest's folders are numbered and named after tests.
        self.runtime = Path(tempfile.mkdtemp(prefix="warm-"))
        self.environment = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(self.runtime),
            "THE_GROUP": str(os.getpgrp()),
        }
        self.environment.pop("PYTHONUNBUFFERED", None)
        self.was_warm = False
        self.reason = ""

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        for found in self.servers():
            with self._here():
                control.stop(found["socket"])
        self._await(lambda: not self.servers())
        for pid in self._processes():  # one that had just begun, or whose place another took
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self._await(lambda: not self._processes())
        shutil.rmtree(self.runtime, ignore_errors=True)

    @contextlib.contextmanager
    def _here(self) -> Iterator[None]:
        before = os.environ.get("XDG_RUNTIME_DIR")
        os.environ["XDG_RUNTIME_DIR"] = str(self.runtime)
        try:
            yield
        finally:
            del os.environ["XDG_RUNTIME_DIR"]
            if before is not None:
                os.environ["XDG_RUNTIME_DIR"] = before

    def servers(self) -> list[dict[str, Any]]:
        with self._here():
            return list(control.status())

    def prepare(self, text: str) -> None:
        """Run a program once, and wait for the fork server that has its imports."""
        done = self.run(WARM, text)
        assert done.returncode == 0, done.stderr
        self.wait()

    def wait(self, count: int = 1) -> None:
        """Wait until fork servers listen, and none is being started."""
        self._await(lambda: len(self.servers()) >= count and not self._starting())

    def _starting(self) -> bool:
        return bool(self._processes() - {found["pid"] for found in self.servers()})

    def _processes(self) -> set[int]:
        """Return the fork servers of the runtime folder, also those that do not listen yet or any more."""
        found = set()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if b"zerocopy-warm" in path.read_bytes().split(b"\0"):
                    variables = (path.parent / "environ").read_bytes().split(b"\0")
                    if b"XDG_RUNTIME_DIR=" + os.fsencode(self.runtime) in variables:
                        found.add(int(path.parent.name))
        return found

    def _await(self, condition: Any) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "no fork server after three minutes"
            time.sleep(0.05)

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Learn whether a program within the block was forked from a fork server."""
        before = {found["pid"]: found["starts"] for found in self.servers()}
        yield
        after = {found["pid"]: found["starts"] for found in self.servers()}
        self.was_warm = any(after.get(pid, starts) > starts for pid, starts in before.items())
        self.reason = f"starts of fork servers before and after: {before}, {after}"

    def run(
        self, command: list[str], text: str, *arguments: str, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        (self.folder / "program.py").write_text(text)
        with self.counting() if "--warm" in command else contextlib.nullcontext():
            return subprocess.run(
                [*command, "program.py", *arguments],
                cwd=self.folder,
                input=stdin,
                capture_output=True,
                text=True,
                errors="surrogateescape",
                timeout=300,
                env={**self.environment, **variables},
            )

    def assert_same(
        self, text: str, *arguments: str, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Assert that a program does the same by both; return what it did."""
        plain = self.run(PYTHON, text, *arguments, stdin=stdin, **variables)
        warm = self.run(WARM, text, *arguments, stdin=stdin, **variables)
        assert (warm.returncode, warm.stdout, warm.stderr) == (plain.returncode, plain.stdout, plain.stderr)
        return warm

    def until_warm(self, run: Callable[[], T]) -> T:
        """Run until a program was forked. A fork server that a busy machine delays gets time."""
        for _ in range(5):
            found = run()
            if self.was_warm:
                return found
            self.wait()
        raise AssertionError(self.reason)

    def assert_same_and_warm(
        self, text: str, *arguments: str, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Assert the same, and that the program was forked."""
        return self.until_warm(lambda: self.assert_same(text, *arguments, stdin=stdin, **variables))
