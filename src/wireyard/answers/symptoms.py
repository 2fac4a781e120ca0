"""What may be wrong with messages and their clients: the table of symptoms, a query each.

A query selects what has a symptom, a row each, with these columns: `destination` and `client`, of
which one may be null, `count`, and its proof: `source`, `frame`, `stream` and `offset` of a packet
or of a stored record, which has no frame. What else `text` and `next` name in braces is a column,
too; there ``input`` is what was asked, ``subject`` the destination, or the client, and
``messages``, ``times`` and so on are the count with that word.

Queries look at what has times. Of a bare stream one direction is there, and nobody answers in it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from wireyard.answers.latencies import DENIED, ENDS, SLOWER, WAITING

__all__ = ["LONG_NS", "SEVERITIES", "SYMPTOMS", "Symptom"]

LONG_NS: Final = 1_000_000_000
"""What waits for less is under way and not stuck: brokers at work pause for some hundred
milliseconds, and a second is what people notice."""
MUCH_SLOWER_NS: Final = 100_000_000
"""How much slower than its peers a consumer is at least for `why` to name it."""
SEVERITIES: Final = ("lost", "stuck", "refused", "cut", "slow", "odd")
"""The worst first: messages are gone; they wait; somebody was turned away, or disconnected; it
takes long; it is worth a look."""


class Symptom(NamedTuple):
    """How something that is wrong shows, and what to look at next."""

    code: str
    severity: str
    text: str
    next: str
    query: str


_NAME: Final = "coalesce(d.consumer_client_id, d.consumer)"
_SENDER: Final = "coalesce(d.producer_client_id, d.producer)"
_AT: Final = "coalesce(d.delivered_ns, d.sent_ns)"


def _deliveries(condition: str, *, client: str = _NAME, join: str = "") -> str:
    """Return a query for deliveries by destination and client; the proof is the first of them."""
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


def _sessions(condition: str, columns: str = "", join: str = "") -> str:
    """Return a query for connections, a row each client; the proof is the last one's last frame."""
    return f"""
SELECT NULL AS destination, coalesce(nullif(s.client_id, ''), s.client) AS client,
  count(*) AS count, arg_max(s.source, s.closed_ns) AS source,
  arg_max(coalesce(s.closed_frame, s.opened_frame), s.closed_ns) AS frame,
  arg_max(s.stream, s.closed_ns) AS stream, arg_max(s."offset", s.closed_ns) AS "offset"{columns}
FROM sessions s {join}
WHERE s.opened_ns IS NOT NULL AND ({condition})
GROUP BY 2
"""


_TRACE: Final = "wireyard trace {input} {subject} --verdict {verdict}"
_TRACE_ALL: Final = "wireyard trace {input} {subject}"
_TRACE_CLIENT: Final = "wireyard trace {input} {client}"
_SLICE: Final = "wireyard inspect {source} --at {offset} --stream {stream}"
_SLOW: Final = "wireyard slow {input}"
_SQL_SESSIONS: Final = 'wireyard sql {input} "FROM sessions ORDER BY client_id, opened_ns"'
_STORE: Final = "wireyard store {source}"

_END: Final = f"JOIN ({ENDS}) e ON e.source = d.source"
_IS_THERE: Final = """EXISTS (
    FROM sessions s
    WHERE s.source = d.source AND s.protocol = 'mqtt' AND s.client_id = d.consumer_client_id
      AND s.ended_by = 'open' AND s.status = 0
  )"""
_TAKEN_OVER: Final = """EXISTS (
    FROM sessions o
    WHERE o.source = s.source AND o.server = s.server AND o.client_id = s.client_id
      AND o.protocol = 'mqtt' AND o.status = 0 AND o.client <> s.client
      AND o.opened_ns > s.opened_ns AND o.opened_ns <= s.closed_ns
  ) AND s.protocol = 'mqtt' AND s.client_id <> '' AND s.ended_by IN ('dropped', 'server')"""
