"""The queries of a comparison: what each side shows, and what differs.

Deliveries of both sides are the same if they are the n-th with this topic and payload to this
client. Times, packet ids and ports never count.
"""

from __future__ import annotations

from typing import Final

LEAST_DELIVERIES: Final = 5
"""Deliveries of a client and a topic on either side, from which on their times are compared."""
LATER_MS: Final = 20
LATER_TIMES: Final = 2
"""A median is later if it is so many times the other one, and by so much."""

COPIES: Final = """
SELECT d.consumer_client_id AS consumer, d.destination AS topic, d.origin, d.verdict,
  d.subscription, d.producer_client_id AS producer, d.qos, p.retain,
  md5(coalesce(p.payload, m.body)) AS payload,
  coalesce(p.dup, false) AS dup, d.delivered_frame IS NOT NULL AS delivered,
  list_sort([e.name || '=' || if(e.name = 'message_expiry_interval', '', e.value)
    FOR e IN coalesce(p.properties, []) IF e.name <> 'topic_alias']) AS properties,
  d.delivered_ns - d.sent_ns AS queue_ns, coalesce(d.delivered_ns, d.sent_ns) AS at_ns,
  coalesce(d.delivered_frame, d.sent_frame) AS frame, d."offset" AS place, d.source, d.sent_ns,
  v.rule,
  coalesce(p.version_in_force, 5) AS version,
  row_number() OVER (
    PARTITION BY d.consumer_client_id, d.destination, payload, d.delivered_frame IS NULL
    ORDER BY at_ns, d.delivered_frame, d."offset"
  ) AS copy
FROM deliveries d
LEFT JOIN packets_mqtt p ON p.packet_type = 3 AND d.delivered_frame IS NOT NULL
  AND p.source = d.source AND p.stream = d.stream AND p."offset" = d."offset"
LEFT JOIN messages m ON m.message_key = d.message_key AND m.source = d.source
LEFT JOIN (
  SELECT source, frame, any_value(rule) AS rule FROM violations WHERE protocol = 'mqtt' GROUP BY ALL
) v ON v.source = d.source AND v.frame = d.delivered_frame
WHERE d.protocol = 'mqtt' AND d.consumer_client_id IS NOT NULL
"""
"""A delivery, or a message that was not delivered, of one side."""
SENT: Final = """
SELECT destination AS topic, md5(body) AS payload, min(frame) AS frame, any_value(source) AS source
FROM messages WHERE protocol = 'mqtt' GROUP BY ALL
"""
SESSIONS: Final = """
SELECT client_id AS consumer, coalesce(resumed, false) AS resumed, status, end_code, source,
  opened_frame AS frame, closed_frame,
  row_number() OVER (PARTITION BY client_id ORDER BY opened_ns, opened_frame) AS nth
FROM sessions WHERE protocol = 'mqtt' AND client_id IS NOT NULL AND opened_frame IS NOT NULL
"""
CODES: Final = """
SELECT s.client_id AS consumer, p.packet_type_name AS packet, p.return_codes AS codes, p.source,
  p.frame, row_number() OVER (
    PARTITION BY s.client_id, p.packet_type ORDER BY p.captured_ns, p.frame, p."offset"
  ) AS nth
FROM packets_mqtt p JOIN sessions s ON s.source = p.source AND s.client_id IS NOT NULL
  AND p.stream = s.server || '>' || s.client
  AND p.captured_ns BETWEEN s.opened_ns AND coalesce(s.closed_ns, p.captured_ns)
WHERE p.packet_type IN (9, 11) AND p.status = 'ok'
"""
"""The answers to SUBSCRIBE and UNSUBSCRIBE of one side."""

_PAIRED: Final = """
FROM (FROM {left}_copies WHERE delivered) l JOIN (FROM {right}_copies WHERE delivered) r
USING (consumer, topic, payload, copy)
"""

