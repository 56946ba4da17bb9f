"""Runs functions of tests/support/sources.py as a loader would, and prints what each depends on.

A line of JSON is the name of a function and its argument. Each runs in a child of its own, and prints a line of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback

import numpy  # noqa: F401 - as the fork server has it

from zerocopy.share.conditions.file_tracker import Reading
from zerocopy.share.worker import worker

FUNCTIONS = "tests.support.sources"


def note(name: str, folder: str) -> str:
    try:
        with Reading({}) as reading:
            getattr(importlib.import_module(FUNCTIONS), name)(folder)
        return json.dumps(reading.conditions().as_body())
    except BaseException:
        return json.dumps({"error": traceback.format_exc()})


def main() -> None:
    worker.import_all()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.write(1, f"{note(*json.loads(line))}\n".encode())
            os._exit(0)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
