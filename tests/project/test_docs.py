"""Links and anchors of the Markdown pages lead somewhere, and prose keeps to its width."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from prose import ROOT, text

# Pages that scripts/docs makes are not in the repository.
MADE = {ROOT / f"docs/reference/{name}.md" for name in ("attacks", "differences", "messages", "objects")}
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")} - MADE)
MAX_WIDTH = 100
MAX_README_LINES = 110
MAX_WORDS, MAX_WORDS_OF_A_PAGE = 22_000, 2_000
MAX_LINES_BEFORE_AN_EXAMPLE = 30
# Pages that a program makes, or that only list names.
LISTS = {ROOT / f"docs/{name}.md" for name in ("api", "results")}
GUIDES = sorted({*ROOT.glob("docs/*.md")} - LISTS)


@functools.cache
def prose(page: Path) -> list[tuple[int, str]]:
    """Return the numbered lines of a page that are not in a block of code."""
    found, in_code = [], False
    for number, line in enumerate(text(page).splitlines(), start=1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            found.append((number, line))
    return found


@functools.cache
def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = (line.lstrip("#").strip().lower() for _, line in prose(page) if line.startswith("#"))
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings() -> None:
    dead = []
    for page in PAGES:
        for number, line in prose(page):
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                path, _, anchor = target.partition("#")
                found = (page.parent / path).resolve() if path else page
                is_there = "://" in target or (found.exists() and found not in MADE)
                if not is_there or (anchor and "://" not in target and anchor not in anchors(found)):
                    dead.append(f"{page.relative_to(ROOT)}:{number} links to {target}")
    assert not dead


def test_prose_wraps() -> None:
    # A table's row, HTML and a link cannot be broken.
    too_wide = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in PAGES
        if page.name != "CHANGELOG.md"
        for number, line in prose(page)
        if len(line) > MAX_WIDTH and not line.lstrip().startswith(("|", "<")) and " " in line.strip(" -")
    ]
    assert not too_wide


def test_readme_is_short() -> None:
    assert len(text(ROOT / "README.md").splitlines()) <= MAX_README_LINES


def test_front_page_has_an_answer_for_each_of_twenty_questions() -> None:
    front = ROOT / "docs/index.md"
    rows = re.findall(r"^\| (.+?) \| \[([\w.-]+)\]\((\S+)#\S+\) \|$", text(front), flags=re.MULTILINE)
    assert len(rows) >= 20
    assert not [row for row in rows if (front.parent / row[2]).name != row[1]]


def test_guides_keep_their_measure() -> None:
    """Words of prose and examples: a table is looked up, and not read."""
    words = {
        page.name: sum(len(line.split()) for line in text(page).splitlines() if not line.startswith("|"))
        for page in GUIDES
    }
    assert not {name: count for name, count in words.items() if count > MAX_WORDS_OF_A_PAGE}
    assert 10_000 < sum(words.values()) <= MAX_WORDS


def test_guide_opens_with_a_question_and_an_example() -> None:
    front = ROOT / "docs/index.md"
    without = [
        page.name
        for page in GUIDES
        if not (page == front or text(page).partition("\n")[0].endswith("?"))
        or not any(line.startswith("```") for line in text(page).splitlines()[:MAX_LINES_BEFORE_AN_EXAMPLE])
    ]
    assert not without
