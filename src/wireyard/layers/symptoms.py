"""Symptoms: problems of messages and clients, each with a query that finds it.

A query returns a row for each finding, with these columns: `destination` and `client`, of which one
may be null; `count`; and the proof, `source`, `frame`, `stream` and `offset` of a packet, or of a
stored record, which has no frame. `producers` and `consumers`, if there are such columns, are the
first of the clients that sent and received. Other names in braces in `text` and `next` are columns
too, except ``input`` (the inputs of the command), ``subject`` (the destination, else the client),
``party`` (the client, else the destination) and ``messages``, ``times`` and so on (the count with
that noun). Words of `next` that have spaces are SQL.

One cause is one finding: rows of one client, or without a client of one destination, whose columns
in `text` are the same except for `MEASURES`.

Queries only use packets with a time. A bare stream has none, and only one direction, in which no
request is answered. The symptoms of a protocol are in its folder; what several share is here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from wireyard.layers.jmq.waiting import ENDS, NOT_CHARGED, SHARED_JMS, WAITING_JMS

__all__ = [
    "BACK",
    "CONSUMER_NAME",
    "ENDS",
    "FEWEST",
    "LONG_NS",
    "MEASURES",
    "MOST_PEERS",
    "MUCH_SLOWER_NS",
    "NAME",
    "RESCUED",
    "SENDER",
    "SEVERITIES",
    "SHARED",
    "SLOWER",
    "SLOWER_NS",
    "SLOWER_TIMES",
    "SQL_SESSIONS",
    "TRACE",
    "TRACE_ALL",
    "TRACE_CLIENT",
    "WAITING",
    "Symptom",
    "code_text",
    "deliveries",
    "of_verdicts",
    "of_whole_packets",
    "peers",
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
MEASURES: Final = frozenset({"longest_s", "last_frame", "median_ms", "peers", "silent_s"})
"""Columns in which rows of one cause may differ; a text has those of the worst row."""
MOST_PEERS: Final = 4
"""Producers and consumers in a row: three to name, and one more if there are others."""


class Symptom(NamedTuple):
    """A kind of problem: the query that finds it, its description, and a command to see more."""

    code: str
    severity: str
    text: str
    next: str
    query: str
    verdicts: frozenset[str] = frozenset()
    """Verdicts of deliveries, without any of which the query finds nothing; empty if others may."""
    table: str | None = None
    """A table without whose rows the query finds nothing."""


TRACE: Final = "wireyard trace {input} {party} --verdict {verdict}"
TRACE_ALL: Final = "wireyard trace {input} {subject}"
TRACE_CLIENT: Final = "wireyard trace {input} {client}"
SQL_SESSIONS: Final = (
    "wireyard sql {input}"
    " \"FROM sessions WHERE '{client}' IN (client_id, client) ORDER BY opened_ns\""
)
NAME: Final = "coalesce(d.consumer_client_id, d.consumer)"
SENDER: Final = "coalesce(d.producer_client_id, d.producer)"
_AT: Final = "coalesce(d.delivered_ns, d.sent_ns)"


def peers(name: str) -> str:
    """Return SQL for the first clients of those with a name, as a list."""
    known = f"list(DISTINCT {name}) FILTER ({name} IS NOT NULL)"
    return f"list_slice(list_sort({known}), 1, {MOST_PEERS})"


def code_text(code: str, names: Mapping[int, str], reason: str = "NULL") -> str:
    """Return SQL for a code with its name, and a reason: ``135 (Not authorized): why``."""
    known = " ".join(f"WHEN {number} THEN ' ({name})'" for number, name in names.items())
    return f"({code} || CASE {code} {known} ELSE '' END || coalesce(': ' || {reason}, ''))"


def deliveries(condition: str, columns: str = "", *, client: str = NAME, join: str = "") -> str:
    """Return a query for deliveries, grouped by destination and client; the first is the proof."""
    return f"""