_LAST_WORD: Final = """LEFT JOIN (
    SELECT source, stream, max(captured_ns) AS said_ns FROM packets_mqtt GROUP BY ALL
  ) p ON p.source = s.source AND p.stream = s.stream"""
_SILENT: Final = """s.protocol = 'mqtt' AND s.keep_alive > 0 AND s.ended_by IN ('dropped', 'server')
  AND s.closed_ns - p.said_ns >= 1500000000 * s.keep_alive::BIGINT"""
_SILENCE: Final = ", max(s.closed_ns - p.said_ns) // 1000000000 AS silent_s, "
_SILENCE_OF: Final = _SILENCE + "min(s.keep_alive) AS keep_alive"
_STATUS: Final = ", min(s.status) AS status, min(s.protocol) AS protocol"

_WINDOW_FULL: Final = f"""
WITH waited AS (
  SELECT d.* FROM latencies d
  WHERE d.protocol = 'mqtt' AND d.qos > 0 AND d.queue_ns >= {LONG_NS}
), before AS (
  SELECT w.source, w.destination, {_NAME.replace("d.", "w.")} AS client, w.sent_ns,
    w.delivered_frame AS frame, w.stream, w."offset"
  FROM waited w ASOF JOIN (
    SELECT source, consumer, delivered_ns, acknowledged_ns FROM deliveries
    WHERE protocol = 'mqtt' AND acknowledged_ns IS NOT NULL
  ) a ON a.source = w.source AND a.consumer = w.consumer AND a.acknowledged_ns <= w.delivered_ns
  WHERE a.delivered_ns <= w.sent_ns AND a.acknowledged_ns >= w.sent_ns
  UNION ALL
  SELECT d.source, d.destination, {_NAME}, d.sent_ns, d.sent_frame, d.stream, d."offset"
  FROM deliveries d
  WHERE d.verdict = 'queued' AND d.sent_ns IS NOT NULL AND {_IS_THERE}
)
SELECT destination, client, count(*) AS count, arg_min(source, sent_ns) AS source,
  arg_min(frame, sent_ns) AS frame, arg_min(stream, sent_ns) AS stream,
  arg_min("offset", sent_ns) AS "offset"
FROM before
GROUP BY 1, 2
"""
_PERSISTENT: Final = """
SELECT source, stream, "offset", clean_start,
  (coalesce(protocol_version, 4) < 5 AND NOT clean_start) OR coalesce(TRY_CAST(
    [x.value FOR x IN properties IF x.name = 'session_expiry_interval'][1] AS BIGINT), 0) > 0
  AS persistent
FROM packets_mqtt WHERE packet_type = 1
"""
_SESSION_EXPIRED: Final = f"""
WITH logins AS (
  SELECT s.*, p.clean_start, lag(p.persistent) OVER (
      PARTITION BY s.source, s.server, s.client_id ORDER BY s.opened_ns) AS had_session
  FROM sessions s JOIN ({_PERSISTENT}) p USING (source, stream, "offset")
  WHERE s.protocol = 'mqtt' AND s.status = 0
)
SELECT NULL AS destination, client_id AS client, count(*) AS count,
  arg_min(source, opened_ns) AS source, arg_min(opened_frame, opened_ns) AS frame,
  arg_min(stream, opened_ns) AS stream, arg_min("offset", opened_ns) AS "offset"
FROM logins
WHERE had_session AND NOT clean_start AND NOT resumed
GROUP BY 2
"""
_RETAINED_UNREAD: Final = """
SELECT r.topic AS destination, r.producer_client_id AS client, count(*) AS count,
  arg_max(r.source, r.from_ns) AS source, arg_max(r.from_frame, r.from_ns) AS frame,
  arg_max(r.stream, r.from_ns) AS stream, arg_max(r."offset", r.from_ns) AS "offset"
FROM retained r
WHERE r.from_ns IS NOT NULL AND r.to_ns IS NULL AND octet_length(r.payload) > 0
  AND EXISTS (
    FROM deliveries d
    WHERE d.source = r.source AND d.message_key = r.message_key AND d.verdict = 'no_subscriber'
  )
  AND NOT EXISTS (
    FROM deliveries d
    WHERE d.source = r.source AND d.destination = r.topic AND d.delivered_ns IS NOT NULL
  )
GROUP BY 1, 2
"""
_SUBSCRIPTION_REFUSED: Final = """
SELECT NULL AS destination, coalesce(s.client_id, r.dst_addr || ':' || r.dst_port) AS client,
  count(*) AS count, arg_min(list_max(r.return_codes), r.captured_ns) AS status,
  arg_min(r.source, r.captured_ns) AS source, arg_min(r.frame, r.captured_ns) AS frame,
  arg_min(r.stream, r.captured_ns) AS stream, arg_min(r."offset", r.captured_ns) AS "offset"
FROM packets_mqtt r LEFT JOIN sessions s
ON s.source = r.source AND s.protocol = 'mqtt' AND s.client = r.dst_addr || ':' || r.dst_port
  AND r.captured_ns >= s.opened_ns AND coalesce(r.captured_ns <= s.closed_ns, true)
WHERE r.packet_type = 9 AND r.captured_ns IS NOT NULL AND list_max(r.return_codes) >= 128
GROUP BY 2
"""

