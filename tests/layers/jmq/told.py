"""What tests ask of the tables that are told of a conversation."""

from __future__ import annotations

from collections.abc import Iterable

from wireyard.formats.base import Row
from wireyard.layers.jmq.delivery import OUTCOMES
from wireyard.layers.jmq.records import RULES

Tables = dict[str, list[Row]]


def verdicts(told: Tables) -> list[str]:
    """Return the verdicts in the order in which the messages were handed over."""
    found = sorted(told["deliveries"], key=lambda row: (row["delivered_ns"], row["offset"]))
    assert all(row["outcome"] == OUTCOMES[row["verdict"]] for row in found)
    return [row["verdict"] for row in found]


def rules(told: Tables) -> list[str]:
    assert all(row["rule"] in RULES and row["text"] for row in told["violations"])
    return [row["rule"] for row in told["violations"]]


def control(told: Tables, request: str) -> list[Row]:
    found = [row for row in told["conversations"] if row["request"] == request]
    assert all(row["kind"] == "control" for row in found)
    return found


def only(rows: Iterable[Row]) -> Row:
    (row,) = rows
    return row
