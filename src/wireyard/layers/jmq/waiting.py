"""JMS messages that wait, and those that nobody gets any more: the queries behind the symptoms.

Rules of this file:

1. A message waits in a queue after its broker took it, until a consumer has it for good: one that
   was given back waits again.
2. A message that was relayed to another broker waits there, if at all.
3. Where packets of any connection of a broker are missing, all links of a broker that is in a
   cluster, or the capture is a slice, nothing is known to wait there: what a consumer did not
   acknowledge may have gone to another one, and any message to another broker.
4. Who consumes a queue is who has a consumer there now, whoever had one before.
5. Nothing waits any more in what an administrator has purged or destroyed.
"""

from __future__ import annotations

from typing import Final

ENDS: Final = """
SELECT source, max(end_ns) AS end_ns FROM (
  SELECT source, greatest(last_ns, ended_ns) AS end_ns FROM streams
  UNION ALL SELECT source, last_ns FROM files
) GROUP BY source
"""
"""The end of each capture: its last frame, whatever that brings."""
DENIED: Final = """
SELECT s.source, s.stream, s."offset", s.frame, s.destination, c.requester AS client,
  c.replied_ns AS captured_ns, c.status, r.properties['JMQReason'].value AS reason
FROM conversations c
JOIN packets_jmq s ON s.source = c.source AND s.stream = c.stream AND s."offset" = c."offset"
LEFT JOIN packets_jmq r
ON r.source = c.source AND r.packet_type = 9 AND r.stream || '@' || r."offset" = c.reply_key
WHERE c.kind = 'control' AND s.packet_type BETWEEN 1 AND 6 AND c.status NOT IN (200, 304)
"""
"""Messages that an Open MQ broker did not accept; 304 is the status of one that it had before."""

# --- consumers ------------------------------------------------------------------------------

COVERS: Final = r"""(c.destination = {0}.destination OR (
    c.is_topic AND regexp_matches(c.destination, '(^|\.)(\*\*?|>)(\.|$)')
    AND regexp_full_match('.' || {0}.destination, replace(replace(replace(
      regexp_escape('.' || c.destination), '\.\*\*', '(\.[^.]+)*'), '\.\*', '\.[^.]+'),
      '\.\>', '(\.[^.]+)+'))
  ))"""
"""Whether messages to a destination are for a consumer `c`. In the name of its topic, ``*`` is one
level, ``**`` any number of levels, and ``>`` at the end at least one."""

SENDER, RECEIVER = (
    f"(if(contains({{0}}.{end}_addr, ':'), '[' || {{0}}.{end}_addr || ']', {{0}}.{end}_addr)"
    f" || ':' || {{0}}.{end}_port)"
    for end in ("src", "dst")
)
"""The endpoints that a packet comes from and goes to."""
_SAME_CONNECTION: Final = f"""s.source = {{0}}.source AND s.protocol = 'jms'
  AND s.client = {SENDER} AND split_part(s.stream, '#', 2) = split_part({{0}}.stream, '#', 2)"""
