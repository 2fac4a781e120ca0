"""Rows of the tables that are derived from a conversation, picked out and checked."""

from __future__ import annotations

from collections.abc import Iterable

from wireyard.formats.base import Row
from wireyard.layers.jmq.rules import RULES
from wireyard.layers.jmq.states import OUTCOMES

Tables = dict[str, list[Row]]


def verdicts(tables: Tables) -> list[str]:
    """Return the verdicts in the order in which the messages were delivered."""
    found = sorted(tables["deliveries"], key=lambda row: (row["delivered_ns"], row["offset"]))
    assert all(row["outcome"] == OUTCOMES[row["verdict"]] for row in found)
    return [row["verdict"] for row in found]


def rules(tables: Tables) -> list[str]:
    assert all(row["rule"] in RULES and row["text"] for row in tables["violations"])
    return [row["rule"] for row in tables["violations"]]


def control(tables: Tables, request: str) -> list[Row]:
    found = [row for row in tables["conversations"] if row["request"] == request]
    assert all(row["kind"] == "control" for row in found)
    return found


def only(rows: Iterable[Row]) -> Row:
    (row,) = rows
    return row
