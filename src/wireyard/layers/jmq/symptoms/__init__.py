"""Symptoms of messages and clients of an Open MQ broker, and of its store."""

from __future__ import annotations

from typing import Final

from wireyard.layers.jmq.statuses import status_text
from wireyard.layers.jmq.waiting import (
    AWAY,
    COVERS,
    DENIED,
    DIED,
    ENDS,
    IS_DELIVERY,
    KEPT_BACK,
    OVERTAKEN,
    PARTLY_SEEN,
    PURGED,
    RECEIVER,
    SENDER,
    SENT,
)
from wireyard.layers.symptoms import (
    BACK,
    LONG_NS,
    SQL_SESSIONS,
    TRACE,
    TRACE_ALL,
    TRACE_CLIENT,
    Symptom,
    deliveries,
    of_verdicts,
)

_STORE: Final = "wireyard store {source}"
_WAITS: Final = f"""
SELECT * FROM jms_queued WHERE delayed_ms IS NULL AND end_ns - since_ns >= {LONG_NS}
"""


def _messages(
    query: str, client: str = "coalesce(producer_client_id, client)", by: str = "1, 2"
) -> str:
    """Return a query for messages, grouped by destination and client; the first is the proof."""
    return f"""
SELECT destination, {client} AS client, count(*) AS count, NULL AS verdict,
  arg_min(source, captured_ns) AS source, arg_min(frame, captured_ns) AS frame,
  arg_min(stream, captured_ns) AS stream, arg_min("offset", captured_ns) AS "offset"
FROM ({query})
GROUP BY {by}
"""


_UNCLAIMED: Final = f"""
SELECT * FROM ({_WAITS}) w
WHERE NOT has_consumer AND NOT EXISTS (
    FROM jms_consumers c
    WHERE c.source = w.source AND c.destination = w.destination AND c.selector IS NOT NULL
      AND coalesce(c.until_ns > w.since_ns, true)
  )
QUALIFY bool_or(NOT was_left) OVER (PARTITION BY source, destination)
"""
"""Messages in queues without a consumer, but not those that only wait because nobody acknowledged
them."""
_NO_CONSUMER: Final = _messages(_UNCLAIMED, "NULL", "1")
CLOSED: Final = f"EXISTS (FROM ({_UNCLAIMED}) w WHERE w.message_key = d.message_key)"
"""Condition for a delivery `d` whose consumer has closed: its message waits for any consumer."""
_SELECTOR: Final = f"""
WITH unmatched AS (
  SELECT source, destination, message_key, client, since_ns, false AS is_topic FROM ({_WAITS})
  UNION ALL
  SELECT m.source, m.destination, m.message_key, m.client, m.captured_ns, true
  FROM messages m
  LEFT JOIN transactions t ON t.source = m.source AND t.transaction_id = m.transaction_id
  WHERE m.protocol = 'jms' AND m.destination_kind IN ('topic', 'temporary_topic')
    AND m.captured_ns IS NOT NULL AND coalesce(t.outcome, 'committed') = 'committed'
)
SELECT c.destination, coalesce(c.client_id, c.client) AS client,
  count(DISTINCT u.message_key) AS count, c.selector, c.source, c.frame, c.stream, c."offset"
FROM jms_consumers c
JOIN unmatched u
ON u.source = c.source AND {COVERS.format("u")} AND u.is_topic = c.is_topic
  AND (NOT c.is_topic OR u.since_ns > c.captured_ns)
  AND u.since_ns < coalesce(c.until_ns, u.since_ns + 1)
  AND NOT (c.no_local AND coalesce(u.client = c.client, true))
WHERE c.selector IS NOT NULL AND c.is_whole
  AND NOT EXISTS (
    FROM deliveries d
    WHERE d.source = c.source AND d.consumer_id = c.consumer_id AND {COVERS.format("d")}
  )
GROUP BY ALL
"""


