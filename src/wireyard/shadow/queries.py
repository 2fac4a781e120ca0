"""The queries of a comparison: what each side shows, and what differs.

Times, packet ids and ports never count. Rows are known by hashes of 64 bits: `message` of
destination and payload, `key` of these and the client, `kind` of these and how it was delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

LEAST_MOMENTS: Final = 5
"""Tenths of a second with messages to a client and a topic on either side, from which on times are
compared: a process may wait so long for a processor. Messages count that were sent when their
receiver was connected and, of JMS, had its consumer."""
MOMENT_NS: Final = 100_000_000
LATER_MS: Final = 20
LATER_TIMES: Final = 2
"""A median is later if it is so many times the other one, and by so much."""
MOST: Final = 0.9
"""Of the later side even the fastest delivery is later than this part of the other side: what only
some wait for is the load of the machine, which another run of the same broker has too."""
WILL_LATER_MS: Final = 500
"""The same of a single will, from the end of the connection on."""

_BROKEN: Final = """(
  SELECT source, stream, "offset", min(rule) AS rule, min_by(text, rule) AS broken
  FROM violations GROUP BY ALL
)"""
"""The rule that a packet breaks."""
CLIENTS: Final = f"""
SELECT s.*, v.rule, v.broken,
  row_number() OVER (PARTITION BY consumer ORDER BY opened_ns, frame) AS nth,
  coalesce(s.frame > 0 AND s.status >= 0 AND up.paired AND up.begun AND down.begun
    AND up.bytes_gap + down.bytes_gap = 0 AND NOT up.sliced, false) AS whole
FROM (
  SELECT source, client, server, opened_frame AS frame, opened_ns, closed_ns, status, end_code,
    version,
    coalesce(resumed, false) AS resumed, coalesce(nullif(client_id, ''),
      if(protocol = 'jms', 'connection ' || row_number() OVER (
        PARTITION BY protocol, client_id ORDER BY opened_ns, opened_frame
      ), NULL)) AS consumer
  FROM sessions WHERE protocol IN ('mqtt', 'jms')
) s
LEFT JOIN streams up ON up.source = s.source AND up.stream = s.client || '>' || s.server
LEFT JOIN streams down ON down.source = s.source AND down.stream = s.server || '>' || s.client
LEFT JOIN {_BROKEN} v ON v.source = s.source AND v.stream = down.stream AND v."offset" = 0
"""
"""The connections of one side, each with the name of its client: the client id, or of a JMS client
without one the number of its connection. It is whole if no byte of it is missing. The rule is the
one that the broker's first packet breaks, CONNACK."""
NAMES: Final = """
SELECT consumer, bool_and(whole) AS whole, count(*) AS connections,
  count(closed_ns) = count(*) AS ended FROM clients WHERE consumer IS NOT NULL GROUP BY ALL
"""

_ADDRESS: Final = "^(temporary_destination://[a-z]+/).*/"
"""The part of the name of a temporary destination that has the address of its client."""
_PROPERTIES: Final = """[e.name || '=' || if(e.name = 'message_expiry_interval', '', e.value)
  FOR e IN coalesce(p.properties, []) IF e.name <> 'topic_alias']"""
_HEADERS: Final = f"""list_concat(
  [e.key || '=' || e.value.value FOR e IN map_entries(coalesce(p.properties, MAP {{}}))
    IF NOT regexp_matches(e.key, '^(JMSXDelivery|JMS_SUN_)')],
  ['JMSPriority=' || p.priority, 'JMSDeliveryMode=' || contains(p.flags, 'P'),
    'JMSRedelivered=' || contains(p.flags, 'R'), 'JMSExpiration=' || (p.expiration > 0),
    'JMSType=' || coalesce(p.message_type, ''),
    'JMSCorrelationID=' || coalesce(regexp_replace(p.correlation_id, '^ID:.*', 'ID'), ''),
    'JMSReplyTo=' || coalesce(regexp_replace(p.reply_to, '{_ADDRESS}', '\\1'), ''),
    p.packet_type_name])"""
