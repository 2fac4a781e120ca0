"""Latency queries: percentiles by destination and consumer, slow consumers, waiting messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from wireyard.answers import Tables

__all__ = [
    "DENIED",
    "ENDS",
    "FEWEST",
    "SLOWER",
    "SLOWER_TIMES",
    "WAITING",
    "Latencies",
    "ages",
    "measure_latencies",
]

Row = dict[str, Any]

SLOWER_TIMES: Final = 2
SLOWER_NS: Final = 1_000_000
FEWEST: Final = 5
"""A consumer is slower than its peers if its median exceeds theirs by this factor and this much,
over at least this many deliveries. Differences below a millisecond come from the scheduling of
processes, and the median of a few deliveries is just one of them."""

_NAME: Final = "coalesce(consumer_client_id, consumer)"

ENDS: Final = "SELECT source, max(last_ns) AS end_ns FROM streams GROUP BY source"
"""The end of each capture."""
DENIED: Final = """
SELECT s.source, s.stream, s."offset", s.frame, s.destination, s.src_addr, s.src_port,
  r.frame AS reply_frame, r.captured_ns, r.properties['JMQStatus'].value AS status,
  r.properties['JMQReason'].value AS reason
FROM packets_jmq r JOIN packets_jmq s
ON s.source = r.source AND s.consumer_id = r.consumer_id
  AND s.src_addr = r.dst_addr AND s.src_port = r.dst_port
  AND s.dst_addr = r.src_addr AND s.dst_port = r.src_port
WHERE r.packet_type = 9 AND r.properties['JMQStatus'].value <> '200'
  AND s.packet_type BETWEEN 1 AND 6
"""
"""Messages that an Open MQ broker did not accept: SEND_REPLY with a status other than 200."""
WAITING: Final = f"""
SELECT d.source, d.destination, d.message_key,
  if(d.verdict = 'queued', 'queued', 'unacknowledged') AS state,
  coalesce(d.consumer_client_id, d.consumer) AS name,
  if(d.verdict = 'queued', d.sent_ns, d.delivered_ns) AS since_ns,
  if(d.verdict = 'queued', d.sent_frame, d.delivered_frame) AS frame
FROM deliveries d
WHERE d.verdict IN ('queued', 'in_flight', 'held', 'in_transaction')
  AND if(d.verdict = 'queued', d.sent_ns, d.delivered_ns) IS NOT NULL
  AND (d.verdict = 'queued' OR d.outcome = 'unacknowledged')
