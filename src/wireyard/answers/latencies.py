"""Latency queries: percentiles by destination and consumer, slow consumers, waiting messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from wireyard.layers.symptoms import CONSUMER_NAME, ENDS, SLOWER, WAITING

if TYPE_CHECKING:
    from wireyard.answers import Tables

Row = dict[str, Any]

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

    The parameter `waiting` is a table or subquery with the rows of `WAITING`.
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
  WHERE w.state NOT LIKE 'delayed%'
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
        slower=tables.rows(SLOWER),
        waiting=tables.rows(_OLDEST),
        ages=tables.rows(f"FROM ({ages(_MINUTE_NS)}) ORDER BY at_ns, destination"),
        destinations=tables.rows(_BY.format(name="destination")),
        consumers=tables.rows(_BY.format(name=CONSUMER_NAME)),
    )
