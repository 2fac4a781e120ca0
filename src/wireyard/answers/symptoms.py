"""All symptoms: those that each protocol registers, and those of every protocol.

The latter are verdicts of deliveries, ends of connections, and bad bytes.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from wireyard.layers.facts import registered
from wireyard.layers.jmq.statuses import status_text
from wireyard.layers.jmq.symptoms import CLOSED, REQUEST_UNANSWERED
from wireyard.layers.jmq.waiting import PASSED_ON
from wireyard.layers.mqtt.symptoms import (
    LAST_WORD,
    LOGIN_ANSWER,
    LOGIN_REASON,
    SILENT,
    TAKEN_OVER,
    TAKEN_UNRELEASED,
    UNANSWERED,
)
from wireyard.layers.symptoms import (
    ENDS,
    LONG_NS,
    MUCH_SLOWER_NS,
    NAME,
    RESCUED,
    SEVERITIES,
    SLOWER,
    SQL_SESSIONS,
    TRACE_CLIENT,
    Symptom,
    of_verdicts,
    of_whole_packets,
    sessions,
)

_REFUSED_WITH: Final = f"if(s.protocol = 'mqtt', {LOGIN_REASON}, {status_text('s.status')})"
_END: Final = f"JOIN ({ENDS}) e ON e.source = d.source"
_SLOW_CONSUMER: Final = f"""
WITH busy AS (
  SELECT d.source, d.consumer, d.destination, min(d.delivered_ns) AS first_ns
  FROM deliveries d
  WHERE d.protocol = 'jms' AND d.delivered_ns IS NOT NULL
  GROUP BY ALL
), named AS (
  SELECT destination, name AS client, deliveries AS count, what, median_ns, peers_ns
  FROM ({SLOWER})
  WHERE median_ns - peers_ns >= {MUCH_SLOWER_NS}
  UNION ALL
  SELECT l.destination, coalesce(l.consumer_client_id, l.consumer), count(*), 'in queue',
    quantile_cont(l.queue_ns, 0.5), NULL
  FROM charged_latencies l JOIN busy b USING (source, consumer, destination)
  WHERE l.sent_ns >= b.first_ns AND l.queue_ns >= {LONG_NS} AND l.protocol = 'jms'
  GROUP BY 1, 2
)
SELECT n.destination, n.client, n.count, n.what,
  round(n.median_ns / 1e6, 1) AS median_ms,
  coalesce(', its peers ' || round(n.peers_ns / 1e6, 1) || ' ms', '') AS peers,
  arg_max(d.source, d.delivered_ns - d.sent_ns) AS source,
  arg_max(d.delivered_frame, d.delivered_ns - d.sent_ns) AS frame,
  arg_max(d.stream, d.delivered_ns - d.sent_ns) AS stream,
  arg_max(d."offset", d.delivered_ns - d.sent_ns) AS "offset"
FROM named n JOIN deliveries d ON d.destination = n.destination AND {NAME} = n.client
WHERE d.sent_ns >= 0 AND d.delivered_ns >= 0
GROUP BY ALL
"""
_GAPS: Final = """
SELECT NULL AS destination, stream AS client, 1 AS count, bytes_gap AS bytes, source,
  NULL AS frame, stream, 0 AS "offset"
FROM streams
WHERE bytes_gap > 0 AND format IS NOT NULL AND transport IS NOT NULL
"""
_MALFORMED: Final = """  -- Levels 131 and 132 are those of bridges (erratum M18).
SELECT NULL AS destination, q.stream AS client, count(*) AS count, q.source, NULL AS frame,
  q.stream, min(q."offset") AS "offset"
