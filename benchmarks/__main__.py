"""The command line: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import argparse
import gc
import sys
import warnings
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from .data.files import GIB, STREAM, Files, default_folder
from .engine.cases import COLUMNS, Case
from .engine.ceiling import measure_ceiling
from .engine.environment import describe
from .engine.kernels import load_kernels
from .engine.measure import MIN_ROUNDS
from .engine.plot import write_plot
from .engine.report import ceiling_text, checks_text, heading, table, write_json
from .engine.runner import DifferentError, Settings, missing, run_case
from .page import publish
from .rows import AREAS, CASES

_AREAS = {area.__name__.rpartition(".")[2]: area.CASES for area in AREAS}
_SUITES = {"full": CASES, "quick": CASES, **_AREAS}
SHRINK = 8  # the suite `quick` divides the sizes by this


def main() -> int:
    """Run the chosen cases; return 0, 1 for a wrong result, 2 for no cases."""
    args = _parse()
    cases = dict.fromkeys(case for name in args.suite for case in _SUITES[name])
    chosen = [case for case in cases if any(fnmatch(case.name, name) for name in args.names or ["*"])]
    if args.list:
        _list(chosen)
        return 0
    shrink = SHRINK if args.quick else 1
    files = Files(args.files or default_folder(), shrink, round(args.stream * GIB))
    try:
        runnable = [case for case in chosen if not _skipped(case, files)]
        if not runnable:
            print("no such case, or none that can run here; --list shows them", file=sys.stderr)
            return 2
        return _run(runnable, files, args)
    finally:
        if not args.keep:
            files.delete_made()


def _run(cases: list[Case], files: Files, args: argparse.Namespace) -> int:
    warnings.simplefilter("ignore")  # some releases warn at loads; that is not what is measured
    settings = Settings(3 if args.quick else args.rounds, tuple(args.columns), args.quick)
    kernels = load_kernels()
    ceiling, machine = measure_ceiling(kernels), describe(files.folder)
    gc.freeze()  # so that the collections between rounds see what was loaded and not all of torch
    lines: list[dict[str, Any]] = []
    wrong = []
    for case in cases:
        print(f"{case.name}: {_sides(case)}", file=sys.stderr, flush=True)
        try:
            lines += run_case(case, files, kernels, settings)
        except DifferentError as error:
            wrong.append(f"DIFFERENT: {case.name}: {error}")
            print(wrong[-1], file=sys.stderr)
    print(heading(machine), ceiling_text(ceiling), f"readers: {kernels.name}", "", sep="\n")
    print(table(lines, ceiling), checks_text(lines), sep="\n\n")
    about = {"environment": machine, "ceiling_gb_s": ceiling, "readers": kernels.name, "quick": args.quick}
    if args.publish:
        publish(args.publish, about | {"lines": lines})
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        write_json(args.out / "results.json", about | {"lines": lines})
        print("", f"JSON: {args.out / 'results.json'}", sep="\n")
        print(write_plot(args.out / "results.svg", lines, heading(machine)))
    print(*wrong, sep="\n")
    return int(bool(wrong))


def _sides(case: Case) -> str:
    return f"{case.ours} against {case.peer}" if case.peer else str(case.ours)


def _skipped(case: Case, files: Files) -> bool:
    reason = missing(case, files)
    if reason:
        print(f"{case.name}: skipped, {reason}", file=sys.stderr)
    return bool(reason)


def _list(cases: list[Case]) -> None:
    for case in cases:
        print(f"{case.name:24}{_sides(case)}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure zerocopy and its peers."
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="cases to run, * and ? allowed (default: all)")
    add("--list", action="store_true", help="list the cases and stop")
    add("--rounds", type=int, default=MIN_ROUNDS, help="rounds at least (default: %(default)s)")
    add("--columns", nargs="+", choices=COLUMNS, default=COLUMNS, help="columns to time (default: all)")
    add("--out", type=Path, metavar="DIR", help="write results.json and results.svg there")
    add(
        "--files", type=Path, metavar="DIR", help="where the measured files lie (default: a temporary folder)"
    )
    add(
        "--stream",
        type=float,
        default=STREAM / GIB,
        metavar="GIB",
        help="size of the file that stream/layers passes through (default: %(default)g)",
    )
    add(
        "--publish",
        metavar="NAME",
        help="keep the results as benchmarks/results/NAME.json, for docs/results.md",
    )
    add("--keep", action="store_true", help="leave the files made for the next run (about 8 GB)")
    add(
        "--suite",
        nargs="+",
        choices=_SUITES,
        default=["full"],
        help="full (default): all; quick: small files, 3 rounds, a smoke test; or areas: "
        f"{', '.join(_AREAS)}",
        metavar="SUITE",
    )
    args = parser.parse_args()
    args.quick = "quick" in args.suite
    if args.rounds < MIN_ROUNDS:
        parser.error(f"fewer than {MIN_ROUNDS} rounds say little; --suite quick is the smoke test")
    return args


if __name__ == "__main__":
    sys.exit(main())
