"""Symptoms of messages and clients of MQTT."""

from __future__ import annotations

from typing import Final

from wireyard.layers.symptoms import (
    LONG_NS,
    NAME,
    SENDER,
    SQL_SESSIONS,
    TRACE,
    TRACE_ALL,
    TRACE_CLIENT,
    Symptom,
    deliveries,
    sessions,
)

__all__ = ["LAST_WORD", "SILENT", "SYMPTOMS", "TAKEN_OVER"]

_IS_THERE: Final = """EXISTS (
    FROM sessions s
    WHERE s.source = d.source AND s.protocol = 'mqtt' AND s.client_id = d.consumer_client_id
      AND s.ended_by = 'open' AND s.status = 0
  )"""
TAKEN_OVER: Final = """EXISTS (
    FROM sessions o
    WHERE o.source = s.source AND o.server = s.server AND o.client_id = s.client_id
      AND o.protocol = 'mqtt' AND o.status = 0 AND o.client <> s.client
      AND o.opened_ns > s.opened_ns AND o.opened_ns <= s.closed_ns
  ) AND s.protocol = 'mqtt' AND s.client_id <> '' AND s.ended_by IN ('dropped', 'server')"""
LAST_WORD: Final = """LEFT JOIN (
    SELECT source, stream, max(captured_ns) AS said_ns FROM packets_mqtt GROUP BY ALL
  ) p ON p.source = s.source AND p.stream = s.stream"""
SILENT: Final = """s.protocol = 'mqtt' AND s.keep_alive > 0 AND s.ended_by IN ('dropped', 'server')
  AND s.closed_ns - p.said_ns >= 1500000000 * s.keep_alive::BIGINT"""
_SILENCE: Final = ", max(s.closed_ns - p.said_ns) // 1000000000 AS silent_s, "
_SILENCE_OF: Final = _SILENCE + "min(s.keep_alive) AS keep_alive"

_WINDOW_FULL: Final = f"""
WITH waited AS (
  SELECT d.* FROM latencies d
  WHERE d.protocol = 'mqtt' AND d.qos > 0 AND d.queue_ns >= {LONG_NS}
), before AS (
  SELECT w.source, w.destination, {NAME.replace("d.", "w.")} AS client, w.sent_ns,
    w.delivered_frame AS frame, w.stream, w."offset"
  FROM waited w ASOF JOIN (
    SELECT source, consumer, delivered_ns, acknowledged_ns FROM deliveries
    WHERE protocol = 'mqtt' AND acknowledged_ns IS NOT NULL
      AND consumer IN (SELECT consumer FROM waited)
  ) a ON a.source = w.source AND a.consumer = w.consumer AND a.acknowledged_ns <= w.delivered_ns
  WHERE a.delivered_ns <= w.sent_ns AND a.acknowledged_ns >= w.sent_ns
  UNION ALL
  SELECT d.source, d.destination, {NAME}, d.sent_ns, d.sent_frame, d.stream, d."offset"
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

SYMPTOMS: Final = (
    Symptom(
        "not_forwarded",
        "lost",
        "{messages} accepted by the broker and not delivered to a connected subscriber",
        TRACE,
        deliveries("d.verdict = 'not_forwarded'"),
    ),
    Symptom(
        "discarded",
        "lost",
        "{messages} waited for a client whose session then ended",
        TRACE,
        deliveries("d.verdict = 'discarded'"),
    ),
    Symptom(
        "too_large",
        "lost",
        "{messages} above the Maximum Packet Size of the client, dropped",
        TRACE,
        deliveries("d.verdict = 'too_large'"),
    ),
    Symptom(
        "window_full",
        "stuck",
        "{messages} waited until the client acknowledged others: its window was full",
        TRACE_CLIENT,
        _WINDOW_FULL,
    ),
    Symptom(
        "queued_away",
        "stuck",
        "{messages} queued for a client that is away",
        TRACE,
        deliveries(f"d.verdict = 'queued' AND NOT {_IS_THERE}"),
    ),
    Symptom(
        "unaccepted",
        "stuck",
        "nothing shows that the broker took {messages} of this client",
        TRACE,
        deliveries("d.verdict = 'unaccepted'", client=SENDER),
    ),
    Symptom(
        "publish_refused",
        "refused",
        "{messages} of this client refused by the broker",
        TRACE,
        deliveries("d.verdict = 'refused'", client=SENDER),
    ),
    Symptom(
        "subscription_refused",
        "refused",
        "{subscriptions} refused by the broker, with code {status}",
        SQL_SESSIONS,
        _SUBSCRIPTION_REFUSED,
    ),
    Symptom(
        "refused_by_client",
        "refused",
        "{messages} that the client answered with an error",
        TRACE,
        deliveries("d.verdict = 'refused_by_client'"),
    ),
    Symptom(
        "taken_over",
        "cut",
        "{connections} ended because another one came with the same client id",
        SQL_SESSIONS,
        sessions(TAKEN_OVER),
    ),
    Symptom(
        "keep_alive_missed",
        "cut",
        "the broker cut it off after {silent_s} s of silence; its keep-alive is {keep_alive} s",
        SQL_SESSIONS,
        sessions(f"{SILENT} AND NOT ({TAKEN_OVER})", _SILENCE_OF, LAST_WORD),
    ),
    Symptom(
        "session_expired",
        "cut",
        "the client came back ({times}), and its session was gone with its subscriptions",
        SQL_SESSIONS,
        _SESSION_EXPIRED,
    ),
    Symptom(
        "duplicate",
        "odd",
        "{messages} delivered more often than the subscriptions account for",
        TRACE,
        deliveries("d.verdict = 'duplicate'"),
    ),
    Symptom(
        "retained_unread",
        "odd",
        "a value that this client retained was delivered to nobody",
        TRACE_ALL,
        _RETAINED_UNREAD,
    ),
)