_WAITS: Final = f"""
  SELECT w.destination, w.source, w.frame, w.message_key, w.since_ns, m.stream, m."offset"
  FROM ({WAITING}) w JOIN ({ENDS}) e ON e.source = w.source
  JOIN messages m ON m.source = w.source AND m.message_key = w.message_key
  WHERE w.state = 'no consumer' AND e.end_ns - w.since_ns >= {LONG_NS}
"""
_CONSUMERS: Final = """
  SELECT c.source, c.frame, c.stream, c."offset", c.captured_ns, c.src_addr, c.src_port,
    c.properties['JMQDestination'].value AS destination,
    c.properties['JMQDestType'].value::INTEGER & 2 > 0 AS is_topic,
    nullif(c.properties['JMQSelector'].value, '') AS selector,
    r.properties['JMQConsumerID'].value::BIGINT AS consumer_id
  FROM packets_jmq c JOIN packets_jmq r
  ON r.source = c.source AND r.consumer_id = c.consumer_id AND r.packet_type = 15
    AND r.src_addr = c.dst_addr AND r.src_port = c.dst_port
    AND r.dst_addr = c.src_addr AND r.dst_port = c.src_port
  WHERE c.packet_type = 14 AND r.properties['JMQStatus'].value = '200'
    AND c.captured_ns IS NOT NULL
"""
_NO_CONSUMER: Final = f"""
SELECT w.destination, NULL AS client, count(*) AS count, arg_min(w.source, w.since_ns) AS source,
  arg_min(w.frame, w.since_ns) AS frame, arg_min(w.stream, w.since_ns) AS stream,
  arg_min(w."offset", w.since_ns) AS "offset"
FROM ({_WAITS}) w
WHERE NOT EXISTS (
  FROM ({_CONSUMERS}) c WHERE c.source = w.source AND c.destination = w.destination
)
GROUP BY 1
"""
_SELECTOR: Final = f"""
WITH unmatched AS (
  SELECT source, destination, message_key, since_ns, false AS is_topic FROM ({_WAITS})
  UNION ALL
  SELECT m.source, m.destination, m.message_key, m.captured_ns, true
  FROM messages m
  WHERE m.protocol = 'jms' AND m.destination_kind IN ('topic', 'temporary_topic')
    AND m.captured_ns IS NOT NULL
)
SELECT c.destination, coalesce(s.client_id, s.client, c.src_addr || ':' || c.src_port) AS client,
  count(DISTINCT u.message_key) AS count, c.selector, c.source, c.frame, c.stream, c."offset"
FROM ({_CONSUMERS}) c
JOIN unmatched u
ON u.source = c.source AND u.destination = c.destination AND u.is_topic = c.is_topic
  AND (NOT c.is_topic OR u.since_ns > c.captured_ns)
LEFT JOIN sessions s
ON s.source = c.source AND s.protocol = 'jms' AND s.client = c.src_addr || ':' || c.src_port
WHERE c.selector IS NOT NULL
  AND NOT EXISTS (
    FROM deliveries d
    WHERE d.source = c.source AND d.consumer_id = c.consumer_id AND d.destination = c.destination
  )
GROUP BY ALL
"""