FROM quarantine q JOIN streams s ON s.source = q.source AND s.stream = q.stream
WHERE s.transport IS NOT NULL AND (q.status = 'malformed' OR q.status = 'garbage' AND NOT EXISTS (
    -- Behind a gap it may be the rest of a packet that began in it.
    FROM quarantine g
    WHERE g.source = q.source AND g.stream = q.stream AND g.status = 'gap'
      AND g."offset" < q."offset"
  ))
  AND NOT coalesce(regexp_matches(q.error.message, '''protocol level'' is 13[12] '), false)
GROUP BY q.source, q.stream
"""
_VIOLATIONS: Final = """
SELECT NULL AS destination, coalesce(client_id, client) AS client, count(*) AS count, rule,
  if((source, client) IN (SELECT (source, server) FROM sessions), 'the broker', 'this client')
  AS side,
  min(text) AS said, arg_min(source, captured_ns) AS source, arg_min(frame, captured_ns) AS frame,
  arg_min(stream, captured_ns) AS stream, arg_min("offset", captured_ns) AS "offset"
FROM violations
WHERE captured_ns IS NOT NULL
GROUP BY 2, rule, side
"""

_OWED: Final = f"NOT {PASSED_ON} AND NOT {RESCUED} AND NOT ({TAKEN_UNRELEASED})"
"""The client of a delivery `d` owes its acknowledgement, and nobody else has the message."""
_EVERY: Final = (
    of_verdicts(
        "expired",
        "lost",
        "{messages} expired before being consumed",
        "expired",
    ),
    Symptom(
        "request_unanswered",
        "stuck",
        "{request} not answered by the {silent} ({times})",
        SQL_SESSIONS,
        f"FROM ({REQUEST_UNANSWERED}) UNION ALL BY NAME"
        f" SELECT *, 'broker' AS silent FROM ({UNANSWERED})",
    ),
    of_verdicts(
        "unacknowledged",
        "stuck",
        "{messages} delivered more than a second before the end, not acknowledged",
        *("in_flight", "held", "in_transaction"),
        condition=f"e.end_ns - d.delivered_ns >= {LONG_NS} AND {_OWED}",
        join=_END,
    ),
    of_verdicts(
        "never_acknowledged",
        "stuck",
        "{messages} delivered; the session ended without an acknowledgement",
        *("abandoned", "left"),
        condition=f"NOT {CLOSED} AND {_OWED}",
    ),
    Symptom(
        "login_refused",
        "refused",
        "{logins} refused, with status {said}",
        SQL_SESSIONS,
        sessions("s.ended_by = 'refused'", "", LOGIN_ANSWER, _REFUSED_WITH),
    ),
    Symptom(
        "dropped",
        "cut",
        "{connections} ended without a goodbye",
        SQL_SESSIONS,
        sessions(
            f"s.ended_by = 'dropped' AND NOT coalesce({SILENT}, false) AND NOT ({TAKEN_OVER})",
            "",
            LAST_WORD,
        ),
    ),
    Symptom(
        "slow_consumer",
        "slow",
        "{messages} took {median_ms} ms {what} by the median{peers}",
        TRACE_CLIENT,
        _SLOW_CONSUMER,
    ),
    Symptom(
        "rule_broken",
        "odd",
        "{rule} was broken by {side} ({times}): {said}",
        "wireyard sql {input} \"FROM violations WHERE rule = '{rule}'"
        " AND '{client}' IN (client_id, client)\"",
        _VIOLATIONS,
        table="violations",
    ),
    Symptom(
        "malformed",
        "odd",
        "{pieces} of the stream that are no well-formed packet",
        "wireyard sql {input} \"FROM quarantine WHERE stream = '{stream}'\"",
        _MALFORMED,
        table="quarantine",
    ),
    Symptom(
        "capture_gap",
        "odd",
        "the capture lacks {bytes} bytes of the stream, so what was in them is not known",
        "wireyard flows {source}",
        _GAPS,
    ),
)


def symptoms(formats: Set[str] | None = None) -> tuple[Symptom, ...]:
    """Return symptoms, the worst first; those of one severity in the order of display.

    A symptom that several protocols have is one, with the findings of all. `formats` are those
    whose packets occur, so that symptoms of other protocols are left out; None for all.
    """
    of_protocols = (
        symptom
        for facts in registered()
        if formats is None or not formats.isdisjoint(facts.formats)
        for symptom in facts.symptoms
    )
    known: dict[str, Symptom] = {}
    for symptom in (*of_protocols, *_EVERY):
        other = known.setdefault(symptom.code, symptom)
        if other is not symptom:
            query = f"({other.query}) UNION ALL BY NAME ({symptom.query})"
            known[symptom.code] = other._replace(query=query, verdicts=frozenset())
    whole = (each._replace(query=of_whole_packets(each.query)) for each in known.values())
    return tuple(sorted(whole, key=lambda each: SEVERITIES.index(each.severity)))
