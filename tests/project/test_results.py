"""The page of results is made from the runs that are kept."""

from __future__ import annotations

import re

from benchmarks import page

UPDATE = "python -m benchmarks.page makes docs/results.md anew"
ENVIRONMENT = {"processor", "kernel", "cores", "memory_gib", "torch", "python"}


def test_page_is_made_from_the_runs() -> None:
    assert page.text() == page.PAGE.read_text(), UPDATE
    images = re.findall(r"\]\((images/results-[^)]+)\)", page.text())
    assert not [image for image in images if not (page.PAGE.parent / image).is_file()], UPDATE


def test_each_run_names_its_machine() -> None:
    runs = dict(page.runs())
    assert runs
    for name, run in runs.items():
        assert not run["quick"] and run["environment"].keys() >= ENVIRONMENT, name