def _paused(marks: str, whose: str) -> str:
    """Return a query for long pauses of flow control.

    Parameters
    ----------
    marks
        A query for the packets that began a pause, with `number`, the producer or consumer that it
        is of, null for the whole connection.
    whose
        The property of RESUME_FLOW (52) that has this number.
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
    AND r.properties['{whose}'].value IS NOT DISTINCT FROM p.number
    AND coalesce(r.properties['JMQSize'].value, '') <> '0'
  WHERE p.captured_ns IS NOT NULL
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
_TO_SENDER: Final = """p.dst_addr AS from_addr, p.dst_port AS from_port, p.src_addr AS to_addr,
  p.src_port AS to_port"""
_PRODUCER_PAUSED: Final = _paused(
    f"""
SELECT p.destination, p.src_addr || ':' || p.src_port AS client, {_MARK}, {_TO_SENDER},
  if(p.flags LIKE '%C%', p.producer_id::VARCHAR, NULL) AS number
FROM packets_jmq p
WHERE p.packet_type BETWEEN 1 AND 6 AND p.delivery_count IS NULL
  AND (p.flags LIKE '%C%' OR p.flags LIKE '%F%')
UNION ALL
SELECT regexp_replace(p.properties['JMQDestinationID'].value, '^[QT]:', ''),
  p.dst_addr || ':' || p.dst_port, {_MARK},
  p.src_addr, p.src_port, p.dst_addr, p.dst_port, p.properties['JMQProducerID'].value
FROM packets_jmq p
WHERE p.packet_type IN (19, 52) AND p.properties['JMQSize'].value = '0'
  AND p.properties['JMQProducerID'].value IS NOT NULL
""",
    "JMQProducerID",
)
"""A producer waits behind the last message that it may send (flags C and F), or had to stop."""
_CONSUMER_PAUSED: Final = _paused(
    f"""
SELECT p.destination, p.dst_addr || ':' || p.dst_port AS client, {_MARK}, {_TO_SENDER},
  if(p.flags LIKE '%C%', p.consumer_id::VARCHAR, NULL) AS number
FROM packets_jmq p
WHERE p.packet_type BETWEEN 1 AND 6 AND p.delivery_count IS NOT NULL
  AND (p.flags LIKE '%C%' OR p.flags LIKE '%F%')
""",
    "JMQConsumerID",
)
"""A broker waits behind the last message that a consumer has room for."""


def _denied(condition: str) -> str:
    """Return a query for messages that an Open MQ broker did not take."""
    return f"""
SELECT destination, src_addr || ':' || src_port AS client, count(*) AS count,
  min(status) AS status, min(reason) AS reason, arg_min(source, captured_ns) AS source,
  arg_min(frame, captured_ns) AS frame, arg_min(stream, captured_ns) AS stream,
  arg_min("offset", captured_ns) AS "offset"
FROM ({DENIED})
WHERE captured_ns IS NOT NULL AND {condition}
GROUP BY 1, 2
"""


_REQUEST_REFUSED: Final = """
SELECT NULL AS destination, c.requester AS client, count(*) AS count, c.request, c.status,
  arg_min(c.source, c.requested_ns) AS source, arg_min(c.requested_frame, c.requested_ns) AS frame,
  arg_min(c.stream, c.requested_ns) AS stream, arg_min(c."offset", c.requested_ns) AS "offset"