"""Join condition of a client's packets and the row `s` of its connection."""
_CONSUMERS: Final = f"""
SELECT c.source, c.frame, c.stream, c."offset", c.captured_ns, c.src_addr, c.src_port, c.dst_addr,
  c.dst_port, c.properties['JMQDestination'].value AS destination,
  c.properties['JMQDestType'].value::INTEGER & 2 > 0 AS is_topic,
  nullif(c.properties['JMQSelector'].value, '') AS selector,
  nullif(c.properties['JMQDurableName'].value, '') AS durable,
  coalesce(c.properties['JMQNoLocal'].value, 'false') = 'true' AS no_local,
  r.properties['JMQConsumerID'].value::BIGINT AS consumer_id,
  s.client_id, s.client, s.server, least(
    (SELECT min(x.captured_ns) FROM packets_jmq x
      WHERE x.source = c.source AND x.stream = c.stream AND x.captured_ns >= r.captured_ns
        AND (x.packet_type = 16
          AND x.properties['JMQConsumerID'].value = r.properties['JMQConsumerID'].value
          OR x.packet_type = 70
          AND x.properties['JMQSessionID'].value = c.properties['JMQSessionID'].value)),
    s.closed_ns) AS until_ns,
  coalesce(s.in_flight_sent IS NOT NULL, false) AS is_whole
FROM packets_jmq c JOIN packets_jmq r
ON r.source = c.source AND r.consumer_id = c.consumer_id AND r.packet_type = 15
  AND r.captured_ns >= c.captured_ns
  AND split_part(r.stream, '#', 2) = split_part(c.stream, '#', 2)
  AND r.src_addr = c.dst_addr AND r.src_port = c.dst_port
  AND r.dst_addr = c.src_addr AND r.dst_port = c.src_port
LEFT JOIN sessions s ON {_SAME_CONNECTION.format("c")}
WHERE c.packet_type = 14 AND r.properties['JMQStatus'].value = '200'
  AND c.captured_ns IS NOT NULL
"""
"""Consumers whose creation was captured, and when each was closed."""
_PRESENT: Final = """
SELECT source, destination FROM jms_consumers WHERE NOT is_topic AND until_ns IS NULL
UNION
SELECT d.source, d.destination
FROM deliveries d JOIN sessions s
ON s.source = d.source AND s.protocol = 'jms' AND s.client = d.consumer AND s.closed_ns IS NULL
WHERE d.protocol = 'jms' AND d.verdict <> 'browsed' AND d.dead_reason IS NULL
  AND (d.source, d.consumer_id) NOT IN (SELECT (source, consumer_id) FROM jms_consumers)
"""
"""Queues that have a consumer at the end; one created before the capture shows by deliveries."""

# --- messages -------------------------------------------------------------------------------

_RETURNED: Final = "('rolled_back', 'returned_seen', 'returned_unseen', 'left', 'browsed')"
"""Verdicts of deliveries after which the message is where it was."""
SENT: Final = f"""
SELECT m.source, m.destination, m.destination_kind, m.message_key, m.client, m.producer_client_id,
  m.captured_ns, m.frame, m.stream, m."offset", m.priority, p.server, p.client_id,
  p.in_flight_sent IS NOT NULL AS is_whole, p.ended_by, e.end_ns,
  greatest(m.captured_ns, t.ended_ns) AS since_ns,
  if(m.delivery_time_ms > e.end_ns // 1000000, m.delivery_time_ms, NULL) AS delayed_ms,
  q.request_key IS NOT NULL AS is_unanswered
FROM messages m JOIN ({ENDS}) e ON e.source = m.source
LEFT JOIN sessions p
ON p.source = m.source AND p.protocol = 'jms' AND p.client = m.client
  AND split_part(p.stream, '#', 2) = split_part(m.stream, '#', 2)
LEFT JOIN transactions t ON t.source = m.source AND t.transaction_id = m.transaction_id
LEFT JOIN conversations q
ON q.source = m.source AND q.stream = m.stream AND q."offset" = m."offset"
  AND q.kind = 'control' AND q.reply_key IS NULL
WHERE m.protocol = 'jms' AND m.captured_ns IS NOT NULL AND m.first_seen = 'sent'
  AND m.destination <> '__JMQAdmin' AND (t.outcome IS NULL OR t.outcome = 'committed')
  AND NOT coalesce(m.expiration_ms > 0 AND m.expiration_ms < e.end_ns // 1000000, false)
  AND (m.source, m.stream, m."offset") NOT IN (SELECT (source, stream, "offset") FROM ({DENIED}))
  AND NOT EXISTS (FROM hops h WHERE h.message_key = m.message_key AND h.kind LIKE 'relay%')
"""
"""Messages that were sent to a broker and have neither expired nor been refused or relayed."""
PARTLY_SEEN: Final = """
SELECT (source, server) FROM sessions WHERE protocol = 'jms' AND in_flight_sent IS NULL
UNION
SELECT (s.source, s.server)
FROM sessions s JOIN streams t
ON t.source = s.source
  AND (t.sliced OR starts_with(t.format, 'gpacket') AND NOT t.paired)
WHERE s.protocol = 'jms'
UNION
SELECT (s.source, s.server)
FROM sessions s JOIN packets_jmq h ON h.source = s.source AND starts_with(h.stream, s.server || '>')
WHERE s.protocol = 'jms' AND h.packet_type = 11
  AND contains(h.properties['JMQBrokerList'].value, ',') AND NOT EXISTS (
    FROM streams t
    WHERE t.source = h.source AND starts_with(t.format, 'gpacket')
      AND h.src_addr IN (t.src_addr, t.dst_addr)
  )
"""
"""Brokers of which packets are missing, a direction of a link between brokers, all links of one in
a cluster, or connections, which a slice leaves out."""
IS_DELIVERY: Final = """EXISTS (
    FROM deliveries d
    WHERE d.source = p.source AND d.stream = p.stream AND d."offset" = p."offset"
  )"""
