"""Tracing messages: select messages and collect all rows about each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from wireyard.answers.visibility import reasons
from wireyard.errors import UsageError
from wireyard.layers.facts import CONDITIONS, registered
from wireyard.streams.conditions import filter_pattern

if TYPE_CHECKING:
    from wireyard.answers import Tables

Row = dict[str, Any]

_OF_PROTOCOLS: Final = {facts.protocol: facts for facts in registered()}
WORST_FIRST: Final = tuple(
    dict.fromkeys(
        name
        for condition in CONDITIONS
        for facts in _OF_PROTOCOLS.values()
        for name, verdict in facts.verdicts.items()
        if verdict.condition == condition
    )
)
"""The verdicts on deliveries of all protocols, the most severe first."""
GOOD: Final = frozenset(
    name
    for facts in _OF_PROTOCOLS.values()
    for name, verdict in facts.verdicts.items()
    if verdict.condition == "good"
)
"""Verdicts of deliveries that are complete."""

_WORST: Final = 10
_SHARED: Final = [name for name, facts in _OF_PROTOCOLS.items() if facts.shares_messages]
_IS_SHARED: Final = f"list_contains({_SHARED!r}, protocol)"
"""Condition for messages whose key is the same in all sources; any other key is per source."""
_HERE: Final = (
    "d.message_key = m.message_key"
    f" AND (list_contains({_SHARED!r}, m.protocol) OR d.source = m.source)"
)
"""Join condition of messages and their deliveries."""
_OF_CONSUMER: Final = "(consumer_client_id = $asked OR consumer = $asked)"
"""Condition for deliveries to the consumer that messages are traced for."""
_RANK: Final = f"list_position({list(WORST_FIRST)!r}, verdict)"
_TRACED: Final = f"""
WITH of_consumer AS (
  SELECT DISTINCT if({_IS_SHARED}, '', source) AS home, message_key
  FROM deliveries
  WHERE {_OF_CONSUMER} AND ($verdict::VARCHAR IS NULL OR verdict = $verdict)
), of_verdict AS (
  SELECT DISTINCT if({_IS_SHARED}, '', source) AS home, message_key
  FROM deliveries
  WHERE verdict = $verdict
), traced AS (
  SELECT *, if({_IS_SHARED}, '', source) AS home,
    coalesce(
      $asked IN (message_key, destination, producer_client_id, producer, client)
      OR regexp_matches(destination, $topics::VARCHAR),
      false
    ) AS to_all
  FROM messages
  WHERE to_all AND (
      $verdict::VARCHAR IS NULL
      OR (home, message_key) IN (SELECT (home, message_key) FROM of_verdict)
    )
    OR (home, message_key) IN (SELECT (home, message_key) FROM of_consumer)
), either AS (
  SELECT d.verdict, d.destination, d.consumer, d.consumer_client_id, d.queue_ns, d.sent_ns,
    d.delivered_frame AS frame, d.source, d.stream, d."offset"
  FROM traced m JOIN latencies d ON {_HERE}
  WHERE to_all OR {_OF_CONSUMER}
  UNION ALL
  SELECT d.verdict, d.destination, d.consumer, d.consumer_client_id, NULL, d.sent_ns,
    coalesce(d.sent_frame, m.frame), d.source, d.stream, d."offset"
  FROM traced m JOIN deliveries d ON {_HERE}
  WHERE d.delivered_ns IS NULL AND (to_all OR {_OF_CONSUMER})
), attempts AS (
  SELECT *, {_RANK} AS rank FROM either
)
"""
_COUNTS: Final = f"""
SELECT
  (SELECT count(*) FROM traced) AS messages,
  (SELECT min(captured_ns) FROM traced) AS first_ns,
  (SELECT max(captured_ns) FROM traced) AS last_ns,
  (SELECT count(DISTINCT destination) FROM traced) AS destinations,
  (
    SELECT count(*) FROM deliveries
    WHERE message_key IS NULL
      AND (destination = $asked OR regexp_matches(destination, $topics::VARCHAR) OR {_OF_CONSUMER})
      AND ($verdict::VARCHAR IS NULL OR verdict = $verdict)
  ) AS unseen,
  quantile_cont(queue_ns, 0.5) AS p50_ns,
  quantile_cont(queue_ns, 0.99) AS p99_ns,
  count(queue_ns) AS timed
FROM attempts
"""
_VERDICTS: Final = (
    "SELECT verdict, count(*) AS n FROM attempts GROUP BY verdict, rank ORDER BY rank"
)
_WORST_ONES: Final = f"""
SELECT verdict, destination, consumer, consumer_client_id, queue_ns, source, frame
FROM attempts
ORDER BY least(rank, {len(WORST_FIRST) - len(GOOD) + 1}), queue_ns DESC NULLS LAST,
  sent_ns, source, stream, "offset", consumer