FROM conversations c
WHERE c.kind = 'control' AND c.requested_ns IS NOT NULL AND c.status >= 400
  AND c.request NOT IN ('HELLO', 'AUTHENTICATE')
  AND NOT (c.request LIKE '%_MESSAGE' OR c.request = 'MESSAGE')
  AND NOT (c.request IN ('VERIFY_DESTINATION', 'BROWSE', 'DELIVER') AND c.status = 404)
  AND NOT (c.request = 'CREATE_DESTINATION' AND c.status = 409)
GROUP BY c.requester, c.request, c.status
"""
_SLOW_CONSUMER: Final = f"""
WITH busy AS (
  SELECT d.source, d.consumer, d.destination, min(d.delivered_ns) AS first_ns
  FROM deliveries d WHERE d.delivered_ns IS NOT NULL GROUP BY ALL
), named AS (
  SELECT destination, name AS client, deliveries AS count, what, median_ns, peers_ns
  FROM ({SLOWER})
  WHERE median_ns - peers_ns >= {MUCH_SLOWER_NS}
  UNION ALL
  SELECT l.destination, coalesce(l.consumer_client_id, l.consumer), count(*), 'in queue',
    quantile_cont(l.queue_ns, 0.5), NULL
  FROM latencies l JOIN busy b USING (source, consumer, destination)
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
FROM named n JOIN deliveries d ON d.destination = n.destination AND {_NAME} = n.client
WHERE d.sent_ns >= 0 AND d.delivered_ns >= 0
GROUP BY ALL
"""
_NEVER_DELIVERED: Final = f"""
SELECT m.destination, coalesce(m.producer_client_id, m.client) AS client, count(*) AS count,
  arg_min(m.source, m.captured_ns) AS source, arg_min(m.frame, m.captured_ns) AS frame,
  arg_min(m.stream, m.captured_ns) AS stream, arg_min(m."offset", m.captured_ns) AS "offset"
FROM messages m JOIN ({ENDS}) e ON e.source = m.source
WHERE m.protocol = 'jms' AND m.captured_ns IS NOT NULL AND m.first_seen = 'sent'
  AND m.destination_kind IN ('queue', 'temporary_queue')
  AND m.expiration_ms > 0 AND m.expiration_ms < e.end_ns // 1000000
  AND NOT EXISTS (FROM deliveries d WHERE d.message_key = m.message_key)
GROUP BY 1, 2
"""


def _stored(state: str) -> str:
    """Return a query for messages in a store, by whether some consumer had them."""
    had = "len([x FOR x IN packet.consumers IF x.state = 'delivered']) > 0"
    left = "len([x FOR x IN packet.consumers IF x.state = 'acknowledged']) = 0"
    return f"""
SELECT destination, NULL AS client, count(*) AS count, min(source) AS source, NULL AS frame,
  min_by(stream, source) AS stream, min_by("offset", source) AS "offset"
FROM (
  SELECT source, stream, "offset", destination, unnest(packets) AS packet
  FROM store_records
  WHERE state = 'allocated' AND destination IS NOT NULL
)
WHERE {left} AND {"" if state == "delivered" else "NOT "}({had})
GROUP BY 1
"""


_GAPS: Final = """
SELECT NULL AS destination, stream AS client, 1 AS count, bytes_gap AS bytes, source,
  NULL AS frame, stream, 0 AS "offset"
FROM streams
WHERE bytes_gap > 0 AND format IS NOT NULL AND transport IS NOT NULL
"""
_MALFORMED: Final = """
SELECT NULL AS destination, q.stream AS client, count(*) AS count, q.source, NULL AS frame,
  q.stream, min(q."offset") AS "offset"
FROM quarantine q JOIN streams s ON s.source = q.source AND s.stream = q.stream
WHERE s.transport IS NOT NULL AND q.status IN ('malformed', 'garbage')
GROUP BY q.source, q.stream
"""
_VIOLATIONS: Final = """
SELECT NULL AS destination, coalesce(client_id, client) AS client, count(*) AS count, rule,
  min(text) AS said, arg_min(source, captured_ns) AS source, arg_min(frame, captured_ns) AS frame,
  arg_min(stream, captured_ns) AS stream, arg_min("offset", captured_ns) AS "offset"
FROM violations
WHERE captured_ns IS NOT NULL
GROUP BY 2, rule
"""

SYMPTOMS: Final = (
    # MQTT and JMS: messages that are gone.
    Symptom(
        "not_forwarded",
        "lost",
        "{messages} accepted by the broker and not delivered to a connected subscriber",
        _TRACE,
        _deliveries("d.verdict = 'not_forwarded'"),
    ),
    Symptom(
        "discarded",
        "lost",
        "{messages} waited for a client whose session then ended",
        _TRACE,
        _deliveries("d.verdict = 'discarded'"),
    ),
    Symptom(
        "expired",
        "lost",
        "{messages} expired before being consumed",
        _TRACE,
        _deliveries("d.verdict = 'expired'"),
    ),
    Symptom(
        "expired_unseen",
        "lost",
        "{messages} of this client expired in the queue, delivered to no consumer",
        _TRACE_ALL,
        _NEVER_DELIVERED,
    ),
    Symptom(
        "dead",
        "lost",
        "{messages} that the client could not consume, buried by the broker",
        _TRACE,
        _deliveries("d.verdict = 'dead'"),
    ),
    Symptom(
        "dead_messages",
        "lost",
        "{messages} came out of the dead message queue, reason {dead_reason}",
        _TRACE_ALL,
        _deliveries("d.dead_reason IS NOT NULL"),
    ),
    Symptom(
        "too_large",
        "lost",
        "{messages} above the Maximum Packet Size of the client, dropped",
        _TRACE,
        _deliveries("d.verdict = 'too_large'"),
    ),
    # Messages that wait.
    Symptom(
        "window_full",
        "stuck",
        "{messages} waited until the client acknowledged others: its window was full",
        _TRACE_CLIENT,
        _WINDOW_FULL,
    ),
    Symptom(
        "queued_away",
        "stuck",
        "{messages} queued for a client that is away",
        _TRACE,
        _deliveries(f"d.verdict = 'queued' AND NOT {_IS_THERE}"),
    ),
    Symptom(
        "no_consumer",
        "stuck",
        "{messages} in a queue that nobody consumes",
        _TRACE_ALL,
        _NO_CONSUMER,
    ),
    Symptom(
        "selector_matches_nothing",
        "stuck",
        "the selector {selector} of the consumer matched none of {messages}",
        _TRACE_ALL,
        _SELECTOR,
    ),
    Symptom(
        "unacknowledged",
        "stuck",
        "{messages} delivered more than a second before the end, not acknowledged",
        _TRACE,
        _deliveries(
            "d.verdict IN ('in_flight', 'held', 'in_transaction')"
            f" AND e.end_ns - d.delivered_ns >= {LONG_NS}",
            join=_END,
        ),
    ),
    Symptom(
        "never_acknowledged",
        "stuck",
        "{messages} delivered; the session ended without an acknowledgement",
        _TRACE,
        _deliveries("d.verdict IN ('abandoned', 'left')"),
    ),
    Symptom(
        "unaccepted",
        "stuck",
        "nothing shows that the broker took {messages} of this client",
        _TRACE,
        _deliveries("d.verdict = 'unaccepted'", client=_SENDER),
    ),
    Symptom(
        "producer_paused",
        "stuck",
        "flow control paused the producer for up to {longest_s} s ({times})",
        _TRACE_ALL,
        _PRODUCER_PAUSED,
    ),
    Symptom(
        "consumer_paused",
        "stuck",
        "the consumer was full and paused delivery for up to {longest_s} s ({times})",
        _SLOW,
        _CONSUMER_PAUSED,
    ),
    Symptom(
        "stored_unacknowledged",
        "stuck",
        "{messages} in the store, delivered to a consumer and not acknowledged",
        _STORE,
        _stored("delivered"),
    ),
    Symptom(
        "stored",
        "stuck",
        "{messages} in the store, delivered to no consumer",
        _STORE,
        _stored("routed"),
    ),
    # Who was turned away.
    Symptom(
        "login_refused",
        "refused",
        "{logins} refused, with status {status}",
        _SQL_SESSIONS,
        _sessions("s.ended_by = 'refused'", _STATUS),
    ),
    Symptom(
        "publish_refused",
        "refused",
        "{messages} of this client refused by the broker",
        _TRACE,
        _deliveries("d.verdict = 'refused'", client=_SENDER),
    ),
    Symptom(
        "over_limit",
        "refused",
        "{messages} over a limit of the broker, status {status}: {reason}",
        _TRACE_ALL,
        _denied("status IN ('414', '423')"),
    ),
    Symptom(
        "send_refused",
        "refused",
        "{messages} of this client refused by the broker, status {status}: {reason}",
        _TRACE_ALL,
        _denied("status NOT IN ('414', '423')"),
    ),
    Symptom(
        "subscription_refused",
        "refused",
        "{subscriptions} refused by the broker, with code {status}",
        _SQL_SESSIONS,
        _SUBSCRIPTION_REFUSED,
    ),
    Symptom(
        "request_refused",
        "refused",
        "{request} refused by the broker ({times}), with status {status}",
        _SQL_SESSIONS,
        _REQUEST_REFUSED,
    ),
    Symptom(
        "refused_by_client",
        "refused",
        "{messages} that the client answered with an error",
        _TRACE,
        _deliveries("d.verdict = 'refused_by_client'"),
    ),
    # Who was disconnected.
    Symptom(
        "taken_over",
        "cut",
        "{connections} ended because another one came with the same client id",
        _SQL_SESSIONS,
        _sessions(_TAKEN_OVER),
    ),
    Symptom(
        "keep_alive_missed",
        "cut",
        "the broker cut it off after {silent_s} s of silence; its keep-alive is {keep_alive} s",
        _SQL_SESSIONS,
        _sessions(f"{_SILENT} AND NOT ({_TAKEN_OVER})", _SILENCE_OF, _LAST_WORD),
    ),
    Symptom(
        "session_expired",
        "cut",
        "the client came back ({times}), and its session was gone with its subscriptions",
        _SQL_SESSIONS,
        _SESSION_EXPIRED,
    ),
    Symptom(
        "dropped",
        "cut",
        "{connections} ended without a goodbye",
        _SQL_SESSIONS,
        _sessions(
            f"s.ended_by = 'dropped' AND NOT coalesce({_SILENT}, false) AND NOT ({_TAKEN_OVER})",
            "",
            _LAST_WORD,
        ),
    ),
    # What takes long.
    Symptom(
        "slow_consumer",
        "slow",
        "{messages} took {median_ms} ms {what} by the median{peers}",
        _SLOW,
        _SLOW_CONSUMER,
    ),
    # What is worth a look.
    Symptom(
        "given_back",
        "odd",
        "{messages} rolled back, or returned after the application had seen them",
        _TRACE,
        _deliveries("d.verdict IN ('rolled_back', 'returned_seen')"),
    ),
    Symptom(
        "duplicate",
        "odd",
        "{messages} delivered more often than the subscriptions account for",
        _TRACE,
        _deliveries("d.verdict = 'duplicate'"),
    ),
    Symptom(
        "retained_unread",
        "odd",
        "a value that this client retained was delivered to nobody",
        _TRACE_ALL,
        _RETAINED_UNREAD,
    ),
    Symptom(
        "rule_broken",
        "odd",
        "{rule} was broken ({times}): {said}",
        'wireyard sql {input} "FROM violations"',
        _VIOLATIONS,
    ),
    Symptom(
        "malformed",
        "odd",
        "{pieces} of the stream that are no well-formed packet",
        'wireyard sql {input} "FROM quarantine"',
        _MALFORMED,
    ),
    Symptom(
        "capture_gap",
        "odd",
        "the capture lacks {bytes} bytes of the stream, so what was in them is not known",
        "wireyard flows {source}",
        _GAPS,
    ),
)
"""All symptoms, those of a severity in the order in which they are shown."""
