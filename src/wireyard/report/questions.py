"""The queries of the report: each part of the page shows the answer of one query.

Rules of this file:

1. A query is complete: it uses no view of ours, so that ``wireyard sql`` returns the same rows.
   Counts that several queries need are computed once, into a table; on the page the query has them
   as a subquery.
2. A query aggregates in the database and returns some hundred rows at most. If it has a limit, a
   column ``of`` has the number of all rows, or a row without a name has the rest.
3. Its order is total and no aggregate is approximate, so that it returns the same rows each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from wireyard.answers.latencies import ages
from wireyard.formats import names
from wireyard.layers.facts import registered
from wireyard.layers.symptoms import ENDS, WAITING
from wireyard.report.filters import NO_FILTER, SHARED_LEVELS, Filter, with_subqueries

if TYPE_CHECKING:
    from wireyard.answers import Tables

Row = Mapping[str, Any]
_MOST_BUCKETS: Final = 96
_NS_PER_S: Final = 10**9
WIDTHS_NS: Final = (
    *(unit * many for unit in (10**6, 10**7, 10**8) for many in (1, 2, 5)),
    *(_NS_PER_S * many for many in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)),
    *(3600 * _NS_PER_S * many for many in (1, 2, 3, 6, 12, 24, 48, 168, 720, 8760)),
)
"""Allowed widths of time intervals."""
_ENDS: Final = 12
"""Producers, destinations and consumers in the graph; all others are one node."""
_RANKED: Final = 15
_AGED: Final = 4
_SESSIONS: Final = 40
_RETAINED: Final = 30
_TOPICS: Final = 400
_SHOWN_BYTES: Final = 48


@dataclass(frozen=True)
class Answer:
    """A query and its rows."""

    name: str
    sql: str
    rows: Sequence[Row] = field(repr=False)

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def of(self) -> int:
        """Number of rows without the limit of the query."""
        return int(self.rows[0]["of"]) if self.rows and "of" in self.rows[0] else len(self.rows)


def bucket_ns(first_ns: int | None, last_ns: int | None) -> int:
    """Return the width of intervals that divides a span into `_MOST_BUCKETS` at most."""
    span = 0 if first_ns is None or last_ns is None else last_ns - first_ns
    return next((width for width in WIDTHS_NS if span < width * _MOST_BUCKETS), WIDTHS_NS[-1])


def ask_all(tables: Tables, only: Filter = NO_FILTER) -> dict[str, Answer]:
    """Run all queries, about the rows that a filter leaves; return the answers by name."""
    answers: dict[str, Answer] = {}
    filtered = only.tables()
    levels = (filtered, *SHARED_LEVELS)
    made = levels if filtered else ()  # else the shared tables are there
    for name, sql in _COUNTED.items():
        tables.keep(name, with_subqueries(sql.strip(), *made))

    def ask(name: str, sql: str) -> Answer:
        text = "\n".join(line.rstrip() for line in sql.strip().splitlines())
        rows = tables.rows(with_subqueries(text, *made))
        answers[name] = Answer(name, with_subqueries(text, *levels, _COUNTED), rows)
        return answers[name]

    span = ("min(first_ns)", only.since_ns, "greatest"), ("max(last_ns)", only.until_ns, "least")
    first, last = (
        f"(SELECT {end} FROM inputs)" if limit is None else
        f"(SELECT {inner}({end}, {limit}) FROM inputs)" for end, limit, inner in span
    )  # fmt: skip
    overview = ask("overview", _OVERVIEW.format(first=first, last=last)).rows[0]
    width = bucket_ns(overview["first_ns"], overview["last_ns"])
    for name, sql in _questions(width).items():
        ask(name, sql)
    return answers


_BAD: Final = tuple(
    dict.fromkeys(
        name
        for facts in registered()
        for name, verdict in facts.verdicts.items()
        if verdict.condition == "bad"
    )
)
"""The verdicts of deliveries that failed."""
_LATENCY_NS: Final = "delivered_ns - sent_ns"
_QUEUED: Final = f"{_LATENCY_NS} >= 0 AND retained IS NOT TRUE"
"""Deliveries whose delay is the broker's; a retained value waits for a subscriber instead."""
_COUNTED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "counted_messages": """
SELECT protocol, destination, destination_kind,
       coalesce(producer_client_id, client, producer) AS client,
       CASE WHEN body_size IS NOT NULL
            THEN CAST(floor(log2(greatest(body_size, 1))) AS INTEGER) END AS power,
       count(*) AS messages, sum(length) AS bytes
  FROM messages GROUP BY ALL
""",
        "counted_deliveries": f"""
SELECT protocol, verdict, destination, coalesce(consumer_client_id, consumer) AS client,
       CASE WHEN {_QUEUED}
            THEN CAST(floor(log10(greatest({_LATENCY_NS}, 1)) * 5) AS INTEGER) END AS step,
       count(*) AS deliveries, count(delivered_ns) AS timed,
       count(*) FILTER (delivered_ns IS NOT NULL OR delivered_frame IS NOT NULL) AS delivered,
       count(*) FILTER (verdict = 'dead' OR dead_reason IS NOT NULL) AS dead
  FROM deliveries GROUP BY ALL
""",
        "left_waiting": WAITING,
    }
)
"""Tables that several queries use: messages and deliveries, counted by every column that the
queries group by, and the messages that were left waiting. `power` and `step` are the intervals of
the charts."""
_OVERVIEW: Final = """
WITH destinations AS (
  SELECT destination, sum(messages) AS messages FROM counted_messages GROUP BY 1
), inputs AS (
  SELECT source, min(first_ns) AS first_ns, max(last_ns) AS last_ns, count(*) AS streams
    FROM streams GROUP BY 1
)
SELECT round(messages * 1e9 / nullif(last_ns - first_ns, 0), 1) AS sent_a_second,
       round(delivered * 1e9 / nullif(last_ns - first_ns, 0), 1) AS delivered_a_second, * FROM (
SELECT {first} AS first_ns,
       {last} AS last_ns,
       (SELECT count(*) FROM inputs) AS inputs,
       coalesce((SELECT sum(streams) FROM inputs), 0) AS streams,
       coalesce((SELECT sum(bytes_read) FROM ledger), 0) AS bytes_read,
       coalesce((SELECT sum(packets_ok + packets_malformed) FROM ledger), 0) AS packets,
       (SELECT count(*) FROM sessions) AS sessions,
       coalesce((SELECT sum(messages) FROM destinations), 0) AS messages,
       (SELECT count(destination) FROM destinations) AS destinations,
       deliveries, delivered, dead,
       (SELECT count(*) FROM violations) AS violations,
       coalesce((
         SELECT sum(bytes_read - bytes_ok - bytes_malformed - bytes_garbage - bytes_tail)
           FROM ledger
       ), 0) AS bytes_nowhere
  FROM (SELECT coalesce(sum(deliveries), 0) AS deliveries, coalesce(sum(timed), 0) AS delivered,
               coalesce(sum(dead), 0) AS dead FROM counted_deliveries)
)
"""
_FORMATS: Final = """
SELECT split_part(format, '/', 1) AS format, count(*) AS streams,
       sum(packets_ok) AS packets, sum(packets_malformed) AS malformed,
       sum(ledger.bytes_read) AS bytes_read, sum(bytes_ok) AS bytes_ok,
       sum(bytes_malformed) AS bytes_malformed, sum(bytes_garbage) AS bytes_garbage,
       sum(bytes_tail) AS bytes_tail, sum(bytes_gap) AS bytes_gap
  FROM ledger JOIN streams USING (source, stream)
 WHERE format IS NOT NULL
 GROUP BY 1 ORDER BY bytes_read DESC, 1
"""