def _paused(marks: str, id_property: str) -> str:
    """Return a query for long pauses of flow control.

    `marks` is a query for the packets that began a pause, with `number`: the id of the paused
    producer or consumer, null for the whole connection. RESUME_FLOW (52) has this id in the
    property `id_property`.
    """
    return f"""
WITH marks AS ({marks}), paused AS (
  SELECT p.destination, p.client, p.source, p.frame, p.stream, p."offset",
    coalesce(min(r.captured_ns), any_value(b.ended_ns), any_value(e.end_ns)) - p.captured_ns
      AS paused_ns
  FROM marks p
  JOIN ({ENDS}) e ON e.source = p.source
  LEFT JOIN streams b ON b.source = p.source AND b.stream = p.stream
  LEFT JOIN packets_jmq r
  ON r.source = p.source AND r.packet_type = 52 AND r.captured_ns >= p.captured_ns
    AND r.src_addr = p.from_addr AND r.src_port = p.from_port
    AND r.dst_addr = p.to_addr AND r.dst_port = p.to_port
    AND r.properties['{id_property}'].value IS NOT DISTINCT FROM p.number
    AND coalesce(r.properties['JMQSize'].value, '') <> '0'
  WHERE p.captured_ns IS NOT NULL AND NOT EXISTS (
      FROM sessions i
      WHERE i.source = p.source AND i.client = p.client AND i.in_flight_sent IS NULL
        AND i.protocol = 'jms'
    )
  GROUP BY 1, 2, 3, 4, 5, 6, p.captured_ns
)
SELECT destination, client, count(*) AS count, max(paused_ns) // 1000000 / 1000 AS longest_s,
  arg_max(source, paused_ns) AS source, arg_max(frame, paused_ns) AS frame,
  arg_max(stream, paused_ns) AS stream, arg_max("offset", paused_ns) AS "offset"
FROM paused
WHERE paused_ns >= {LONG_NS}
GROUP BY 1, 2
"""


_MARK: Final = """p.source, p.frame, p.stream, p."offset", p.captured_ns"""
_TOSENDER: Final = """p.dst_addr AS from_addr, p.dst_port AS from_port, p.src_addr AS to_addr,
  p.src_port AS to_port"""
_PRODUCER_PAUSED: Final = _paused(
    f"""
SELECT p.destination, {SENDER.format("p")} AS client, {_MARK}, {_TOSENDER},
  if(p.flags LIKE '%C%', p.producer_id::VARCHAR, NULL) AS number
FROM packets_jmq p
WHERE p.packet_type BETWEEN 1 AND 6 AND NOT {IS_DELIVERY}
  AND (p.flags LIKE '%C%' OR p.flags LIKE '%F%')
UNION ALL
SELECT regexp_replace(p.properties['JMQDestinationID'].value, '^[QT]:', ''),
  {RECEIVER.format("p")}, {_MARK},
  p.src_addr, p.src_port, p.dst_addr, p.dst_port, p.properties['JMQProducerID'].value
FROM packets_jmq p
WHERE p.packet_type IN (19, 52) AND p.properties['JMQSize'].value = '0'
  AND p.properties['JMQProducerID'].value IS NOT NULL
""",
    "JMQProducerID",
)
"""A producer has sent the last message that it may send (flags C and F), or must stop sending."""
_CONSUMER_PAUSED: Final = _paused(
    f"""
SELECT p.destination, {RECEIVER.format("p")} AS client, {_MARK}, {_TOSENDER},
  if(p.flags LIKE '%C%', p.consumer_id::VARCHAR, NULL) AS number
FROM packets_jmq p
WHERE p.packet_type BETWEEN 1 AND 6 AND {IS_DELIVERY}
  AND (p.flags LIKE '%C%' OR p.flags LIKE '%F%')
""",
    "JMQConsumerID",
)
"""A broker has sent the last message that a consumer has room for."""


def _denied(condition: str) -> str:
    """Return a query for messages that an Open MQ broker did not accept."""
    return f"""
SELECT destination, client, count(*) AS count, {status_text("min(status)", "min(reason)")} AS said,
  arg_min(source, captured_ns) AS source,
  arg_min(frame, captured_ns) AS frame, arg_min(stream, captured_ns) AS stream,
  arg_min("offset", captured_ns) AS "offset"
FROM ({DENIED})
WHERE captured_ns IS NOT NULL AND {condition}
GROUP BY 1, 2
"""


