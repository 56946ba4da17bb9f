"""Puts small faults into the sources, one at a time, and shows which of them the tests notice.

    scripts/mutants [--torch RELEASE] [--seed N] [--python N] [--core N] [--only NAME] [--fast-only] [--list]

Files are chosen at random by their size, and a place in each: a comparison is flipped, a check is dropped, a number
is off by one, an argument is left out. The fast tier runs until its first failure, the tests of the same room first. A
fault that it misses is given to all tests. The work is done in build/mutants, on copies. Prints a table, and exits
with 0 if the fast tier noticed 85 % of the faults.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutants"
SECONDS = 1200  # a run that takes longer hangs, which is noticed

FLIPS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
CORE_FAULTS = [
    *((rf"(?<= ){re.escape(old)}(?= )", new) for old, new in
      {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&"}.items()),
    (r" [+-] 1\b", ""),
    (r"\bif \((?!constexpr)(?=.*\) (?:throw|return|fail|\{))", "if (false && "),
]  # fmt: skip


class Fault(NamedTuple):
    """A text of a file that another takes the place of."""

    path: Path
    begin: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        return source[: self.begin] + self.text + source[self.end :]

    def __str__(self) -> str:
        source = (ROOT / self.path).read_text()
        old = source[self.begin : self.end].replace("\n", " ")
        line = source.count("\n", 0, self.begin) + 1
        return f"{self.path}:{line}: {old[:60]!r} -> {self.text[:60]!r}"


def python_faults(path: Path) -> Iterator[Fault]:
    """Yield the faults that can be put into a Python file."""
    source = path.read_text()
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    encoded = source.encode()

    def fault(begin: tuple[int, int], end: tuple[int, int], text: str) -> Fault:
        first, last = (len(encoded[: starts[line - 1] + column].decode()) for line, column in (begin, end))
        return Fault(path.relative_to(ROOT), first, last, text)

    def whole(node: ast.expr, text: str) -> Fault:
        return fault((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0), text)

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in FLIPS:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            if "TYPE_CHECKING" not in left:
                yield whole(node, f"({left} {FLIPS[type(node.ops[0])]} {right})")
        elif (
            isinstance(node, ast.If)
            and not node.orelse
            and isinstance(node.body[-1], (ast.Raise, ast.Return))
        ):
            yield whole(node.test, "False")
        elif isinstance(node, ast.BoolOp):
            other = " or " if isinstance(node.op, ast.And) else " and "
            yield whole(node, "(" + other.join(f"({ast.unparse(value)})" for value in node.values) + ")")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield whole(node, f"({ast.unparse(node.operand)})")
        elif isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and node.right.value == 1:
            yield whole(node, f"({ast.unparse(node.left)})")
        elif isinstance(node, ast.Call) and node.keywords and node.keywords[-1].arg:
            call = ast.Call(node.func, node.args, node.keywords[:-1])
            yield whole(node, ast.unparse(call))


def core_faults(path: Path) -> Iterator[Fault]:
    """Yield the faults that can be put into a C++ file."""
    at = 0
    for line in path.read_text().splitlines(keepends=True):
        code = re.sub(r'"(\\.|[^"])*"', lambda text: " " * len(text[0]), line).partition("//")[0]
        if not code.lstrip().startswith(("#", "template", "static_assert", "assert")):
            for pattern, text in CORE_FAULTS:
                for match in re.finditer(pattern, code):
                    yield Fault(path.relative_to(ROOT), at + match.start(), at + match.end(), text)
        at += len(line)


def chosen(files: list[Path], faults: object, number: int, chance: random.Random) -> list[Fault]:
    """Return faults of files that are chosen by their size."""
    sizes = [path.stat().st_size for path in files]
    found: list[Fault] = []
    while len(found) < number:
        (path,) = chance.choices(files, sizes)
        there = list(faults(path))  # type: ignore[operator]
        if there and (fault := chance.choice(there)) not in found:
            found.append(fault)
    return found


class Bench:
    """A copy of the installed package and of the sources, into which faults are put."""

    def __init__(self, torch: str, fast_only: bool) -> None:
        self.fast_only = fast_only
        venv = subprocess.check_output(
            [ROOT / "scripts/setup", "--torch", torch, "--venv"], text=True
        ).strip()
        self.python = ROOT / venv / "bin" / "python"
        (installed,) = (ROOT / venv).glob("lib/python3*/site-packages/zerocopy")
        self.site, self.source = WORK / "site", WORK / "source"
        shutil.rmtree(self.site, ignore_errors=True)
        shutil.copytree(installed, self.site / "zerocopy")
        self.environment = os.environ | {
            "PYTHONPATH": str(self.site),
            "MALLOC_PERTURB_": "165",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def failure(self, *arguments: str) -> str:
        """Run tests until the first that fails, and return its name, or nothing where all pass."""
        options = ["-x", "-q", "-n", "2", "-p", "no:cacheprovider", "--dist", "loadfile", *arguments]
        with (WORK / "tests.log").open("w+") as log:
            process = subprocess.Popen(
                [self.python, "-m", "pytest", *options], cwd=ROOT, env=self.environment, start_new_session=True,
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                if process.wait(SECONDS) in (0, 5):
                    return ""
            except subprocess.TimeoutExpired:
                return f"no end within {SECONDS} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
            log.seek(0)
            failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", log.read(), re.MULTILINE)
        return failed[1] if failed else f"pytest ended with {process.returncode}"

    def verdict(self, room: str) -> tuple[str, str]:
        """Return which tests notice the fault that is there, and the first that does."""
        nearest = ROOT / "tests" / room
        if nearest.is_dir() and (name := self.failure("-m", "not slow", str(nearest))):
            return "fast", name
        if name := self.failure("-m", "not slow"):
            return "fast", name
        if not self.fast_only and (name := self.failure("-m", "slow")):
            return "all", name
        return "none", ""

    def python_verdict(self, fault: Fault) -> tuple[str, str]:
        name = fault.path.relative_to("python")
        original = (ROOT / fault.path).read_text()
        (self.site / name).write_text(fault.apply(original))
        try:
            return self.verdict(name.parts[1])
        finally:
            (self.site / name).write_text(original)

    def build(self) -> bool:
        """Build the copy of the sources. A fault that does not compile counts as none."""
        build = WORK / "build"
        options = [
            "-G",
            "Ninja",
            "-Wno-dev",
            f"-DPython_EXECUTABLE={self.python}",
            "-DZEROCOPY_BUILD_TESTS=ON",
        ]
        configure = ["cmake", "-S", self.source, "-B", build, *options]
        targets = ["cmake", "--build", build, "--target", "_C", "_core", "core_tests"]
        for command in (configure, targets):
            if subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
            ).returncode:
                return False
        for module in build.glob("_*.so"):
            shutil.copy2(module, self.site / "zerocopy")
        return True

    def core_verdict(self, fault: Fault) -> tuple[str, str]:
        for name in ("csrc", "cmake", "tests/core", "tests/fuzz", "benchmarks/engine"):
            shutil.copytree(ROOT / name, self.source / name, dirs_exist_ok=True)
        shutil.copy2(ROOT / "CMakeLists.txt", self.source)
        (self.source / fault.path).write_text(fault.apply((ROOT / fault.path).read_text()))
        try:
            if not self.build():
                return "does not compile", ""
            try:
                command = [WORK / "build/tests/core/core_tests", "--gtest_brief=1"]
                tests = subprocess.run(command, timeout=SECONDS, check=False, capture_output=True)
            except subprocess.TimeoutExpired:
                return "fast", f"core_tests: no end within {SECONDS} s"
            return ("fast", "core_tests") if tests.returncode else self.verdict("hostile")
        finally:
            shutil.copy2(ROOT / fault.path, self.source / fault.path)


def main() -> int:
    """Put the faults in, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch", default="2.13.0")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", type=int, default=28)
    parser.add_argument("--core", type=int, default=12)
    parser.add_argument("--only", default="", help="faults in paths that have this in them")
    parser.add_argument(
        "--fast-only", action="store_true", help="give what the fast tier misses to no other test"
    )
    parser.add_argument("--list", action="store_true", help="print the faults, and put none in")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    python = sorted(path for path in (ROOT / "python").rglob("*.py") if path.name != "_version.py")
    core = sorted(
        path for path in (ROOT / "csrc").rglob("*.cpp") if path.parent.name not in ("bridge", "watch")
    )
    faults = chosen(python, python_faults, options.python, chance) + chosen(
        core, core_faults, options.core, chance
    )
    faults = [fault for fault in faults if options.only in str(fault.path)]
    if options.list:
        print(*faults, sep="\n")
        return 0
    bench = Bench(options.torch, options.fast_only)
    verdicts = []
    for fault in faults:
        begin = time.monotonic()
        put_in = bench.core_verdict if fault.path.suffix == ".cpp" else bench.python_verdict
        verdict, test = put_in(fault)
        verdicts.append(verdict)
        print(f"{verdict:16s} {time.monotonic() - begin:5.0f} s  {fault}  {test}", flush=True)
    counted = [verdict for verdict in verdicts if verdict != "does not compile"]
    fast, every = counted.count("fast"), len(counted) - counted.count("none")
    print(f"noticed by the fast tier: {fast} of {len(counted)}; by all tests: {every}")
    return 0 if fast >= 0.85 * len(counted) else 1


if __name__ == "__main__":
    raise SystemExit(main())