UNION ALL
SELECT m.source, m.destination, m.message_key, 'no consumer', NULL, m.captured_ns, m.frame
FROM messages m JOIN ({ENDS}) e ON e.source = m.source
LEFT JOIN transactions t ON t.source = m.source AND t.transaction_id = m.transaction_id
WHERE m.protocol = 'jms' AND m.captured_ns IS NOT NULL AND m.first_seen = 'sent'
  AND m.destination_kind IN ('queue', 'temporary_queue') AND m.destination <> '__JMQAdmin'
  AND NOT EXISTS (FROM deliveries d WHERE d.message_key = m.message_key)
  AND (t.outcome IS NULL OR t.outcome = 'committed')
  AND NOT (m.expiration_ms > 0 AND m.expiration_ms < e.end_ns // 1000000)
  AND (m.source, m.stream, m."offset") NOT IN (SELECT (source, stream, "offset") FROM ({DENIED}))
"""
"""Messages that were still waiting at the end of their capture: for a consumer that is away
(`queued`), for an acknowledgement, or in a JMS queue for any consumer. Messages that the broker
refused, that were rolled back or expired, or that go to the broker itself (``__JMQAdmin``) are left
out."""

_BY: Final = """
SELECT {name} AS name, count(*) AS deliveries,
  quantile_cont(queue_ns, 0.5) AS p50_ns, quantile_cont(queue_ns, 0.9) AS p90_ns,
  quantile_cont(queue_ns, 0.99) AS p99_ns, max(queue_ns) AS longest_ns,
  quantile_cont(acknowledge_ns, 0.5) AS acknowledge_p50_ns,
  quantile_cont(acknowledge_ns, 0.99) AS acknowledge_p99_ns
FROM latencies
WHERE {name} IS NOT NULL
GROUP BY 1
HAVING count(queue_ns) + count(acknowledge_ns) > 0
ORDER BY greatest(p50_ns, acknowledge_p50_ns) DESC, name
"""
SLOWER: Final = f"""
WITH medians AS MATERIALIZED (
  SELECT destination, {_NAME} AS name,
    count(queue_ns) AS queued, quantile_cont(queue_ns, 0.5) AS queue_ns,
    count(acknowledge_ns) AS acknowledged, quantile_cont(acknowledge_ns, 0.5) AS acknowledge_ns
  FROM latencies
  WHERE {_NAME} IS NOT NULL
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
_OLDEST: Final = f"""
SELECT w.destination AS name, w.state, count(*) AS messages,
  max(e.end_ns - w.since_ns) AS oldest_ns,
  min(w.since_ns) AS since_ns, arg_min(w.frame, w.since_ns) AS frame,
  arg_min(w.source, w.since_ns) AS source
FROM ({WAITING}) w JOIN ({ENDS}) e USING (source)
GROUP BY ALL
ORDER BY oldest_ns DESC, name
"""

_MINUTE_NS: Final = 60 * 10**9


def ages(step_ns: int, waiting: str = f"({WAITING})") -> str:
    """Return the query for the age of the oldest messages of each destination over time.

    A row is a destination at a time `at_ns`, a multiple of `step_ns` since 1970: the number of
    deliveries `waiting`, the age `oldest_ns` of the oldest, and the same for deliveries that were
    made and not acknowledged. A message that was delivered at that time no longer waits. If nothing
    was waiting there is no row.

    A message waits from the time it was sent, or from its delivery time if that is later (JMS). One
    that was never delivered waits until the end of its capture if it was still waiting then.
    Messages that expired, were discarded or got lost are left out, because no packet shows when
    they ceased to wait.

    Parameters
    ----------
    waiting
        A table or subquery with the rows of `WAITING`.
    """
    return f"""
WITH across AS MATERIALIZED (
  SELECT destination, queue_ns, delivered_ns, acknowledge_ns FROM latencies
  WHERE (delivered_ns - coalesce(queue_ns, 0) - 1) // {step_ns}
    <> (delivered_ns + coalesce(acknowledge_ns, 0) - 1) // {step_ns}
), held AS (
  SELECT destination, 'waiting' AS state, delivered_ns - queue_ns AS since_ns,
    delivered_ns AS until_ns
  FROM across WHERE queue_ns > 0
  UNION ALL
  SELECT destination, 'unacknowledged', delivered_ns, delivered_ns + acknowledge_ns
  FROM across WHERE acknowledge_ns > 0
  UNION ALL
  SELECT w.destination, if(w.state = 'unacknowledged', w.state, 'waiting'), w.since_ns, e.end_ns + 1
  FROM {waiting} w JOIN ({ENDS}) e USING (source)
), spans AS (
  SELECT destination, state, (since_ns + {step_ns - 1}) // {step_ns} AS first,
    (until_ns + {step_ns - 1}) // {step_ns} AS stop, count(*) AS n, min(since_ns) AS since_ns
  FROM held
  WHERE (since_ns + {step_ns - 1}) // {step_ns} < (until_ns + {step_ns - 1}) // {step_ns}
  GROUP BY ALL
)
SELECT step * {step_ns} AS at_ns, destination,
  coalesce(sum(n) FILTER (state = 'waiting'), 0) AS waiting,
  max(step * {step_ns} - since_ns) FILTER (state = 'waiting') AS oldest_ns,
  coalesce(sum(n) FILTER (state = 'unacknowledged'), 0) AS unacknowledged,
  max(step * {step_ns} - since_ns) FILTER (state = 'unacknowledged') AS oldest_unacknowledged_ns
FROM (SELECT *, unnest(range(first, stop)) AS step FROM spans)
GROUP BY ALL
"""


@dataclass(frozen=True)
class Latencies:
    """Latencies of messages; rows with times in nanoseconds, the slowest first."""

    slower: list[Row]
    """Consumers that are slower than the other consumers of a destination."""
    waiting: list[Row]
    """By destination, the messages that were still waiting at the end of their capture."""
    ages: list[Row]
    """By full minute and destination, the number of waiting messages and the age of the oldest, in
    the order of time."""
    destinations: list[Row]
    consumers: list[Row]


def measure_latencies(tables: Tables) -> Latencies:
    """Run the latency queries."""
    return Latencies(
        slower=tables.sql(SLOWER).to_pylist(),
        waiting=tables.sql(_OLDEST).to_pylist(),
        ages=tables.sql(f"FROM ({ages(_MINUTE_NS)}) ORDER BY at_ns, destination").to_pylist(),
        destinations=tables.sql(_BY.format(name="destination")).to_pylist(),
        consumers=tables.sql(_BY.format(name=_NAME)).to_pylist(),
    )