_REQUEST_REFUSED: Final = f"""
SELECT NULL AS destination, if(c.by_broker, c.responder, c.requester) AS client,
  count(*) AS count, c.request, if(c.by_broker, 'client', 'broker') AS refuser,
  {status_text("c.status")} AS said,
  arg_min(c.source, c.requested_ns) AS source, arg_min(c.requested_frame, c.requested_ns) AS frame,
  arg_min(c.stream, c.requested_ns) AS stream, arg_min(c."offset", c.requested_ns) AS "offset"
FROM (
  SELECT *, (source, requester) IN (SELECT (source, server) FROM sessions) AS by_broker
  FROM conversations
) c
WHERE c.kind = 'control' AND c.requested_ns IS NOT NULL AND c.status >= 400
  AND c.request NOT IN ('HELLO', 'AUTHENTICATE')
  AND NOT (c.request LIKE '%_MESSAGE' OR c.request = 'MESSAGE')
  AND NOT (c.request IN ('VERIFY_DESTINATION', 'BROWSE', 'DELIVER') AND c.status = 404)
  AND NOT (c.request = 'CREATE_DESTINATION' AND c.status = 409)
GROUP BY 2, c.by_broker, c.request, c.status
"""
REQUEST_UNANSWERED: Final = f"""
WITH asked AS (
  SELECT c.*, s.client, if(s.client = c.requester, 'broker', 'client') AS silent,
    max(c.replied_ns) OVER (
      PARTITION BY c.source, c.requester ORDER BY c.requested_ns DESC
    ) AS later_ns,
    coalesce(s.closed_ns, e.end_ns) - c.requested_ns AS waited_ns
  FROM conversations c
  JOIN ({ENDS}) e ON e.source = c.source
  JOIN sessions s
  ON s.source = c.source AND s.protocol = 'jms'
    AND s.client IN (c.requester, c.responder) AND s.server IN (c.requester, c.responder)
    AND split_part(s.stream, '#', 2) = split_part(c.stream, '#', 2)
    AND s.in_flight_sent IS NOT NULL
  WHERE c.kind = 'control' AND (c.source, c.stream) NOT IN (
      SELECT (source, {BACK}) FROM streams WHERE NOT begun
    )
)
SELECT NULL AS destination, client, count(*) AS count, request, silent,
  arg_min(source, requested_ns) AS source, arg_min(requested_frame, requested_ns) AS frame,
  arg_min(stream, requested_ns) AS stream, arg_min("offset", requested_ns) AS "offset"
FROM asked
WHERE reply_key IS NULL AND (waited_ns >= {LONG_NS} OR later_ns IS NOT NULL)
  AND NOT (request LIKE '%_MESSAGE' OR request = 'MESSAGE')
GROUP BY client, request, silent
"""
_UNACCEPTED: Final = _messages(
    f"""
SELECT m.* FROM ({SENT}) m
WHERE m.is_unanswered AND m.is_whole
  AND (m.ended_by <> 'open' OR m.end_ns - m.since_ns >= {LONG_NS})
  AND NOT EXISTS (FROM deliveries d WHERE d.message_key = m.message_key)
"""
)
_NEVER_DELIVERED: Final = f"""
SELECT m.destination, coalesce(m.producer_client_id, m.client) AS client, count(*) AS count,
  arg_min(m.source, m.captured_ns) AS source, arg_min(m.frame, m.captured_ns) AS frame,
  arg_min(m.stream, m.captured_ns) AS stream, arg_min(m."offset", m.captured_ns) AS "offset"
FROM messages m JOIN ({ENDS}) e ON e.source = m.source
JOIN sessions s
ON s.source = m.source AND s.protocol = 'jms' AND s.client = m.client
  AND split_part(s.stream, '#', 2) = split_part(m.stream, '#', 2)
WHERE m.protocol = 'jms' AND m.captured_ns IS NOT NULL AND m.first_seen = 'sent'
  AND (s.source, s.server) NOT IN ({PARTLY_SEEN})
  AND m.destination_kind IN ('queue', 'temporary_queue')
  AND m.expiration_ms > 0 AND m.expiration_ms < e.end_ns // 1000000
  AND NOT EXISTS (FROM deliveries d WHERE d.message_key = m.message_key)
GROUP BY 1, 2
"""


def _stored(state: str) -> str:
    """Return a query for unacknowledged messages in a store, delivered to a consumer or not."""
    was_delivered = "len([x FOR x IN packet.consumers IF x.state = 'delivered']) > 0"
    is_left = "len([x FOR x IN packet.consumers IF x.state = 'acknowledged']) = 0"
    return f"""
SELECT destination, NULL AS client, count(*) AS count, min(source) AS source, NULL AS frame,
  min_by(stream, source) AS stream, min_by("offset", source) AS "offset"
FROM (
  SELECT source, stream, "offset", destination, unnest(packets) AS packet
  FROM store_records
  WHERE state = 'allocated' AND destination IS NOT NULL
)
WHERE {is_left} AND {"" if state == "delivered" else "NOT "}({was_delivered})
GROUP BY 1
"""


