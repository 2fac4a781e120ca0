"""Symptoms of messages and clients of MQTT."""

from __future__ import annotations

from typing import Final

from wireyard.layers.mqtt.reasons import reason_string, reason_text
from wireyard.layers.symptoms import (
    BACK,
    ENDS,
    LONG_NS,
    NAME,
    SENDER,
    SQL_SESSIONS,
    TRACE,
    TRACE_ALL,
    TRACE_CLIENT,
    Symptom,
    of_verdicts,
    peers,
    sessions,
)

_TAKEN_OVER, _KEEP_ALIVE_TIMEOUT = 142, 141
"""Reason codes of DISCONNECT that another symptom explains."""
_IS_THERE: Final = """EXISTS (
    FROM sessions s
    WHERE s.source = d.source AND s.protocol = 'mqtt' AND s.client_id = d.consumer_client_id
      AND s.ended_by = 'open' AND s.status = 0
  )"""
TAKEN_OVER: Final = f"""EXISTS (
    FROM sessions o
    WHERE o.source = s.source AND o.server = s.server AND o.client_id = s.client_id
      AND o.protocol = 'mqtt' AND o.status = 0 AND o.client <> s.client
      AND o.opened_ns > s.opened_ns AND o.opened_ns <= s.closed_ns
  ) AND s.protocol = 'mqtt' AND s.client_id <> '' AND (
    s.ended_by = 'server'
    OR s.ended_by = 'dropped' AND EXISTS (
      FROM streams t
      WHERE t.source = s.source AND t.ended_ns >= s.closed_ns
        AND t.stream IN (s.stream, {BACK.replace("stream", "s.stream")})
    )
  )"""
"""Another connection of the client came while it was open, as its end behind that shows."""
_OTHER = BACK.replace("stream", "t.stream")
TAKEN_UNRELEASED: Final = f"""(d.source, d.stream, d."offset") IN (
    SELECT (t.source, t.stream, t."offset")
    FROM (
      SELECT d.source, d.stream, d."offset", p.packet_id, p.captured_ns
      FROM deliveries d
      JOIN packets_mqtt p ON p.source = d.source AND p.stream = d.stream AND p."offset" = d."offset"
      JOIN streams s ON s.source = d.source AND s.stream = d.stream AND s.bytes_gap = 0
      WHERE d.protocol = 'mqtt' AND d.qos = 2 AND d.verdict IN ('in_flight', 'abandoned')
    ) t
    JOIN packets_mqtt r
    ON r.source = t.source AND r.stream = {_OTHER} AND r.packet_type = 5
      AND r.packet_id = t.packet_id AND r.captured_ns >= t.captured_ns
    LEFT JOIN packets_mqtt l
    ON l.source = t.source AND l.stream = t.stream AND l.packet_type IN (3, 6)
      AND l.packet_id = t.packet_id AND l.captured_ns >= r.captured_ns
    GROUP BY ALL
    HAVING count(l.captured_ns) = 0
  )"""
"""The client took a delivery `d` with PUBREC; no PUBREL followed, nor the message again."""
LAST_WORD: Final = """LEFT JOIN (
    SELECT source, stream, max(captured_ns) AS said_ns FROM packets_mqtt GROUP BY ALL
  ) p ON p.source = s.source AND p.stream = s.stream"""
SILENT: Final = """s.protocol = 'mqtt' AND s.keep_alive > 0 AND s.ended_by IN ('dropped', 'server')
  AND s.closed_ns - p.said_ns >= 1500000000 * s.keep_alive::BIGINT
  AND (s.source, s.stream, s.closed_frame) NOT IN (
    SELECT source, stream, ended_frame FROM streams WHERE ended_frame IS NOT NULL
  )"""
"""The broker ended a connection, as the client was silent for longer than its keep-alive."""
LOGIN_ANSWER: Final = """LEFT JOIN packets_mqtt a
  ON a.source = s.source AND a.packet_type = 2 AND a.frame = s.closed_frame"""
LOGIN_REASON: Final = reason_text("s.status", reason_string("a.properties"))
_DISCONNECTED: Final = f"""s.end_code IS NOT NULL
  AND NOT (s.end_code = {_TAKEN_OVER} AND {TAKEN_OVER})
  AND NOT (s.end_code = {_KEEP_ALIVE_TIMEOUT} AND coalesce({SILENT}, false))"""
_SILENCE: Final = ", max(s.closed_ns - p.said_ns) // 1000000000 AS silent_s, "
_SILENCE_OF: Final = _SILENCE + "min(s.keep_alive) AS keep_alive"