"""Condition for a message in a packet `p` that a broker sent to a consumer."""
_EMPTIED: Final = """EXISTS (
    FROM packets_jmq a
    JOIN conversations c
    ON c.source = a.source AND c.stream = a.stream AND c."offset" = a."offset" AND c.kind = 'jms'
    JOIN packets_jmq r
    ON r.source = a.source AND r.sys_message_id = c.reply_key AND r.packet_type BETWEEN 1 AND 6
    WHERE a.destination = '__JMQAdmin' AND a.properties['JMQMessageType'].value IN ('12', '32')
      AND r.properties['JMQStatus'].value = '200' AND a.source = m.source
      AND a.properties['JMQDestination'].value = m.destination AND a.captured_ns >= m.since_ns
      AND (a.properties['JMQDestType'].value::INTEGER & 2 > 0) = (m.destination_kind = 'topic')
      AND starts_with(ltrim(m.server, '['), a.dst_addr)
  )"""
"""Condition for a message `m` whose destination the administrator destroyed (12) or purged (32)."""
_ACCEPTED: Final = f"""
SELECT m.*, {_EMPTIED} AS is_purged FROM ({SENT}) m
WHERE NOT m.is_unanswered AND (m.source, m.server) NOT IN ({PARTLY_SEEN})
"""
"""Those that the broker took, where no packets of its connections are missing."""
_TAKEN: Final = f"SELECT * FROM ({_ACCEPTED}) WHERE NOT is_purged"
_OF_QUEUE: Final = f"""m.destination_kind IN ('queue', 'temporary_queue') AND NOT EXISTS (
    FROM deliveries d WHERE d.message_key = m.message_key AND d.verdict NOT IN {_RETURNED}
  )"""
_UNCONSUMED: Final = f"SELECT m.* FROM ({_ACCEPTED}) m WHERE {_OF_QUEUE}"
PURGED: Final = "SELECT * FROM jms_unconsumed WHERE is_purged"
"""Messages that were in a queue when the administrator purged or destroyed it."""
DIED: Final = f"""
SELECT m.*, o.client AS owner, o.client_id AS owner_id
FROM (FROM jms_unconsumed WHERE NOT is_purged) m JOIN (
  SELECT c.source, c.properties['JMQDestination'].value AS destination,
    arg_max(s.client, c.captured_ns) AS client, arg_max(s.client_id, c.captured_ns) AS client_id,
    max(coalesce(x.captured_ns, s.closed_ns)) AS closed_ns
  FROM packets_jmq c
  JOIN sessions s ON {_SAME_CONNECTION.format("c")}
  LEFT JOIN packets_jmq x
  ON x.source = c.source AND x.packet_type = 36 AND x.src_addr = c.src_addr
    AND x.src_port = c.src_port AND x.captured_ns >= c.captured_ns
    AND x.properties['JMQDestination'].value = c.properties['JMQDestination'].value
  WHERE c.packet_type = 34
    AND starts_with(c.properties['JMQDestination'].value, 'temporary_destination://')
  GROUP BY ALL
  HAVING max(coalesce(x.captured_ns, s.closed_ns)) IS NOT NULL
) o ON o.source = m.source AND o.destination = m.destination AND o.closed_ns >= m.since_ns
WHERE m.destination_kind = 'temporary_queue'
"""
"""Messages in a temporary queue that its owner, the requester, has closed."""
OVERTAKEN: Final = """
WITH later AS (
  SELECT n.source, d.server, n.destination, n.priority, max(n.captured_ns) AS sent_ns
  FROM messages n JOIN deliveries d ON d.message_key = n.message_key AND d.source = n.source
  JOIN jms_consumers c ON c.source = d.source AND c.consumer_id = d.consumer_id
  WHERE n.protocol = 'jms' AND n.first_seen = 'sent' AND c.selector IS NULL
    AND d.verdict <> 'browsed' AND d.dead_reason IS NULL
  GROUP BY ALL
)
SELECT m.* FROM jms_unconsumed m
WHERE NOT m.is_purged AND m.delayed_ms IS NULL AND EXISTS (
    FROM later n
    WHERE n.source = m.source AND n.server = m.server AND n.destination = m.destination
      AND n.priority <= m.priority AND n.sent_ns > m.since_ns
  ) AND NOT EXISTS (FROM deliveries d WHERE d.message_key = m.message_key)
"""
"""Messages that were never delivered, while a consumer without a selector got later ones."""
_ANNOUNCED: Final = """EXISTS (
    FROM packets_gpacket g
    WHERE g.source = m.source AND g.packet_type IN (5, 35) AND contains(hex(g.payload),
      format('{:04X}', octet_length(encode(m.destination))) || hex(encode(m.destination)))
  )"""