LIMIT {_WORST}
"""
_MESSAGES: Final = """
SELECT * EXCLUDE (home, to_all) FROM traced
ORDER BY captured_ns, sent_ms, source, stream, "offset"
LIMIT $limit
"""
_OF_KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "deliveries": f"""
            SELECT m.home, d.*, (
              SELECT min(l.queue_ns) FROM latencies l
              WHERE l.source = d.source AND l.stream = d.stream AND l."offset" = d."offset"
                AND l.consumer IS NOT DISTINCT FROM d.consumer AND l.message_key = d.message_key
            ) AS queue_ns
            FROM chosen m JOIN deliveries d ON {_HERE}
            ORDER BY {_RANK}, d.delivered_ns, d.delivered_frame, d.consumer, d.subscription""",
        "hops": """
            SELECT m.home, d.* FROM chosen m JOIN hops d USING (message_key) ORDER BY d.hop""",
        "replies": """
            SELECT m.home, m.message_key, d.* FROM chosen m JOIN conversations d
            ON d.request_key = m.message_key AND d.source = m.source ORDER BY d.requested_frame""",
        "requests": """
            SELECT m.home, m.message_key, d.* FROM chosen m JOIN conversations d
            ON d.reply_key = m.message_key AND d.source = m.source ORDER BY d.requested_frame""",
        "retained": """
            SELECT m.home, d.* FROM chosen m JOIN retained d
            ON d.message_key = m.message_key AND d.source = m.source ORDER BY d.from_frame""",
    }
)


@dataclass(frozen=True)
class Trace:
    """The traced messages, and their deliveries."""

    messages: int
    """Number of messages; `stories` has the first of them."""
    destinations: int
    first_ns: int | None
    last_ns: int | None
    unseen: int
    """Deliveries of messages whose sending was not captured, so that they have no key."""
    verdicts: dict[str, int]
    """Deliveries by verdict, the worst first; for a traced consumer only deliveries to it."""
    timed: int
    """Deliveries with a known time in queue, on which `p50_ns` and `p99_ns` are based."""
    p50_ns: float | None
    p99_ns: float | None
    worst: list[Row]
    """The worst deliveries: those with a verdict not in `GOOD`, then the slowest."""
    stories: list[Row]
    """For each message the rows of its deliveries, hops, replies, requests that it answers, and
    times as a retained value. Deliveries have their `queue_ns`, and are sorted worst first."""


def find_messages(tables: Tables, asked: str, *, verdict: str | None, limit: int) -> Trace:
    """Find the messages with a key, to a destination, or from or to a client.

    `asked` is a message key, a destination, a topic filter, a client id or an endpoint. With a
    `verdict`, only messages are found that have a delivery with it; for a client, a delivery to it.
    `limit` is the number of stories to read. A `UsageError` is raised if there is no such message.
    """
    is_filter = not {"+", "#"}.isdisjoint(asked.split("/"))
    topics = filter_pattern(asked) if is_filter else None
    given = {"asked": asked, "topics": topics, "verdict": verdict}
    (counts,) = tables.rows(_TRACED + _COUNTS, given)
    if not counts["messages"]:
        nothing = _nothing(asked, verdict, counts["unseen"])
        raise UsageError(nothing + tables.suggestion(asked))
    verdicts = tables.rows(_TRACED + _VERDICTS, given)
    worst = tables.rows(_TRACED + _WORST_ONES, given)
    messages = tables.sql(_TRACED + _MESSAGES, {**given, "limit": limit}).to_pylist()
    return Trace(
        **counts,
        verdicts={row["verdict"]: row["n"] for row in verdicts},
        worst=worst,
        stories=_stories(tables, messages),
    )


def _nothing(asked: str, verdict: str | None, unseen: int) -> str:
    subject = f"no message with the verdict '{verdict}'" if verdict else "no message"
    text = f"{subject} has the key '{asked}', was sent to it, or came from or went to such a client"
    if unseen:
        text += f"; {unseen} were delivered there, but who sent them was not captured"
    return text


def _stories(tables: Tables, messages: Sequence[Row]) -> list[Row]:
    """Return messages with the rows about them, by one query for each table."""
    homes = ["" if row["protocol"] in _SHARED else row["source"] for row in messages]
    names = ("source", "message_key", "protocol")
    given = {"home": homes} | {name: [row[name] for row in messages] for name in names}
    lists = ", ".join(f"unnest(${name}::VARCHAR[]) AS {name}" for name in given)
    grouped = {
        name: _grouped(tables.sql(f"WITH chosen AS (SELECT {lists}) {query}", given).to_pylist())
        for name, query in _OF_KEYS.items()
    }
    _add_reasons(tables, chain.from_iterable(grouped["deliveries"].values()))
    keys = [(home, row["message_key"]) for home, row in zip(homes, messages, strict=True)]
    return [
        {"message": message, **{name: of_key.get(key, []) for name, of_key in grouped.items()}}
        for key, message in zip(keys, messages, strict=True)
    ]


def _add_reasons(tables: Tables, deliveries: Iterable[Row]) -> None:
    """Add to deliveries without a verdict the packets that were not captured, as `unseen`."""
    undecided = [row for row in deliveries if row["verdict"] == "undecided"]
    known = reasons(tables) if undecided else {}
    for row in undecided:
        clients = ((row["source"], row[name]) for name in ("producer", "consumer"))
        row["unseen"] = next((known[one] for one in clients if one in known), None)


def _grouped(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    grouped = defaultdict(list)
    for row in rows:
        grouped[row.pop("home"), row["message_key"]].append(row)
    return grouped


def meaning_of(protocol: str, verdict: str) -> str:
    """Return the meaning of a verdict, empty if it has none."""
    known = _OF_PROTOCOLS[protocol].verdicts.get(verdict)
    return "" if known is None else known.meaning
