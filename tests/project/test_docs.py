"""Links and anchors of the Markdown pages lead somewhere, and prose keeps to its width."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
GENERATED = ROOT / "docs" / "reference"
MAX_WIDTH = 100
MAX_README_LINES = 150

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a page that are not in a block of code."""
    in_code = False
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield number, line


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = (line.lstrip("#").strip().lower() for _, line in prose(page) if line.startswith("#"))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


@each_page
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for number, line in prose(page):
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            found = (page.parent / path).resolve() if path else page
            assert found.exists(), f"{page.name}:{number} links to {target}"
            if anchor:
                assert anchor in anchors(found), f"{page.name}:{number} links to {target}"


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if GENERATED not in page.parents and page.name != "CHANGELOG.md"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_prose_wraps(page: Path) -> None:
    # A table's row, HTML and a link cannot be broken.
    too_wide = [
        f"{page.name}:{number}"
        for number, line in prose(page)
        if len(line) > MAX_WIDTH and not line.lstrip().startswith(("|", "<")) and " " in line.strip(" -")
    ]
    assert not too_wide


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < MAX_README_LINES
