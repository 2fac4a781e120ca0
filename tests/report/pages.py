"""Reading a report's page: its numbers, and the queries that they are from."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

__all__ = ["Page", "read_page"]

Cell = tuple[str, int, str]
"""Query, row and column."""


@dataclass
class Page:
    """The content of a page."""

    values: dict[Cell, Any] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    shown: dict[Cell, str] = field(default_factory=dict)
    tags: defaultdict[str, list[dict[str, str | None]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    text: str = ""


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self._cell: Cell | None = None
        self._query: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.page.tags[tag].append(found)
        if tag == "data":
            query, column = found["data-query"], found["data-column"]
            row, value = found["data-row"], found["value"]
            assert query and column and row and value
            self._cell = query, int(row), column
            self.page.values[self._cell] = json.loads(value)
            self.page.shown[self._cell] = ""
        elif tag == "code" and found.get("data-sql"):
            self._query = found["data-sql"]
            assert self._query is not None
            self.page.queries[self._query] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "data":
            self._cell = None
        elif tag == "code":
            self._query = None

    def handle_data(self, data: str) -> None:
        self.page.text += data
        if self._cell is not None:
            self.page.shown[self._cell] += data
        if self._query is not None:
            self.page.queries[self._query] += data


def read_page(html: str) -> Page:
    """Return what a page says."""
    parser = _Parser()
    parser.feed(html)
    parser.close()
    return parser.page