_END: Final = f"JOIN ({ENDS}) e ON e.source = d.source"
_LONG_SINCE: Final = f"e.end_ns - d.sent_ns >= {LONG_NS}"
_ABSENCE: Final = """
ASOF LEFT JOIN (SELECT * FROM sessions WHERE protocol = 'mqtt' AND closed_ns IS NOT NULL) l
ON l.source = d.source AND l.client_id = d.consumer_client_id AND l.closed_ns <= d.sent_ns
ASOF LEFT JOIN (SELECT * FROM sessions WHERE protocol = 'mqtt' AND opened_ns IS NOT NULL) c
ON c.source = d.source AND c.client_id = d.consumer_client_id AND c.opened_ns >= d.sent_ns
"""
_AWAY: Final = f""", coalesce(' for ' || round(
    max(max(c.opened_ns - l.closed_ns)) OVER (PARTITION BY {NAME}) / 1e9, 1) || ' s', '') AS away"""

_WINDOW_FULL: Final = f"""
WITH waited AS (
  SELECT d.* FROM charged_latencies d
  WHERE d.protocol = 'mqtt' AND d.qos > 0 AND d.queue_ns >= {LONG_NS}
), before AS (
  SELECT w.source, w.destination, {NAME.replace("d.", "w.")} AS client, w.sent_ns,
    w.delivered_frame AS frame, w.stream, w."offset", w.message_key
  FROM waited w ASOF JOIN (
    SELECT source, consumer, delivered_ns, acknowledged_ns FROM deliveries
    WHERE protocol = 'mqtt' AND acknowledged_ns IS NOT NULL
      AND consumer IN (SELECT consumer FROM waited)
  ) a ON a.source = w.source AND a.consumer = w.consumer AND a.acknowledged_ns <= w.delivered_ns
  WHERE a.delivered_ns <= w.sent_ns AND a.acknowledged_ns >= w.sent_ns
  UNION ALL
  SELECT d.source, d.destination, {NAME}, d.sent_ns, d.sent_frame, d.stream, d."offset",
    d.message_key
  FROM deliveries d
  WHERE d.verdict = 'queued' AND d.sent_ns IS NOT NULL AND {_IS_THERE}
)
SELECT b.destination, b.client, count(*) AS count, arg_min(b.source, b.sent_ns) AS source,
  arg_min(b.frame, b.sent_ns) AS frame, arg_min(b.stream, b.sent_ns) AS stream,
  arg_min(b."offset", b.sent_ns) AS "offset",
  {peers("coalesce(m.producer_client_id, m.client)")} AS producers
FROM before b LEFT JOIN messages m ON m.source = b.source AND m.message_key = b.message_key
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
  SELECT s.*, p.clean_start, lag(p.persistent AND s.status = 0) OVER (
      PARTITION BY s.source, s.server, s.client_id ORDER BY s.opened_ns) AS had_session
  FROM sessions s JOIN ({_PERSISTENT}) p USING (source, stream, "offset")
  WHERE s.protocol = 'mqtt' AND coalesce(s.status = 0, true)
)
SELECT NULL AS destination, client_id AS client, count(*) AS count,
  arg_min(source, opened_ns) AS source, arg_min(opened_frame, opened_ns) AS frame,
  arg_min(stream, opened_ns) AS stream, arg_min("offset", opened_ns) AS "offset"
FROM logins
WHERE status = 0 AND had_session AND NOT clean_start AND NOT resumed
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
_SUBSCRIPTION_REFUSED: Final = f"""
SELECT NULL AS destination, coalesce(s.client_id, r.dst_addr || ':' || r.dst_port) AS client,
  count(*) AS count, {reason_text("r.code", reason_string("r.properties"))} AS said,
  arg_min(r.source, r.captured_ns) AS source, arg_min(r.frame, r.captured_ns) AS frame,
  arg_min(r.stream, r.captured_ns) AS stream, arg_min(r."offset", r.captured_ns) AS "offset"
FROM (SELECT *, unnest(return_codes) AS code FROM packets_mqtt WHERE packet_type = 9) r
LEFT JOIN sessions s
ON s.source = r.source AND s.protocol = 'mqtt' AND s.client = r.dst_addr || ':' || r.dst_port
  AND r.captured_ns >= s.opened_ns AND coalesce(r.captured_ns <= s.closed_ns, true)