SELECT d.destination, {client} AS client, count(*) AS count, min(d.verdict) AS verdict,
  arg_min(d.source, {_AT}) AS source,
  arg_min(coalesce(d.delivered_frame, d.sent_frame), {_AT}) AS frame,
  arg_min(d.stream, {_AT}) AS stream, arg_min(d."offset", {_AT}) AS "offset",
  max(d.dead_reason) AS dead_reason, {peers(SENDER)} AS producers, {peers(NAME)} AS consumers
  {columns}
FROM deliveries d {join}
WHERE {_AT} IS NOT NULL AND ({condition})
GROUP BY 1, 2
"""


def of_verdicts(
    code: str, severity: str, text: str, *verdicts: str, condition: str = "true", **more: str
) -> Symptom:
    """Return a symptom of deliveries with some verdicts; `more` is as for `deliveries`."""
    of = ", ".join(f"'{verdict}'" for verdict in verdicts)
    query = deliveries(f"d.verdict IN ({of}) AND {condition}", **more)
    return Symptom(code, severity, text, TRACE, query, frozenset(verdicts))


def sessions(condition: str, columns: str = "", join: str = "", by: str = "NULL") -> str:
    """Return a query for connections, grouped by client; the last one's last frame is the proof.

    `by` is a further column that they are grouped by, `said`.
    """
    return f"""
SELECT NULL AS destination, coalesce(nullif(s.client_id, ''), s.client) AS client,
  count(*) AS count, arg_max(s.source, s.closed_ns) AS source,
  arg_max(coalesce(s.closed_frame, s.opened_frame), s.closed_ns) AS frame,
  arg_max(s.stream, s.closed_ns) AS stream, arg_max(s."offset", s.closed_ns) AS "offset",
  {by} AS said{columns}
FROM sessions s {join}
WHERE s.opened_ns IS NOT NULL AND ({condition})
GROUP BY 2, said
"""


def of_whole_packets(query: str) -> str:
    """Return a query that leaves unfinished packets out, of which fields are missing."""
    return re.sub(r"\b(packets_\w+)", r"(SELECT * FROM \1 WHERE status <> 'tail')", query)


# --- queries that symptoms and other answers share ------------------------------------------

BACK: Final = r"regexp_replace(stream, '^([^>]+)>([^#]+)(#.*)?$', '\2>\1\3')"
"""The name of the other stream of a connection, for a column `stream`."""
RESCUED: Final = """EXISTS (
    FROM deliveries o
    WHERE o.source = d.source AND o.message_key = d.message_key AND o.protocol = 'mqtt'
      AND o.consumer <> d.consumer AND o.acknowledged_ns >= d.delivered_ns
      AND regexp_matches(coalesce(o.subscription, d.subscription), '^[$](share|queue)/')
      AND coalesce(o.subscription = d.subscription, true)
  )"""
"""Another member of a shared subscription has acknowledged the message since."""
WAITING: Final = f"""
SELECT d.source, d.destination, d.message_key,
  if(d.verdict = 'queued', 'queued', 'unacknowledged') AS state,
  coalesce(d.consumer_client_id, d.consumer) AS name,
  if(d.verdict = 'queued', d.sent_ns, d.delivered_ns) AS since_ns,
  if(d.verdict = 'queued', d.sent_frame, d.delivered_frame) AS frame
FROM deliveries d
WHERE d.verdict IN ('queued', 'in_flight', 'held', 'in_transaction')
  AND if(d.verdict = 'queued', d.sent_ns, d.delivered_ns) IS NOT NULL
  AND (d.verdict = 'queued' OR d.outcome = 'unacknowledged' AND NOT {RESCUED})
