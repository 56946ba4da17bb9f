"""A pytest plugin that writes down what became of every test, as JSON, one object a line.

A line is written as soon as it is known: after a crash or a time-out the record still says which test it was.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import types
import unittest
from pathlib import Path
from typing import Any

import pytest

TRACEBACK_LINES = 16
MAX_COLUMNS = 400


def record(**line: Any) -> None:
    """Append to the record, the file that ``CONFORMANCE_RECORD`` names."""
    with Path(os.environ["CONFORMANCE_RECORD"]).open("a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_configure() -> None:
    _stand_in_for_expecttest()
    import torch

    record(torch=torch.__version__, python=sys.version.split()[0], pytest=pytest.__version__)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        record(not_collected=report.nodeid, tail=_tail(report))


def pytest_runtest_logstart(nodeid: str) -> None:
    record(started=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    outcome: str = report.outcome
    if hasattr(report, "wasxfail"):
        outcome = {"skipped": "xfailed", "passed": "xpassed"}.get(outcome, outcome)
    elif outcome == "failed" and report.when != "call":
        outcome = "error"
    # Setting up and taking down only count when they go wrong, and so do subtests, which newer releases of pytest
    # report one by one under their test's name.
    if outcome == "passed" and report.when != "call":
        return
    if outcome != "failed" and hasattr(report, "context"):
        return
    if outcome in ("failed", "error"):
        record(test=report.nodeid, outcome=outcome, tail=_tail(report))
    else:
        record(test=report.nodeid, outcome=outcome)


def pytest_sessionfinish(exitstatus: int) -> None:
    record(finished=int(exitstatus))


def _stand_in_for_expecttest() -> None:
    """Give torch.testing the class it derives its TestCase from, where the module with it is missing.

    Debian 12 does not have it. The rest of that module compares long texts, which test_serialization.py does not.
    """
    if importlib.util.find_spec("expecttest"):
        return
    module: Any = types.ModuleType("expecttest")
    module.TestCase = type("TestCase", (unittest.TestCase,), {})
    module.ACCEPT = False
    sys.modules["expecttest"] = module


def _tail(report: Any) -> str:
    """Return the end of a traceback, less torch's advice on how to run a test alone, which is wrong here."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", report.longreprtext)  # torch's messages have bold type
    lines = [line for line in text.splitlines() if line.strip(" E")]
    for number, line in enumerate(lines):
        if "To execute this test, run the following" in line:
            del lines[number : number + 3]
            break
    return "\n".join(line[:MAX_COLUMNS] for line in lines[-TRACEBACK_LINES:])
