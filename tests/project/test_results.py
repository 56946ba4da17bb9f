"""The page of results is made from the runs that are kept."""

from __future__ import annotations

import re

import pytest

from benchmarks import page

UPDATE = "python -m benchmarks.page makes docs/results.md anew"


def test_page_is_made_from_the_runs() -> None:
    assert page.text() == page.PAGE.read_text(), UPDATE


@pytest.mark.parametrize(("name", "content"), list(page.runs()))
def test_run_names_its_machine_and_has_a_picture(name: str, content: dict[str, object]) -> None:
    environment = content["environment"]
    assert isinstance(environment, dict)
    assert {"processor", "kernel", "cores", "memory_gib", "torch", "python"} <= environment.keys()
    assert not content["quick"]
    for image in re.findall(r"\]\((images/results-[^)]+)\)", page.text()):
        assert (page.PAGE.parent / image).is_file(), UPDATE
