"""Reads the HTML tables that a notebook shows."""

from __future__ import annotations

from html.parser import HTMLParser


class Cells(HTMLParser):
    """Collects tags and the text of each cell."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.cells.append(data)