_KEPT_BACK: Final = f"""
SELECT destination, NULL AS client, count(*) AS count, NULL AS verdict,
  max(queue_ns) // 1000000 / 1000 AS longest_s, arg_max(source, queue_ns) AS source,
  arg_max(frame, queue_ns) AS frame, arg_max(stream, queue_ns) AS stream,
  arg_max("offset", queue_ns) AS "offset"
FROM ({KEPT_BACK})
WHERE queue_ns >= {LONG_NS}
GROUP BY 1
"""


SYMPTOMS: Final = (
    Symptom(
        "expired_unseen",
        "lost",
        "{messages} of this client expired in the queue, delivered to no consumer",
        TRACE_ALL,
        _NEVER_DELIVERED,
    ),
    of_verdicts(
        "dead",
        "lost",
        "{messages} that the client could not consume, buried by the broker",
        "dead",
    ),
    Symptom(
        "dead_messages",
        "lost",
        "{messages} came out of the dead message queue, reason {dead_reason}",
        TRACE_ALL,
        deliveries("d.dead_reason IS NOT NULL"),
    ),
    Symptom(
        "died_with_queue",
        "lost",
        "{messages} in a temporary queue that the requester closed without reading",
        TRACE_ALL,
        _messages(DIED, "coalesce(owner_id, owner)"),
    ),
    Symptom(
        "overtaken",
        "lost",
        "{messages} gone from the queue while a consumer was connected, which got later ones"
        " (paused or purged?)",
        TRACE_ALL,
        _messages(OVERTAKEN, "NULL", "1"),
    ),
    Symptom(
        "purged",
        "lost",
        "{messages} in a queue that the administrator purged or destroyed",
        TRACE_ALL,
        _messages(PURGED, "NULL", "1"),
    ),
    Symptom(
        "kept_back",
        "slow",
        "{messages} waited for up to {longest_s} s in the queue, though their consumer had room"
        " (paused?)",
        TRACE_ALL,
        _KEPT_BACK,
    ),
    Symptom(
        "queued_away",
        "stuck",
        "{messages} queued for a client that is away",
        TRACE,
        _messages(AWAY, "subscriber"),
    ),
    Symptom(
        "unaccepted",
        "stuck",
        "nothing shows that the broker took {messages} of this client",
        TRACE,
        _UNACCEPTED,
    ),
    Symptom(
        "no_consumer",
        "stuck",
        "{messages} in a queue that nobody consumes",
        TRACE_ALL,
        _NO_CONSUMER,
    ),
    Symptom(
        "selector_matches_nothing",
        "stuck",
        "the selector {selector} of the consumer matched none of {messages}",
        TRACE_ALL,
        _SELECTOR,
    ),
    Symptom(
        "producer_paused",
        "stuck",
        "flow control paused the producer for up to {longest_s} s ({times})",
        TRACE_ALL,
        _PRODUCER_PAUSED,
    ),
    Symptom(
        "consumer_paused",
        "stuck",
        "the consumer was full and paused delivery for up to {longest_s} s ({times})",
        TRACE_CLIENT,
        _CONSUMER_PAUSED,
    ),
    Symptom(
        "stored_unacknowledged",
        "stuck",
        "{messages} in the store, delivered to a consumer and not acknowledged",
        _STORE,
        _stored("delivered"),
        table="store_records",
    ),
    Symptom(
        "stored",
        "stuck",
        "{messages} in the store, delivered to no consumer",
        _STORE,
        _stored("routed"),
        table="store_records",
    ),
    Symptom(
        "over_limit",
        "refused",
        "{messages} over a limit of the broker, status {said}",
        TRACE_ALL,
        _denied("status IN (414, 423)"),
    ),
    Symptom(
        "send_refused",
        "refused",
        "{messages} of this client refused by the broker, status {said}",
        TRACE_ALL,
        _denied("status NOT IN (414, 423)"),
    ),
    Symptom(
        "request_refused",
        "refused",
        "{request} refused by the {refuser} ({times}), with status {said}",
        SQL_SESSIONS,
        _REQUEST_REFUSED,
    ),
    of_verdicts(
        "given_back",
        "odd",
        "{messages} rolled back, or returned after the application had seen them",
        *("rolled_back", "returned_seen"),
    ),
)