"""Message ids, which clients may use as correlation ids, are others in each recording."""
_OF_PROTOCOL: Final = """
SELECT {consumer} AS consumer, {topic} AS topic, d.origin, d.verdict, {producer} AS producer,
  {share} AS share, d.qos, {retain} AS retain, {priority} AS priority,
  hash(coalesce(p.{payload}, m.body)) AS payload,
  octet_length(coalesce(p.{payload}, m.body)) AS size, {dup} AS dup,
  d.delivered_frame IS NOT NULL AND d.verdict <> 'returned_unseen' AS delivered,
  list_sort({properties}) AS properties, d.delivered_ns - d.sent_ns AS queue_ns,
  coalesce(d.delivered_frame, d.sent_frame) AS frame, d.source, d.sent_ns, v.rule, v.broken,
  {version} AS version, coalesce(t.first_ns, d.sent_ns) AS began, d."offset",
  coalesce({ready} <= d.sent_ns, false) AS was_there,
  hash(d.consumer_id, d.subscription, m.qos, m.persistent, m.producer_id) AS lane,
  m.qos AS sent_qos
FROM deliveries d
LEFT JOIN packets_{packets} p ON p.frame = d.delivered_frame AND p.source = d.source
  AND p.stream = d.stream AND p."offset" = d."offset"
LEFT JOIN messages m ON m.message_key = d.message_key AND m.source = d.source
LEFT JOIN streams t ON t.source = d.source AND t.stream = d.stream
LEFT JOIN {broken} v ON v.source = d.source AND v.stream = p.stream AND v."offset" = p."offset"
{joins}
WHERE d.protocol = '{protocol}' AND {consumer} IS NOT NULL AND d.destination NOT LIKE '$SYS/%'
  AND hash({topic}) % $parts = $part
"""
_NAME: Final = """LEFT JOIN (
  SELECT source, client, any_value(consumer) AS name FROM clients GROUP BY ALL
) {0} ON {0}.source = d.source AND {0}.client = d.{1}
"""
_ADDED: Final = """LEFT JOIN (
  SELECT source, stream, properties['JMQConsumerID'].value::BIGINT AS id, min(captured_ns)
    AS added_ns
  FROM packets_jmq WHERE packet_type_name IN ('ADD_CONSUMER_REPLY', 'BROWSE_REPLY')
  GROUP BY ALL
) a ON a.source = d.source AND a.stream = d.stream AND a.id = d.consumer_id
"""
"""When a broker has accepted each consumer."""
_DESTINATION: Final = f"regexp_replace(d.destination, '{_ADDRESS}', '\\1')"
_SENT: Final = """
SELECT hash({topic}, hash(body)) AS message, min(frame) AS frame, any_value(source) AS source
FROM messages d
WHERE protocol IN ('mqtt', 'jms') AND hash({topic}) % $parts = $part GROUP BY ALL
"""
_LACKING: Final = """
SELECT hash({topic}, hash(body)) AS message, consumer, min(v.rule) AS rule,
  min_by(v.text, v.rule) AS broken
FROM violations v JOIN messages d ON d.message_key = v.message_key AND d.source = v.source
JOIN clients c ON c.source = v.source AND v.stream = c.server || '>' || c.client
WHERE d.protocol = 'mqtt' AND hash({topic}) % $parts = $part GROUP BY ALL
"""
WHOLE: Final = """
SELECT consumer FROM a_names a JOIN b_names b USING (consumer)
WHERE a.whole AND b.whole AND (a.connections = b.connections OR NOT EXISTS (
  SELECT whole FROM a_clients WHERE NOT whole UNION ALL SELECT whole FROM b_clients WHERE NOT whole
))
"""
"""The clients of which no byte is missing on either side, nor any connection before the first."""
CODES: Final = f"""
SELECT c.consumer, c.version, p.packet, p.codes, p.source, p.frame, v.rule, v.broken,
  row_number() OVER (
  PARTITION BY c.consumer, p.packet ORDER BY p.captured_ns, p.frame, p."offset"
) AS nth
FROM (
  SELECT packet_type_name AS packet, return_codes AS codes, source, stream, "offset", frame,
    captured_ns FROM packets_mqtt WHERE packet_type IN (9, 11) AND status = 'ok'
  UNION ALL
  SELECT packet_type_name, [properties['JMQStatus'].value::INTEGER], source, stream, "offset",
    frame, captured_ns FROM packets_jmq WHERE packet_type_name LIKE '%_REPLY' AND status = 'ok'
) p JOIN clients c ON c.source = p.source AND p.stream = c.server || '>' || c.client
  AND p.captured_ns BETWEEN c.opened_ns AND coalesce(c.closed_ns, p.captured_ns)
LEFT JOIN {_BROKEN} v ON v.source = p.source AND v.stream = p.stream AND v."offset" = p."offset"
WHERE c.consumer IS NOT NULL
"""
"""The answers to requests of one side."""