WHERE r.captured_ns IS NOT NULL AND r.code >= 128
GROUP BY 2, said
"""
_PUBLISH_REFUSED: Final = f"""
SELECT d.destination, {SENDER} AS client, count(DISTINCT d.message_key) AS count,
  min(d.verdict) AS verdict, {reason_text("a.return_code", reason_string("a.properties"))} AS said,
  {peers(NAME)} AS consumers,
  arg_min(d.source, d.sent_ns) AS source, arg_min(d.sent_frame, d.sent_ns) AS frame,
  arg_min(d.stream, d.sent_ns) AS stream, arg_min(d."offset", d.sent_ns) AS "offset"
FROM deliveries d
JOIN (SELECT *, {BACK} AS back FROM packets_mqtt WHERE packet_type = 3) p
ON p.source = d.source AND p.stream = d.stream AND p."offset" = d."offset"
ASOF LEFT JOIN (
  SELECT * FROM packets_mqtt WHERE packet_type IN (4, 5) AND return_code >= 128
) a ON a.source = p.source AND a.stream = p.back AND a.packet_id = p.packet_id
  AND a.captured_ns >= p.captured_ns
WHERE d.verdict = 'refused' AND d.sent_ns IS NOT NULL
GROUP BY 1, 2, said
"""
UNANSWERED: Final = f"""
WITH requests AS (
  -- An AUTH is answered as CONNECT is: by AUTH, CONNACK or DISCONNECT.
  SELECT * REPLACE (if(packet_type = 15, 1, packet_type) AS packet_type), {BACK} AS back,
    row_number() OVER (
      PARTITION BY source, stream, if(packet_type = 15, 1, packet_type), packet_id
      ORDER BY "offset") AS number
  FROM packets_mqtt
  WHERE packet_type IN (1, 6, 8, 10, 12, 15) AND captured_ns IS NOT NULL
), answers AS (
  SELECT source, stream, if(packet_type IN (14, 15), 2, packet_type) AS packet_type, packet_id,
    count(*) AS count
  FROM packets_mqtt WHERE packet_type IN (2, 7, 9, 11, 13, 14, 15)
  GROUP BY ALL
), captured AS (
  SELECT source, stream FROM streams WHERE bytes_gap = 0
  UNION
  SELECT source, {BACK} FROM streams WHERE paired
), lossy AS (
  SELECT DISTINCT source FROM streams WHERE bytes_gap > 0
), ends AS ({ENDS})
SELECT NULL AS destination, coalesce(nullif(s.client_id, ''), s.client) AS client,
  count(*) AS count, r.packet_type_name AS request, arg_min(r.source, r.captured_ns) AS source,
  arg_min(r.frame, r.captured_ns) AS frame, arg_min(r.stream, r.captured_ns) AS stream,
  arg_min(r."offset", r.captured_ns) AS "offset"
FROM requests r
JOIN captured c ON c.source = r.source AND c.stream = r.back
JOIN ends e ON e.source = r.source
JOIN sessions s ON s.source = r.source AND s.stream IN (r.stream, r.back)
  AND s.protocol = 'mqtt' AND s.ended_by IS DISTINCT FROM 'refused'
LEFT JOIN streams g ON g.source = r.source AND g.stream = r.back
LEFT JOIN lossy l ON l.source = r.source
LEFT JOIN answers a ON a.source = r.source AND a.stream = r.back
  AND a.packet_type = r.packet_type + 1 AND a.packet_id IS NOT DISTINCT FROM r.packet_id
WHERE r.stream = s.stream AND coalesce(g.bytes_gap, 0) = 0 AND r.number > coalesce(a.count, 0)
  AND if(
    l.source IS NULL OR (g.begun AND g.ended = 'fin'), coalesce(s.closed_ns, e.end_ns), g.last_ns
  ) - r.captured_ns >= {LONG_NS}
GROUP BY 2, request
"""
"""Requests that were not answered for a second or more, on connections whose answers were
captured. Where a capture lacks packets, one is missing only if it had to come before the last
packet of the broker, or before its FIN."""
_NEVER_SERVED: Final = f"""
WITH granted AS (
  SELECT d.source, {NAME} AS client, d.consumer, d.subscription, count(*) AS count,
    count(d.delivered_ns) AS served, {peers(SENDER)} AS producers, min(d.sent_ns) AS since_ns,
    bool_and(
      d.verdict = 'undecided' AND d.accepted_frame IS NOT NULL) AS is_open,
    arg_min(d.sent_frame, d.sent_ns) AS frame, arg_min(d.stream, d.sent_ns) AS stream,
    arg_min(d."offset", d.sent_ns) AS "offset"
  FROM deliveries d
  WHERE d.protocol = 'mqtt' AND d.subscription IS NOT NULL
    AND NOT regexp_matches(d.subscription, '^[$](share|queue)/')
  GROUP BY ALL
)
SELECT NULL AS destination, g.client, sum(g.count)::BIGINT AS count, g.subscription AS filter,
  list_sort(list_distinct(flatten(list(g.producers)))) AS producers,
  g.source, min(g.frame) AS frame, arg_min(g.stream, g.frame) AS stream,
  arg_min(g."offset", g.frame) AS "offset"
