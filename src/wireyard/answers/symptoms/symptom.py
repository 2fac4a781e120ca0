"""The class `Symptom`, and queries that several symptoms share."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = [
    "LONG_NS",
    "MUCH_SLOWER_NS",
    "NAME",
    "SENDER",
    "SEVERITIES",
    "SLOW",
    "SQL_SESSIONS",
    "TRACE",
    "TRACE_ALL",
    "TRACE_CLIENT",
    "Symptom",
    "deliveries",
    "sessions",
]

LONG_NS: Final = 1_000_000_000
"""Time from which on a waiting message counts as stuck: busy brokers pause for some hundred
milliseconds, and people notice a second."""
MUCH_SLOWER_NS: Final = 100_000_000
"""Least difference to its peers from which on `why` reports a slow consumer."""
SEVERITIES: Final = ("lost", "stuck", "refused", "cut", "slow", "odd")
"""From worst to mildest: messages are lost; messages wait; a request or login was refused; a client
was disconnected; deliveries are slow; something is unusual."""


class Symptom(NamedTuple):
    """A kind of problem: the query that finds it, its description, and a command to see more."""

    code: str
    severity: str
    text: str
    next: str
    query: str


NAME: Final = "coalesce(d.consumer_client_id, d.consumer)"
SENDER: Final = "coalesce(d.producer_client_id, d.producer)"
_AT: Final = "coalesce(d.delivered_ns, d.sent_ns)"


def deliveries(condition: str, *, client: str = NAME, join: str = "") -> str:
    """Return a query for deliveries, grouped by destination and client; the first is the proof."""
    return f"""
SELECT d.destination, {client} AS client, count(*) AS count, min(d.verdict) AS verdict,
  arg_min(d.source, {_AT}) AS source,
  arg_min(coalesce(d.delivered_frame, d.sent_frame), {_AT}) AS frame,
  arg_min(d.stream, {_AT}) AS stream, arg_min(d."offset", {_AT}) AS "offset",
  max(d.dead_reason) AS dead_reason
FROM deliveries d {join}
WHERE {_AT} IS NOT NULL AND ({condition})
GROUP BY 1, 2
"""


def sessions(condition: str, columns: str = "", join: str = "") -> str:
    """Return a query for connections, grouped by client; the last one's last frame is the proof."""
    return f"""
SELECT NULL AS destination, coalesce(nullif(s.client_id, ''), s.client) AS client,
  count(*) AS count, arg_max(s.source, s.closed_ns) AS source,
  arg_max(coalesce(s.closed_frame, s.opened_frame), s.closed_ns) AS frame,
  arg_max(s.stream, s.closed_ns) AS stream, arg_max(s."offset", s.closed_ns) AS "offset"{columns}
FROM sessions s {join}
WHERE s.opened_ns IS NOT NULL AND ({condition})
GROUP BY 2
"""


TRACE: Final = "wireyard trace {input} {subject} --verdict {verdict}"
TRACE_ALL: Final = "wireyard trace {input} {subject}"
TRACE_CLIENT: Final = "wireyard trace {input} {client}"
SLOW: Final = "wireyard slow {input}"
SQL_SESSIONS: Final = 'wireyard sql {input} "FROM sessions ORDER BY client_id, opened_ns"'
