"""Topics as a tree by their levels, each with its messages, rate and last value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from wireyard.report.questions import Row

_DEEPEST: Final = 8
"""Levels of the tree; what is below is one level, because a topic may have thousands."""


@dataclass
class Topic:
    """A level of topics."""

    name: str
    below: dict[str, Topic] = field(default_factory=dict)
    messages: int = 0
    """Messages to this topic and to those below it."""
    topics: int = 0
    row: int | None = None
    """The number of its row, if messages were sent to the topic itself."""


def topic_tree(rows: Iterable[Row]) -> Topic:
    """Return the tree of the destinations of rows; its root has no name.

    A level with one level below, and no messages of its own, is joined with it.
    """
    root = Topic("")
    for number, row in enumerate(rows):
        node = root
        for level in row["destination"].split("/", _DEEPEST):
            node = node.below.setdefault(level, Topic(level))
            node.messages += row["messages"]
            node.topics += 1
        node.row = number
    root.below = {name: _joined(node) for name, node in root.below.items()}
    return root


def _joined(node: Topic) -> Topic:
    while node.row is None and len(node.below) == 1:
        (only,) = node.below.values()
        only.name = f"{node.name}/{only.name}"
        node = only
    node.below = {name: _joined(below) for name, below in node.below.items()}
    return node
