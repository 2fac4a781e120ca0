"""Filters of a report: the tables that its queries read, with the rows of a client, topic or time.

A filtered query has a subquery in the place of each table, under its name, so it is complete and
``wireyard sql`` returns the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wireyard.formats import names
from wireyard.layers.symptoms import SHARED
from wireyard.streams.conditions import filter_pattern

SHARED_LEVELS = tuple({name: query} for name, query in SHARED.items())
"""The levels of `with_subqueries` for the queries that several others use as a table."""


@dataclass(frozen=True)
class Filter:
    """What a report is about; None for no limit."""

    client: str | None = None
    """A client id or an endpoint."""
    topic: str | None = None
    """A destination or a topic filter."""
    since: str | None = None
    until: str | None = None
    """Times in the form of ISO 8601."""
    since_ns: int | None = None
    until_ns: int | None = None
    """The same in nanoseconds since 1970."""

    def tables(self) -> dict[str, str]:
        """Return a query for each table that has fewer rows."""
        conditions = {
            "messages": self._condition(
                "captured_ns", ("producer_client_id", "client", "producer"), "destination"
            ),
            "deliveries": self._condition(
                "coalesce(delivered_ns, sent_ns)",
                ("producer_client_id", "producer", "consumer_client_id", "consumer"),
                "destination",
            ),
            "latencies": self._condition(
                "delivered_ns", ("producer_client_id", "consumer_client_id", "consumer"),
                "destination",
            ),
            "sessions": self._condition("opened_ns", ("client_id", "client"), end="closed_ns"),
            "violations": self._condition("captured_ns", ("client_id", "client")),
            "retained": self._condition("from_ns", ("producer_client_id",), "topic", end="to_ns"),
            **{f"packets_{name}": self._condition("captured_ns", ()) for name in names()},
        }  # fmt: skip
        return {
            table: f"SELECT * FROM {table} WHERE {condition}"
            for table, condition in conditions.items()
            if condition
        }

    def _condition(
        self, at: str, clients: tuple[str, ...], topic: str | None = None, end: str | None = None
    ) -> str:
        """Return a condition for rows; one from `at` to `end` counts if it was then at any time."""
        parts = []
        if self.since_ns is not None:
            still = f"{at} >= {self.since_ns}"
            parts.append(still if end is None else f"coalesce({end} >= {self.since_ns}, true)")
        if self.until_ns is not None:
            parts.append(f"{at} < {self.until_ns}")
        if self.client is not None and clients:
            parts.append(f"{literal(self.client)} IN ({', '.join(clients)})")
        if self.topic is not None and topic is not None:
            parts.append(_of_topic(self.topic, topic))
        return " AND ".join(parts)


NO_FILTER = Filter()


def literal(text: str) -> str:
    """Return a text as SQL."""
    quoted = text.replace("'", "''")
    return f"'{quoted}'"


def _of_topic(asked: str, column: str) -> str:
    """Return a condition for a destination, or for those that a topic filter matches."""
    levels = asked.split("/")
    if "+" not in levels and levels[-1] != "#":
        return f"{column} = {literal(asked)}"
    return f"regexp_matches({column}, {literal(filter_pattern(asked))})"


def with_subqueries(sql: str, *levels: Mapping[str, str]) -> str:
    """Return a query with a subquery for each table that it, or a subquery of it, names.

    `levels` are queries by the name of their table; those of a level may name tables of the levels
    before.
    """
    used: list[tuple[str, str]] = []
    for level in reversed(levels):
        texts = "\n".join([sql, *(text for _, text in used)])
        used[:0] = list(_named(level, texts))
    if not used:
        return sql
    tables = ",\n".join(f"{name} AS ({text.strip()})" for name, text in used)
    return f"WITH {tables}" + (f",\n{sql[5:]}" if sql.startswith("WITH ") else f"\n{sql}")


def _named(tables: Mapping[str, str], sql: str) -> Iterator[tuple[str, str]]:
    return (item for item in tables.items() if re.search(rf"\b{item[0]}\b", sql))