UNION ALL
{WAITING_JMS}
"""
"""Messages that were still waiting at the end of their capture: for a consumer that is away
(`queued`), for an acknowledgement, or in a JMS queue for any consumer. Messages that the broker
refused, that were rolled back or expired, or that go to the broker itself (``__JMQAdmin``) are left
out."""
SLOWER_TIMES: Final = 2
SLOWER_NS: Final = 1_000_000
FEWEST: Final = 5
"""A consumer is slower than its peers if its median exceeds theirs by this factor and this much,
over at least this many deliveries. Differences below a millisecond come from the scheduling of
processes, and the median of a few deliveries is just one of them."""
CONSUMER_NAME: Final = "coalesce(consumer_client_id, consumer)"
_CHARGED: Final = f"""
SELECT l.source, l.stream, l."offset", l.message_key, l.protocol, l.destination, l.consumer,
  l.consumer_client_id, l.qos, l.sent_ns, l.delivered_ns, l.delivered_frame, l.acknowledge_ns,
  if(n.source IS NULL AND h.message_key IS NULL AND c.consumer IS NULL, l.queue_ns, NULL)
  AS queue_ns
FROM latencies l
LEFT JOIN (SELECT DISTINCT source, stream, "offset" FROM ({NOT_CHARGED})) n
ON n.source = l.source AND n.stream = l.stream AND n."offset" = l."offset"
LEFT JOIN (
  SELECT DISTINCT l.source, l.stream, l."offset", l.consumer
  FROM latencies l JOIN sessions s
  ON s.source = l.source AND s.client = l.consumer AND s.opened_ns > l.sent_ns
    AND s.opened_ns <= l.delivered_ns
  WHERE l.protocol = 'mqtt'
) c ON c.source = l.source AND c.stream = l.stream AND c."offset" = l."offset"
  AND c.consumer = l.consumer
LEFT JOIN (
  SELECT DISTINCT l.source, l.message_key, l.consumer
  FROM latencies l JOIN deliveries o
  ON o.source = l.source AND o.message_key = l.message_key AND o.consumer <> l.consumer
    AND o.delivered_ns < l.delivered_ns AND coalesce(o.subscription = l.subscription, true)
  WHERE l.protocol = 'mqtt'
    AND regexp_matches(coalesce(l.subscription, o.subscription), '^[$](share|queue)/')
) h ON h.source = l.source AND h.message_key = l.message_key AND h.consumer = l.consumer
"""
"""Latencies, without the time in queue that is not the consumer's: before it connected, or while
another member of its shared subscription had the message."""
SHARED: Final = {
    name: of_whole_packets(query)
    for name, query in {**SHARED_JMS, "charged_latencies": _CHARGED}.items()
}
"""By name, the queries that several others use as a table; it is made once."""
SLOWER: Final = f"""
WITH medians AS MATERIALIZED (
  SELECT destination, {CONSUMER_NAME} AS name,
    count(queue_ns) AS queued, quantile_cont(queue_ns, 0.5) AS queue_ns,
    count(acknowledge_ns) AS acknowledged, quantile_cont(acknowledge_ns, 0.5) AS acknowledge_ns
  FROM charged_latencies
  WHERE {CONSUMER_NAME} IS NOT NULL
  GROUP BY ALL
), each AS (
  SELECT destination, name, 'in queue' AS what, queued AS deliveries, queue_ns AS median_ns
  FROM medians WHERE queued > 0
  UNION ALL
  SELECT destination, name, 'to acknowledge', acknowledged, acknowledge_ns
  FROM medians WHERE acknowledged > 0
)
SELECT * FROM (
  SELECT e.name, e.destination, e.what, e.deliveries, e.median_ns,
    count(*) AS peers, quantile_cont(p.median_ns, 0.5) AS peers_ns
  FROM each e JOIN each p
  ON p.destination = e.destination AND p.what = e.what AND p.name <> e.name
  WHERE e.deliveries >= {FEWEST} AND p.deliveries >= {FEWEST}
  GROUP BY ALL
)
WHERE median_ns >= {SLOWER_TIMES} * peers_ns AND median_ns - peers_ns >= {SLOWER_NS}
ORDER BY median_ns - peers_ns DESC, name, destination, what
"""
