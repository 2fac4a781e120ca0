"""How far a capture sees: whether it is a slice, and connections with one direction only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wireyard.layers.symptoms import BACK

if TYPE_CHECKING:
    from wireyard.answers import Tables

_UNSEEN: Final = rf"""
SELECT s.source, s.stream, c.client, c.client = regexp_extract(s.stream, '^([^>]+)>', 1) AS up
FROM streams s
LEFT JOIN (SELECT DISTINCT source, stream, client FROM sessions) c
ON c.source = s.source AND c.stream = s.stream
WHERE s.transport = 'tcp' AND s.format IS NOT NULL AND NOT coalesce(s.paired, false)
  AND (s.source, s.stream) NOT IN (
    SELECT (source, {BACK}) FROM streams
  )
"""
"""The streams whose other direction was not captured; `up` if a client sent them, null if it is not
known who did."""
_COUNTS: Final = f"""
WITH unseen AS MATERIALIZED ({_UNSEEN})
SELECT count(*) AS unseen, count(*) FILTER (up) AS up, count(*) FILTER (NOT up) AS down,
  (
    SELECT count(DISTINCT (source, least(stream, {BACK})))
    FROM streams WHERE transport = 'tcp' AND format IS NOT NULL
  ) AS connections,
  (SELECT coalesce(bool_or(sliced), false) FROM streams) AS sliced
FROM unseen
"""


def how_far(tables: Tables) -> str | None:
    """Return in a line what a capture does not show, None if it is whole."""
    (row,) = tables.rows(_COUNTS)
    unseen, connections = row["unseen"], row["connections"]
    if row["sliced"]:
        return "a slice of a capture: what needs the packets that it leaves out is undecided"
    if not unseen:
        return None
    if row["up"] == unseen:
        seen = "the packets to the broker were"
    elif row["down"] == unseen:
        seen = "the packets from the broker were"
    else:
        seen = "one direction was"
    which = "connection" if connections == 1 else "connections"
    return (
        f"of {unseen:,} of {connections:,} {which} only {seen} captured: what needs the others is"
        " undecided"
    )


def reasons(tables: Tables) -> dict[tuple[str, str], str]:
    """Return why nothing is known of some clients, by source and endpoint, in words."""
    rows = tables.rows(f"SELECT DISTINCT source, client, up FROM ({_UNSEEN})")
    return {
        (row["source"], row["client"]): (
            f"the {'answers to' if row['up'] else 'packets of'} {row['client']} were not captured"
        )
        for row in rows
        if row["client"] is not None
    }