def _questions(width: int) -> dict[str, str]:
    """Return queries by name; `width` is that of a time interval, in nanoseconds."""
    per_format = "\nUNION ALL\n".join(
        f"SELECT '{name}' AS format, captured_ns // {width} * {width} AS from_ns,\n"
        f"       count(*) AS packets, sum(length) AS bytes\n"
        f"  FROM packets_{name} WHERE status = 'ok' AND captured_ns IS NOT NULL GROUP BY ALL"
        for name in names()
    )
    return {
        "waited": _WAITED,
        "formats": _FORMATS,
        "verdicts": _VERDICTS,
        "violations": _VIOLATIONS,
        "quarantined": _QUARANTINED,
        "ended": _ENDED,
        "rates": f"SELECT * FROM (\n{per_format}\n) ORDER BY from_ns, format",
        "flow": f"""
SELECT from_ns, sum(sent) AS sent, sum(delivered) AS delivered, sum(failed) AS failed FROM (
  SELECT captured_ns // {width} * {width} AS from_ns, count(*) AS sent, 0 AS delivered, 0 AS failed
    FROM messages WHERE captured_ns IS NOT NULL GROUP BY 1
  UNION ALL
  SELECT coalesce(delivered_ns, sent_ns) // {width} * {width}, 0, count(delivered_ns),
         count(*) FILTER (verdict IN {_BAD})
    FROM deliveries WHERE coalesce(delivered_ns, sent_ns) IS NOT NULL GROUP BY 1
) GROUP BY 1 ORDER BY 1
""",
        "sizes": """
SELECT protocol, power, sum(messages) AS messages
  FROM counted_messages WHERE power IS NOT NULL GROUP BY ALL ORDER BY ALL
""",
        "producers": _BUSIEST.format(
            table="counted_messages",
            number="messages",
            counted="messages",
            ends=_ENDS,
            where="true",
        ),
        "consumers": _BUSIEST.format(
            table="counted_deliveries",
            number="deliveries",
            counted="delivered",
            ends=_ENDS,
            where="delivered > 0",
        ),
        "destinations": f"""
SELECT destination, destination_kind AS kind, sum(messages) AS messages, sum(bytes) AS bytes,
       count(*) OVER () AS of
  FROM counted_messages GROUP BY ALL ORDER BY messages DESC, bytes DESC, 1, 2 LIMIT {_RANKED}
""",
        "clients": f"""
SELECT client, sum(sent) AS sent, sum(bytes) AS bytes_sent, sum(received) AS received,
       count(*) OVER () AS of
  FROM (
    SELECT client, messages AS sent, bytes, 0 AS received FROM counted_messages
    UNION ALL
    SELECT client, 0, 0, delivered FROM counted_deliveries WHERE delivered > 0
  ) WHERE client IS NOT NULL
 GROUP BY 1 ORDER BY sum(sent) + sum(received) DESC, 1 LIMIT {_RANKED}
""",
        "delays": """
SELECT protocol, step, sum(deliveries) AS deliveries
  FROM counted_deliveries WHERE step IS NOT NULL GROUP BY ALL ORDER BY ALL
""",
        "slowest": f"""
WITH counts AS (
  SELECT destination, sum(deliveries) AS deliveries
    FROM counted_deliveries WHERE step IS NOT NULL GROUP BY 1
), busiest AS (
  SELECT destination FROM counts ORDER BY deliveries DESC, 1 LIMIT {_RANKED}
), taken AS (
  SELECT destination, count(*) AS deliveries,
         quantile_disc({_LATENCY_NS}, [0.5, 0.9, 0.99, 1.0]) AS ns
    FROM deliveries WHERE {_QUEUED} AND destination IN (FROM busiest) GROUP BY 1
)
SELECT destination, deliveries, ns[1] AS p50_ns, ns[2] AS p90_ns, ns[3] AS p99_ns, ns[4] AS max_ns,
       (SELECT count(*) FROM counts) AS of
  FROM taken ORDER BY p99_ns DESC, 1
""",
        "ages": f"""
WITH ages AS ({ages(width, "left_waiting").strip()}),
worst AS (
  SELECT destination FROM ages GROUP BY 1
   ORDER BY max(greatest(coalesce(oldest_ns, 0), coalesce(oldest_unacknowledged_ns, 0))) DESC, 1
   LIMIT {_AGED}
)
SELECT at_ns, destination, waiting, oldest_ns, unacknowledged, oldest_unacknowledged_ns,
       (SELECT count(*) FROM ages) AS of
  FROM ages WHERE destination IN (FROM worst) ORDER BY at_ns, destination
""",
        "sessions": f"""
WITH shown AS (
  SELECT *, count(*) OVER () AS of FROM sessions
   ORDER BY ended_by IN ('dropped', 'refused', 'server') DESC NULLS LAST, packets DESC, opened_ns,
            source, stream LIMIT {_SESSIONS}
)
SELECT coalesce(nullif(client_id, ''), client) AS client, client AS endpoint, user, protocol,
       coalesce(opened_ns, first_ns) AS opened_ns,
       coalesce(closed_ns, if(ended_by = 'open', NULL, last_ns)) AS closed_ns, ended_by,
       shown.packets, shown.bytes, opened_frame, closed_frame, source, of
  FROM shown LEFT JOIN streams USING (source, stream)
 ORDER BY opened_ns, client, source, stream
""",
        "topics": f"""
WITH shown AS (
  SELECT destination, sum(messages) AS messages, count(*) OVER () AS of
    FROM counted_messages WHERE destination IS NOT NULL
   GROUP BY 1 ORDER BY messages DESC, 1 LIMIT {_TOPICS}
), latest AS (
  SELECT destination, max(captured_ns) AS last_ns
    FROM messages WHERE destination IN (SELECT destination FROM shown) GROUP BY 1
), contents AS (
  SELECT destination, last_ns, min(array_slice(body, 1, {_SHOWN_BYTES})) AS begins
    FROM messages JOIN latest USING (destination)
   WHERE captured_ns = last_ns GROUP BY ALL
)
SELECT destination, messages, last_ns, begins, of
  FROM shown LEFT JOIN contents USING (destination) ORDER BY destination
""",
        "retained": f"""
SELECT topic, array_slice(payload, 1, {_SHOWN_BYTES}) AS begins, octet_length(payload) AS bytes,
       from_ns, qos, producer_client_id AS client, from_frame AS frame, source,
       count(*) OVER () AS of
  FROM retained WHERE ended_by IS NULL ORDER BY from_ns DESC NULLS LAST, topic, source
 LIMIT {_RETAINED}
""",
    }