def copies(topic: Callable[[str], str]) -> str:
    """Return the query of deliveries, and of messages that were not delivered, of one side.

    `topic` returns the expression of a new name, for that of a topic.
    """
    mqtt = _OF_PROTOCOL.format(
        protocol="mqtt", packets="mqtt", payload="payload", joins="", ready="t.first_ns",
        broken=_BROKEN,
        consumer="d.consumer_client_id", producer="d.producer_client_id",
        topic=topic("d.destination"), retain="p.retain", priority="0", dup="coalesce(p.dup, false)",
        version="coalesce(p.version_in_force, 5)", properties=_PROPERTIES,
        share="if(d.subscription LIKE '$share/%', split_part(d.subscription, '/', 2), NULL)",
    )  # fmt: skip
    jms = _OF_PROTOCOL.format(
        protocol="jms", packets="jmq", payload="body", topic=_DESTINATION, broken=_BROKEN,
        joins=_NAME.format("c", "consumer") + _NAME.format("s", "producer") + _ADDED,
        ready="a.added_ns",
        consumer="c.name", producer="s.name", retain="NULL", priority="p.priority",
        dup="d.redelivered OR m.delivery_time_ms IS NOT NULL"
        " OR p.properties['JMS_SUN_DMQ_DEAD_BROKER'] IS NOT NULL",
        version="301", properties=_HEADERS,
        share="if(m.destination_kind LIKE '%queue', d.destination, NULL)",
    )  # fmt: skip
    return f"""
SELECT *, hash(topic, payload) AS message, hash(message, consumer) AS key,
  hash(key, qos, retain, properties, sent_qos) AS kind,
  hash(consumer, topic, producer, qos, lane) AS line
FROM ({mqtt} UNION ALL {jms})
"""


def sent(topic: Callable[[str], str]) -> str:
    """Return the query of the messages that were sent on one side."""
    mqtt, jms = topic("d.destination"), _DESTINATION
    return _SENT.format(topic=f"if(protocol = 'mqtt', {mqtt}, {jms})")


def lacking(topic: Callable[[str], str]) -> str:
    """Return the query of the messages that break a rule of one side, by client.

    One that the other side delivered is a retained value that should have been, too.
    """
    return _LACKING.format(topic=topic("d.destination"))


ORDERED: Final[Mapping[str, str]] = {
    "delivered": 'FROM {side}_copies WHERE delivered ORDER BY began, "offset"',
    "again": "SELECT kind FROM {side}_delivered GROUP BY kind HAVING count(*) > 1",
    "numbered": """
SELECT rowid AS place, kind, 1 AS nth FROM {side}_delivered WHERE kind NOT IN (FROM {side}_again)
UNION ALL
SELECT rowid, kind, row_number() OVER (PARTITION BY kind ORDER BY rowid) FROM {side}_delivered
WHERE kind IN (FROM {side}_again)
""",
}
"""Tables of one side: its deliveries, whose row ids are their places in the order; the kinds that
occur more than once; and the number of each delivery among those of its kind."""
MATCHED: Final = """
SELECT l.place AS left_place, r.place AS right_place
FROM a_numbered l JOIN b_numbered r USING (kind, nth)
"""
REST: Final = """
SELECT l.*, place, n.whole, row_number() OVER (PARTITION BY key ORDER BY place) AS copy
FROM (FROM {left}_numbered ANTI JOIN {right}_numbered USING (kind, nth)) o
JOIN {left}_delivered l ON l.rowid = o.place
LEFT JOIN {left}_names n USING (consumer)
"""
"""The deliveries that the other side does not have just so."""

UNMATCHED: Final = """
SELECT l.*,
  EXISTS (FROM {right}_delivered r WHERE r.key = l.key) AS is_more,
  (SELECT arg_max(r, r.delivered) FROM {right}_copies r WHERE r.key = l.key) AS other,
  (SELECT first(s) FROM {right}_sent s WHERE s.message = l.message) AS sent,
  (SELECT first(s) FROM {right}_lacking s WHERE s.message = l.message AND s.consumer = l.consumer)
    AS lack,
  EXISTS (FROM {right}_delivered r WHERE r.message = l.message AND r.consumer <> l.consumer
    AND r.share = l.share) AS is_shared,
  NOT EXISTS (FROM {left}_sent s WHERE s.message = l.message) AS is_altered
FROM {left}_rest l ANTI JOIN {right}_rest r USING (key, copy)
JOIN {right}_names n ON n.consumer = l.consumer AND n.whole
LEFT JOIN {left}_names own ON own.consumer = l.consumer
WHERE (NOT own.ended OR n.ended OR l.key IN (SELECT key FROM {right}_copies)) AND CASE
  WHEN l.origin = 'will'
    THEN EXISTS (FROM {right}_names w WHERE w.consumer = l.producer AND w.whole AND w.ended)
  WHEN is_altered THEN NOT EXISTS (FROM {left}_clients w WHERE NOT w.whole)
  ELSE EXISTS (FROM {right}_sent s WHERE s.message = l.message) END
ORDER BY l.place
"""
"""The deliveries of the left side that the right one does not have, though its client was there
without a gap, and the message was sent."""

_FRAMES: Final = """l.frame AS left_frame, r.frame AS right_frame, l.source AS left_source,
  r.source AS right_source"""
_RULES: Final = """l.version, l.rule AS left_rule, r.rule AS right_rule,
  coalesce(l.broken, r.broken) AS broken"""