UNMATCHED: Final = """
SELECT l.*,
  EXISTS (FROM {right}_copies r WHERE r.delivered AND r.consumer = l.consumer
    AND r.topic = l.topic AND r.payload = l.payload) AS is_more,
  (SELECT arg_max(r, r.delivered) FROM {right}_copies r WHERE r.consumer = l.consumer
    AND r.topic = l.topic AND r.payload = l.payload) AS other,
  (SELECT first(s) FROM {right}_sent s WHERE s.topic = l.topic AND s.payload = l.payload) AS sent,
  EXISTS (FROM {right}_copies r WHERE r.delivered AND r.consumer <> l.consumer
    AND r.topic = l.topic AND r.payload = l.payload AND r.subscription LIKE '$share/%'
    AND r.subscription = l.subscription) AS is_shared,
  NOT EXISTS (FROM {left}_sent s WHERE s.topic = l.topic AND s.payload = l.payload) AS is_altered
FROM {left}_copies l ANTI JOIN (FROM {right}_copies WHERE delivered) r
USING (consumer, topic, payload, copy)
WHERE l.delivered AND EXISTS (FROM {right}_sessions s WHERE s.consumer = l.consumer)
  AND (l.origin <> 'publish' OR EXISTS (FROM {right}_sent s
    WHERE s.topic = l.topic AND s.payload = l.payload))
ORDER BY l.at_ns, l.frame
"""
"""The deliveries of the left side that the right one does not have, though its client was there and
the message was sent."""

CHANGED: Final = f"""
SELECT consumer, topic, l.qos AS left_qos, r.qos AS right_qos, l.retain AS left_retain,
  r.retain AS right_retain, l.version,
  l.properties AS left_properties, r.properties AS right_properties,
  l.frame AS left_frame, r.frame AS right_frame, l.source AS left_source, r.source AS right_source,
  l.rule AS left_rule, r.rule AS right_rule
{_PAIRED}
WHERE (l.qos, l.retain, l.properties) IS DISTINCT FROM (r.qos, r.retain, r.properties)
ORDER BY l.at_ns, l.frame
"""
ORDER: Final = f"""
SELECT * FROM (
  SELECT consumer, topic, l.frame AS left_frame, r.frame AS right_frame, l.source AS left_source,
    r.source AS right_source, l.at_ns,
    (r.at_ns, r.frame, r.place) AS moment, max((r.at_ns, r.frame, r.place)) OVER earlier AS latest,
    arg_max(l.sent_ns, (r.at_ns, r.frame, r.place)) OVER earlier <= l.sent_ns AS left_is_right
  {_PAIRED}
  WHERE NOT l.dup AND NOT r.dup AND l.origin = 'publish' AND r.origin = 'publish'
  WINDOW earlier AS (
    PARTITION BY consumer, topic, l.producer, l.qos ORDER BY l.at_ns, l.frame, l.place
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  )
) WHERE moment < latest
ORDER BY at_ns
"""
"""Deliveries that come before an earlier one of the same publisher, topic and QoS on the right."""
LATE: Final = f"""
SELECT consumer, topic, median(l.queue_ns) / 1e6 AS left_ms, median(r.queue_ns) / 1e6 AS right_ms,
  arg_max(l.frame, l.queue_ns) AS left_frame, arg_max(r.frame, r.queue_ns) AS right_frame,
  any_value(l.source) AS left_source, any_value(r.source) AS right_source
{_PAIRED}
WHERE l.origin = 'publish' AND r.origin = 'publish'
GROUP BY ALL
HAVING count(*) >= {LEAST_DELIVERIES}
  AND greatest(left_ms, right_ms) > {LATER_TIMES} * least(left_ms, right_ms)
  AND greatest(left_ms, right_ms) > {LATER_MS} + least(left_ms, right_ms)
ORDER BY consumer, topic
"""
OTHER_SESSIONS: Final = """
SELECT consumer, nth, l.resumed AS left_resumed, r.resumed AS right_resumed,
  l.status AS left_status, r.status AS right_status, l.end_code AS left_code,
  r.end_code AS right_code, l.frame AS left_frame, r.frame AS right_frame,
  l.source AS left_source, r.source AS right_source
FROM {left}_sessions l JOIN {right}_sessions r USING (consumer, nth)
WHERE (l.resumed, l.status, l.end_code) IS DISTINCT FROM (r.resumed, r.status, r.end_code)
ORDER BY consumer, nth
"""
OTHER_CODES: Final = """
SELECT consumer, packet, nth, l.codes AS left_codes, r.codes AS right_codes,
  l.frame AS left_frame, r.frame AS right_frame, l.source AS left_source, r.source AS right_source
FROM {left}_codes l JOIN {right}_codes r USING (consumer, packet, nth)
WHERE l.codes IS DISTINCT FROM r.codes
ORDER BY consumer, packet, nth
"""


def sides(query: str, left: str, right: str) -> str:
    """Return a query with the tables of two sides."""
    return query.format(left=left, right=right)