FROM granted g
JOIN sessions s ON s.source = g.source AND s.protocol = 'mqtt' AND s.client = g.consumer
  AND s.opened_ns <= g.since_ns
JOIN ({ENDS}) e ON e.source = g.source
WHERE NOT EXISTS (
    FROM deliveries d
    WHERE d.source = g.source AND d.consumer = g.consumer AND d.delivered_ns IS NOT NULL
      AND d.protocol = 'mqtt' AND d.subscription IS NULL
  )
  AND g.served = 0 AND g.is_open AND s.in_flight_sent IS NOT NULL
  AND coalesce(s.closed_ns, e.end_ns) - g.since_ns >= {LONG_NS}
GROUP BY ALL
HAVING sum(g.count) > 1
"""

SYMPTOMS: Final = (
    Symptom(
        "never_served",
        "lost",
        "{messages} accepted by the broker, which granted {filter} and delivered nothing for it",
        TRACE_CLIENT,
        _NEVER_SERVED,
    ),
    of_verdicts(
        "not_kept",
        "lost",
        "{messages} accepted while the client was away{away}, and not delivered when it came back",
        "not_kept",
        columns=_AWAY,
        join=_ABSENCE,
    ),
    of_verdicts(
        "not_forwarded",
        "lost",
        "{messages} accepted by the broker and not delivered to a connected subscriber",
        "not_forwarded",
    ),
    of_verdicts(
        "discarded",
        "lost",
        "{messages} waited for a client whose session then ended",
        "discarded",
    ),
    of_verdicts(
        "too_large",
        "lost",
        "{messages} above the Maximum Packet Size of the client, dropped",
        "too_large",
    ),
    Symptom(
        "window_full",
        "stuck",
        "{messages} waited until the client acknowledged others: its window was full",
        TRACE_CLIENT,
        _WINDOW_FULL,
    ),
    of_verdicts(
        "queued_away",
        "stuck",
        "{messages} queued for a client that is away",
        "queued",
        condition=f"NOT {_IS_THERE}",
    ),
    of_verdicts(
        "unaccepted",
        "stuck",
        "nothing shows that the broker took {messages} of this client",
        "unaccepted",
        condition=_LONG_SINCE,
        client=SENDER,
        join=_END,
    ),
    of_verdicts(
        "unreleased",
        "stuck",
        "{messages} that the broker took with PUBREC; this client did not send PUBREL",
        "unreleased",
        condition=_LONG_SINCE,
        client=SENDER,
        join=_END,
    ),
    of_verdicts(
        "unreleased_by_broker",
        "stuck",
        "{messages} that the client took with PUBREC; the broker did not send PUBREL",
        *("in_flight", "abandoned"),
        condition=f"(d.verdict = 'abandoned' OR e.end_ns - d.delivered_ns >= {LONG_NS})"
        f" AND {TAKEN_UNRELEASED}",
        join=_END,
    ),
    Symptom(
        "publish_refused",
        "refused",
        "{messages} of this client refused by the broker, with reason {said}",
        TRACE,
        _PUBLISH_REFUSED,
        frozenset(("refused",)),
    ),
    Symptom(
        "subscription_refused",
        "refused",
        "{subscriptions} refused by the broker, with reason {said}",
        SQL_SESSIONS,
        _SUBSCRIPTION_REFUSED,
    ),
    of_verdicts(
        "refused_by_client",
        "refused",
        "{messages} that the client answered with an error",
        "refused_by_client",
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
        "server_disconnect",
        "cut",
        "disconnected by the broker ({times}), with reason {said}",
        SQL_SESSIONS,
        sessions(_DISCONNECTED, "", LAST_WORD, reason_text("s.end_code", "s.end_reason")),
    ),
    Symptom(
        "session_expired",
        "cut",
        "the client came back ({times}), and its session was gone with its subscriptions",
        SQL_SESSIONS,
        _SESSION_EXPIRED,
    ),
    of_verdicts(
        "duplicate",
        "odd",
        "{messages} delivered more often than the subscriptions account for",
        "duplicate",
    ),
    Symptom(
        "retained_unread",
        "odd",
        "a value that this client retained was delivered to nobody",
        TRACE_ALL,
        _RETAINED_UNREAD,
        table="retained",
    ),
)