"""Condition for a message `m` in a queue for which a broker of the cluster announced a consumer."""
_QUEUED: Final = f"""
SELECT m.*, EXISTS (
    FROM deliveries d WHERE d.message_key = m.message_key AND d.verdict = 'left'
  ) AS was_left,
  (m.source, m.destination) IN (SELECT (source, destination) FROM ({_PRESENT}))
    OR {_ANNOUNCED} AS has_consumer
FROM jms_unconsumed m
WHERE NOT m.is_purged
  AND (m.source, m.message_key) NOT IN (SELECT (source, message_key) FROM ({DIED}))
  AND (m.source, m.message_key) NOT IN (SELECT (source, message_key) FROM ({OVERTAKEN}))
"""
"""Messages that wait in a queue."""
AWAY: Final = f"""
WITH durable AS (
  SELECT source, server, destination, is_topic, durable, client_id, min(captured_ns) AS since_ns,
    bool_or(until_ns IS NULL) AS is_present, arg_max(client, captured_ns) AS client,
    bool_or(selector IS NOT NULL) AS selects, bool_or(no_local) AS no_local
  FROM jms_consumers
  WHERE is_topic AND durable IS NOT NULL
  GROUP BY ALL
)
SELECT m.*, c.durable, coalesce(c.client_id, c.durable) AS subscriber
FROM ({_TAKEN}) m JOIN durable c
ON c.source = m.source AND c.server = m.server AND {COVERS.format("m")}
  AND c.since_ns <= m.since_ns AND NOT c.is_present AND NOT c.selects
  AND NOT (c.no_local AND coalesce(c.client_id = m.producer_client_id, true))
WHERE m.destination_kind = 'topic' AND NOT EXISTS (
    FROM deliveries d
    WHERE d.message_key = m.message_key AND d.subscription = c.durable
      AND coalesce(d.consumer_client_id = c.client_id, true) AND d.verdict NOT IN {_RETURNED}
  ) AND NOT EXISTS (
    FROM packets_jmq u
    WHERE u.source = m.source AND u.packet_type = 16
      AND u.properties['JMQDurableName'].value = c.durable AND u.captured_ns >= c.since_ns
  )
"""
"""Messages of a topic that wait for a durable subscriber who is away."""
_DELAYED: Final = f"""
SELECT m.* FROM ({_TAKEN}) m
WHERE m.destination_kind = 'topic' AND m.delayed_ms IS NOT NULL AND EXISTS (
    FROM jms_consumers c
    WHERE c.source = m.source AND c.server = m.server AND {COVERS.format("m")}
      AND c.is_topic AND c.selector IS NULL AND c.until_ns IS NULL
  )
"""
"""Messages of a topic that its subscribers will get later."""
_UNTIL: Final = (
    "'delayed until ' || strftime(make_timestamp(delayed_ms * 1000), '%Y-%m-%dT%H:%M:%SZ')"
)
WAITING_JMS: Final = f"""
SELECT source, destination, message_key,
  coalesce({_UNTIL}, if(has_consumer, 'not delivered', 'no consumer')) AS state,
  NULL AS name, since_ns, frame
FROM jms_queued
UNION ALL
SELECT source, destination, message_key, {_UNTIL}, NULL, since_ns, frame FROM ({_DELAYED})
UNION ALL
SELECT source, destination, message_key, 'queued', subscriber, since_ns, frame FROM ({AWAY})
"""
"""What waits for a consumer at the end of a capture."""
_MAY_BE_ELSEWHERE: Final = """(d.protocol = 'jms' AND (d.subscription IS NOT NULL OR EXISTS (
    FROM messages q
    WHERE q.source = d.source AND q.message_key = d.message_key
      AND q.destination_kind LIKE '%queue'
  )) AND d.source IN (
    SELECT source FROM sessions WHERE protocol = 'jms' AND in_flight_sent IS NULL
    UNION SELECT source FROM streams WHERE sliced
  ))"""