_BUSIEST: Final = """
WITH counts AS (
  SELECT coalesce(client, 'unknown') AS client,
         coalesce(destination, 'unknown') AS destination, sum({counted}) AS {number}
    FROM {table} WHERE {where} GROUP BY ALL
), clients AS (
  SELECT client FROM counts GROUP BY 1 ORDER BY sum({number}) DESC, 1 LIMIT {ends}
), destinations AS (
  SELECT coalesce(destination, 'unknown') FROM counted_messages
   GROUP BY 1 ORDER BY sum(messages) DESC, 1 LIMIT {ends}
)
SELECT CASE WHEN client IN (FROM clients) THEN client END AS client,
       CASE WHEN destination IN (FROM destinations) THEN destination END AS destination,
       sum({number}) AS {number}, count(DISTINCT client) AS clients,
       count(DISTINCT destination) AS destinations
  FROM counts GROUP BY ALL ORDER BY {number} DESC, 1, 2
"""
"""What the busiest clients sent to the busiest destinations, or got from them, and the others."""
_WAITED: Final = f"""
SELECT count(*) FILTER (state = 'unacknowledged') AS unacknowledged,
       count(*) FILTER (state <> 'unacknowledged') AS waiting,
       coalesce(max(end_ns - since_ns), 0) AS oldest_ns
  FROM left_waiting JOIN ({ENDS}) USING (source)
"""
_VERDICTS: Final = """
WITH found AS (
  SELECT protocol, verdict, destination, sum(deliveries) AS deliveries
    FROM counted_deliveries GROUP BY ALL
)
SELECT protocol, verdict, sum(deliveries) AS deliveries, count(destination) AS destinations
  FROM found GROUP BY ALL ORDER BY deliveries DESC, 1, 2
"""
_VIOLATIONS: Final = """
WITH found AS (
  SELECT protocol, rule, count(*) AS violations, count(DISTINCT client) AS clients,
         min(struct_pack(ns := captured_ns, source := source, stream := stream, at := "offset",
             frame := frame, text := text, client := coalesce(client_id, client))) AS first
    FROM violations GROUP BY ALL
)
SELECT protocol, rule, violations, clients, first.text AS text, first.client AS client,
       first.ns AS first_ns, first.source AS source, first.stream AS stream, first.at AS at,
       first.frame AS frame, count(*) OVER () AS of
  FROM found ORDER BY violations DESC, 1, 2 LIMIT 12
"""
_QUARANTINED: Final = """
WITH found AS (
  SELECT split_part(format, '/', 1) AS format, status, error.code AS code, error.field AS field,
         count(*) AS rows, sum(length) AS bytes,
         min(struct_pack(source := source, stream := stream, at := "offset",
             message := error.message)) AS first
    FROM quarantine GROUP BY ALL
)
SELECT format, status, code, field, rows, bytes, first.message AS message,
       first.source AS source, first.stream AS stream, first.at AS at, count(*) OVER () AS of
  FROM found ORDER BY rows DESC, 1, 2, 3, 4 LIMIT 12
"""
_ENDED: Final = """
WITH found AS (
  SELECT protocol, ended_by, count(*) AS sessions,
         count(DISTINCT coalesce(client_id, client)) AS clients,
         min(struct_pack(ns := closed_ns, source := source, stream := stream, at := "offset",
             frame := closed_frame, client := coalesce(nullif(client_id, ''), client))) AS first
    FROM sessions GROUP BY ALL
)
SELECT protocol, ended_by, sessions, clients, first.client AS client, first.ns AS first_ns,
       first.source AS source, first.stream AS stream, first.at AS at, first.frame AS frame
  FROM found ORDER BY sessions DESC, 1, 2
"""