CHANGED: Final = f"""
SELECT consumer, topic, l.qos AS left_qos, r.qos AS right_qos, l.retain AS left_retain,
  r.retain AS right_retain,
  l.properties AS left_properties, r.properties AS right_properties,
  {_RULES}, {_FRAMES}
FROM a_rest l JOIN b_rest r USING (consumer, topic, key, copy)
WHERE l.whole OR r.whole
ORDER BY l.place
"""
_PAIRS: Final = """
FROM matched JOIN a_delivered l ON l.rowid = left_place JOIN b_delivered r ON r.rowid = right_place
WHERE l.consumer IN (FROM whole) AND coalesce(l.producer, l.consumer) IN (FROM whole)
  AND l.origin IS NOT DISTINCT FROM r.origin AND coalesce(l.origin, 'publish') =
"""
ORDER: Final = f"""
SELECT l.consumer, l.topic, l.version, is_left_right, is_free, {_FRAMES} FROM (
  SELECT left_place, right_place, max(right_place) OVER earlier AS latest,
    arg_max(l.sent_ns, right_place) OVER earlier <= l.sent_ns AS is_left_right,
    arg_max(l.priority, right_place) OVER earlier <> l.priority OR l.sent_qos = 2 AS is_free
  {_PAIRS} 'publish' AND NOT (l.dup OR r.dup)
  WINDOW earlier AS (
    PARTITION BY hash(l.line, r.lane) ORDER BY left_place
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  )
) JOIN a_delivered l ON l.rowid = left_place JOIN b_delivered r ON r.rowid = right_place
WHERE right_place < latest ORDER BY left_place
"""
"""Deliveries that come before an earlier one of the same publisher, topic and QoS on the right."""
LATE: Final = f"""
SELECT any_value(l.consumer) AS consumer, any_value(l.topic) AS topic,
  median(l.queue_ns) / 1e6 AS left_ms, median(r.queue_ns) / 1e6 AS right_ms,
  arg_max(l.frame, l.queue_ns) AS left_frame, arg_max(r.frame, r.queue_ns) AS right_frame,
  any_value(l.source) AS left_source, any_value(r.source) AS right_source
{_PAIRS} 'publish' AND l.was_there AND r.was_there GROUP BY hash(l.consumer, l.topic)
HAVING least(count(DISTINCT l.sent_ns // {MOMENT_NS}), count(DISTINCT r.sent_ns // {MOMENT_NS}))
    >= {LEAST_MOMENTS}
  AND greatest(left_ms, right_ms) > {LATER_TIMES} * least(left_ms, right_ms)
  AND greatest(left_ms, right_ms) > {LATER_MS} + least(left_ms, right_ms)
  AND if(left_ms > right_ms,
    min(l.queue_ns) > quantile_cont(r.queue_ns, {MOST}),
    min(r.queue_ns) > quantile_cont(l.queue_ns, {MOST}))
ORDER BY consumer, topic
"""
_ENDED: Final = """(SELECT max(c.closed_ns) FROM {0}_clients c WHERE c.consumer = {1}.producer
  AND c.closed_ns <= {1}.sent_ns + {1}.queue_ns)"""
LATE_WILLS: Final = f"""
SELECT l.consumer, l.topic, (l.sent_ns + l.queue_ns - {_ENDED.format("a", "l")}) / 1e6 AS left_ms,
  (r.sent_ns + r.queue_ns - {_ENDED.format("b", "r")}) / 1e6 AS right_ms, {_FRAMES}
{_PAIRS} 'will' AND NOT l.retain AND NOT r.retain
  AND greatest(left_ms, right_ms) > {LATER_TIMES} * least(left_ms, right_ms)
  AND greatest(left_ms, right_ms) > {WILL_LATER_MS} + least(left_ms, right_ms)
ORDER BY left_place
"""
OTHER_SESSIONS: Final = f"""
SELECT consumer, nth, l.resumed AS left_resumed, r.resumed AS right_resumed,
  l.status AS left_status, r.status AS right_status, l.end_code AS left_code,
  r.end_code AS right_code, {_RULES}, {_FRAMES}
FROM a_clients l JOIN b_clients r USING (consumer, nth)
WHERE consumer IN (FROM whole)
  AND (l.resumed, l.status, l.end_code) IS DISTINCT FROM (r.resumed, r.status, r.end_code)
ORDER BY consumer, nth
"""
OTHER_CODES: Final = f"""
SELECT consumer, packet, nth, l.codes AS left_codes, r.codes AS right_codes, {_RULES}, {_FRAMES}
FROM a_codes l JOIN b_codes r USING (consumer, packet, nth)
WHERE consumer IN (FROM whole) AND l.codes IS DISTINCT FROM r.codes
ORDER BY consumer, packet, nth
"""