"""Condition for a JMS delivery `d` whose message others may have, in packets that are missing."""
PASSED_ON: Final = f"""(EXISTS (
    FROM deliveries o LEFT JOIN messages m
    ON m.source = o.source AND m.message_key = o.message_key
    WHERE d.protocol = 'jms' AND o.source = d.source AND o.message_key = d.message_key
      AND o.delivered_ns > d.delivered_ns AND o.verdict <> 'browsed'
      AND (o.subscription = d.subscription OR m.destination_kind LIKE '%queue')
  ) OR {_MAY_BE_ELSEWHERE})"""
"""Condition for a JMS delivery `d` whose message another consumer got later, or may have."""
_QUEUE_TIMES: Final = f"""
SELECT d.source, d.stream, d."offset", d.destination, d.delivered_frame AS frame,
  if(m.delivery_time_ms IS NULL, d.delivered_ns - d.sent_ns, NULL) AS queue_ns,
  r.resumed_ns < d.sent_ns AS had_room,
  coalesce(d.dead_reason IS NOT NULL OR d.verdict = 'browsed' OR d.redelivered
    OR d.delivery_count > 1 OR c.captured_ns > greatest(d.sent_ns, m.delivery_time_ms * 1000000)
    OR t.ended_ns > d.sent_ns, false)
  OR {_MAY_BE_ELSEWHERE}
  OR EXISTS (
    FROM deliveries o
    WHERE o.source = d.source AND o.message_key = d.message_key
      AND o.delivered_ns < d.delivered_ns
      AND (o.subscription = d.subscription OR m.destination_kind LIKE '%queue')
  ) AS is_of_others
FROM deliveries d
LEFT JOIN jms_consumers c ON c.source = d.source AND c.consumer_id = d.consumer_id
LEFT JOIN messages m ON m.source = d.source AND m.message_key = d.message_key
LEFT JOIN transactions t ON t.source = m.source AND t.transaction_id = m.transaction_id
ASOF LEFT JOIN (
  SELECT source, {SENDER.format("p")} AS client, captured_ns AS resumed_ns
  FROM packets_jmq p
  WHERE packet_type IN (20, 52) AND captured_ns IS NOT NULL
) r ON r.source = d.source AND r.client = d.consumer AND r.resumed_ns <= d.delivered_ns
WHERE d.protocol = 'jms'
"""
"""Deliveries with their times in queue; null if a delay was wanted.

`is_of_others`: the consumer came later or read the dead message queue, or another one had the
message before, or may have had it in packets that are missing. `had_room`: the consumer had room
before the message was sent, by START or RESUME_FLOW, and not again since; null if that was not
captured.
"""
NOT_CHARGED: Final = (
    'SELECT source, stream, "offset" FROM jms_queue_times'
    " WHERE is_of_others OR coalesce(had_room, true)"
)
"""Deliveries whose time in queue is not that of their consumer."""
KEPT_BACK: Final = "SELECT * FROM jms_queue_times WHERE had_room AND NOT is_of_others"
"""Deliveries of messages that the broker kept, though their consumer had room."""
SHARED_JMS: Final = {
    "jms_consumers": _CONSUMERS,
    "jms_unconsumed": _UNCONSUMED,
    "jms_queued": _QUEUED,
    "jms_queue_times": _QUEUE_TIMES,
}
"""By name, the queries that several others use as a table, each after those that it names."""
