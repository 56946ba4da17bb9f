"""Compares two runs of somebody's own tests: on stock torch, and with zerocopy in its place.

The rule is that the tests that fail with zerocopy are among those that fail without it. `scripts/conformance` runs it.
Exits with 0 if the rule holds, with 1 if not, or if either run says too little to tell.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FAILING = ("failed", "error", "crashed", "timed out", "not run")
# Of several outcomes of one test (its call, its subtests, its taking down) the first of these is the test's.
OUTCOMES = (*FAILING, "skipped", "xfailed", "xpassed", "passed")
TIMED_OUT = (124, 137)  # what timeout(1) exits with


@dataclass
class Run:
    """The record of one run."""

    outcomes: dict[str, str] = field(default_factory=dict)
    tails: dict[str, str] = field(default_factory=dict)
    loads: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    patched: bool | None = None
    alike: dict[str, int] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)

    def failing(self) -> set[str]:
        return {test for test, outcome in self.outcomes.items() if outcome in FAILING}

    def counts(self) -> dict[str, int]:
        counted = Counter(self.outcomes.values())
        return {outcome: counted[outcome] for outcome in reversed(OUTCOMES) if counted[outcome]}

    def served(self) -> int:
        return sum(loads["served"] for loads in self.loads.values())

    def total(self, what: str) -> Counter[str]:
        """Add up the loads that were "refused" (by error) or "handed_over" (by reason)."""
        total: Counter[str] = Counter()
        for loads in self.loads.values():
            total.update(loads[what])
        return total


def read(path: Path, status: int) -> Run:
    """Read the record of a run that exited with `status`."""
    run = Run()
    under_way = None
    finished = False
    lines = path.read_text().splitlines() if path.exists() else []
    for line in map(json.loads, lines):
        if "started" in line:
            under_way = line["started"]
            # Until a report says otherwise.
            run.outcomes[under_way] = "timed out" if status in TIMED_OUT else "crashed"
        elif "test" in line:
            test, outcome = line["test"], line["outcome"]
            if test == under_way:
                under_way = None
                run.outcomes[test] = outcome
            run.outcomes[test] = min(run.outcomes[test], outcome, key=OUTCOMES.index)
            if "tail" in line:
                run.tails.setdefault(test, line["tail"])
        elif "loads" in line:
            run.loads[line.pop("loads")] = line
        elif "not_collected" in line:
            run.trouble.append(f"{line['not_collected']} could not be collected:\n{line['tail']}")
        elif "patched" in line:
            run.patched = line["patched"]
        elif "alike" in line:
            run.alike = line
        elif "finished" in line:
            finished = True
        else:
            run.versions.update(line)
    if not finished:
        run.trouble.append(f"it ended early, with status {status}, in {under_way or 'no test'}")
    elif status not in (0, 1):
        run.trouble.append(f"pytest exited with status {status}")
    if not run.outcomes:
        run.trouble.append("it ran no test")
    return run


def cause(tail: str | None) -> str:
    """Return what a traceback ends with, less what differs from run to run."""
    lines = (tail or "").splitlines()
    return re.sub(r"0x[0-9a-f]+|\btmp\w+|\d+", "N", lines[-1]) if lines else ""


def indented(text: str) -> str:
    return "".join(f"      {line}\n" for line in text.splitlines())


def report(stock: Run, patched: Run) -> tuple[dict[str, Any], str]:
    """Return what there is to say of two runs, as data and as text."""
    not_run = stock.outcomes.keys() - patched.outcomes.keys()
    patched.outcomes.update(dict.fromkeys(sorted(not_run), "not run"))
    broken = sorted(patched.failing() - stock.failing())
    mended = sorted(stock.failing() - patched.failing())
    in_both = sorted(stock.failing() & (patched.failing() - not_run))
    # Neither good nor bad by itself, but nobody should have to find it by comparing lists.
    changed = sorted(
        test
        for test, outcome in patched.outcomes.items()
        if test in stock.outcomes
        and outcome != stock.outcomes[test]
        and not {outcome, stock.outcomes[test]} & set(FAILING)
    )

    trouble = [f"the stock run: {text}" for text in stock.trouble]
    trouble += [f"the patched run: {text}" for text in patched.trouble]
    served = patched.served()
    if not patched.patched:
        trouble.append("the patched run: the patch was not in force at its end")
    if not served:
        trouble.append("the patched run: zerocopy served no load, so nothing was compared")

    refused, handed_over = patched.total("refused"), patched.total("handed_over")
    by_test = {test: loads for test, loads in patched.loads.items() if any(loads.values())}
    served_tests = sum(loads["served"] > 0 for loads in by_test.values())
    data = {
        "conforms": not (broken or trouble),
        "versions": stock.versions,
        "stock": {"counts": stock.counts(), "tests": stock.outcomes},
        "patched": {"counts": patched.counts(), "tests": patched.outcomes},
        "loads": {
            "served": served,
            "served_tests": served_tests,
            "refused": dict(refused.most_common()),
            "handed_over": dict(handed_over.most_common()),
            "by_test": by_test,
        },
        "broken": {
            test: {
                "stock": stock.outcomes.get(test, "not run"),
                "patched": patched.outcomes[test],
                "traceback": patched.tails.get(test, ""),
            }
            for test in broken
        },
        "read_alike": patched.alike,
        "mended": mended,
        "changed": {test: [stock.outcomes[test], patched.outcomes[test]] for test in changed},
        "failing_in_both": {
            test: {"stock": stock.tails.get(test, ""), "patched": patched.tails.get(test, "")}
            for test in in_both
        },
        "trouble": trouble,
    }

    text = ""
    for name, run in (("stock", stock), ("patched", patched)):
        text += f"{name + ':':9}" + ", ".join(f"{n} {outcome}" for outcome, n in run.counts().items()) + "\n"
    text += (
        f"loads:   {served} served by zerocopy, in {served_tests} tests; {refused.total()} refused by it; "
    )
    text += f"{handed_over.total()} handed over to torch\n"
    if patched.alike:
        text += "files:   {alike} read alike by both, {refused_by_both} refused by both\n".format(
            **patched.alike
        )
    for title, reasons in (("refused", refused), ("handed over", handed_over)):
        for reason, times in reasons.most_common():
            text += f"  {times:5} {title}: {reason}\n"
    differently = [test for test in in_both if cause(stock.tails.get(test)) != cause(patched.tails.get(test))]
    for title, tests in (
        ("fails in both", [test for test in in_both if test not in differently]),
        ("fails in both, differently", differently),
        ("fails on stock torch only", mended),
        ("has another outcome", changed),
    ):
        for test in tests:
            text += f"{title}: {test} ({stock.outcomes[test]}, {patched.outcomes[test]})\n"
    if not_run:
        text += f"BROKEN: {len(not_run)} tests were not run, of which the first is {min(not_run)}\n"
    for test in sorted(set(broken) - not_run):
        text += f"BROKEN: {test} ({stock.outcomes.get(test, 'not run')}, {patched.outcomes[test]})\n"
        text += indented(patched.tails.get(test, ""))
    for line in trouble:
        first, _, rest = line.partition("\n")
        text += f"TROUBLE: {first}\n" + indented(rest)
    return data, text


def main() -> int:
    """Compare what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="with stock.jsonl and patched.jsonl")
    parser.add_argument("--stock-status", type=int, required=True, help="what the stock run exited with")
    parser.add_argument("--patched-status", type=int, required=True)
    parser.add_argument("--source", required=True, help="where the tests are from, for the record")
    parser.add_argument("--json", type=Path, required=True, help="write everything there")
    arguments = parser.parse_args()

    data, text = report(
        read(arguments.folder / "stock.jsonl", arguments.stock_status),
        read(arguments.folder / "patched.jsonl", arguments.patched_status),
    )
    arguments.json.write_text(json.dumps({"source": arguments.source, **data}, indent=1) + "\n")
    print(text, end="")
    return 0 if data["conforms"] else 1


if __name__ == "__main__":
    sys.exit(main())
