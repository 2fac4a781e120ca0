"""Symptoms of an Open MQ cluster: a broker did not act on a packet of another broker.

A broker has one endpoint for clients and another one for its links, with the same address. Packets
on a link contain the name of the sender's instance. Consumer ids are unique in a cluster.
"""

from __future__ import annotations

from typing import Final

from wireyard.layers.jmq.waiting import ENDS, IS_DELIVERY, RECEIVER, SENDER
from wireyard.layers.symptoms import BACK, LONG_NS, TRACE_ALL, Symptom

_LINK: Final = (
    'wireyard sql {input} "SELECT frame, stream, packet_type_name, flags, properties'
    ' FROM packets_gpacket ORDER BY frame"'
)
_LINKS: Final = """
  SELECT source, src_addr || ':' || src_port AS sender, dst_addr || ':' || dst_port AS receiver,
    src_addr AS sender_addr, dst_addr AS receiver_addr, arg_max(frame, captured_ns) AS last_frame
  FROM packets_gpacket WHERE captured_ns IS NOT NULL GROUP BY ALL
"""
"""Captured directions of links."""
_BROKERS: Final = """
  SELECT addr, coalesce(any_value(name) || ' (' || addr || ')', addr) AS broker
  FROM (
    SELECT src_addr AS addr,
      if(packet_type IN (1, 3, 5, 9, 35), properties['instanceName'].value, NULL) AS name
    FROM packets_gpacket
  )
  GROUP BY addr
"""
"""Names of brokers: in these packet types the instance name is the sender's."""
_CLIENTS: Final = f"""
  SELECT source, client,
    max(captured_ns) FILTER (packet_type = 20) AS started_ns,
    max(captured_ns) FILTER (packet_type = 22) AS stopped_ns,
    max(captured_ns) FILTER (packet_type = 52) AS resumed_ns,
    max(captured_ns) FILTER (packet_type <= 6) AS full_ns
  FROM (
    SELECT source, captured_ns, packet_type,
      if(packet_type <= 6, {RECEIVER.format("p")}, {SENDER.format("p")}) AS client
    FROM packets_jmq p
    WHERE packet_type IN (20, 22, 52)
      OR (packet_type BETWEEN 1 AND 6 AND {IS_DELIVERY}
        AND (flags LIKE '%C%' OR flags LIKE '%F%'))
  )
  GROUP BY ALL
"""
"""By client, the times of START, STOP, RESUME_FLOW and of messages that used up its window."""
_OPEN: Final = f"""
  SELECT c.*, coalesce(c.client_id, c.client) AS name, c.until_ns IS NULL AS is_open,
    coalesce(f.started_ns > coalesce(f.stopped_ns, 0), false)
      AND coalesce(f.resumed_ns, 0) >= coalesce(f.full_ns, 0) AS is_ready
  FROM jms_consumers c LEFT JOIN ({_CLIENTS}) f ON f.source = c.source AND f.client = c.client
"""
"""Consumers whose creation was captured, whether they still exist, and can take messages."""

_TORN: Final = f"""
  SELECT source, {BACK} AS stream
  FROM (
    SELECT DISTINCT g.source, g.stream
    FROM quarantine g JOIN packets_gpacket p
    ON p.source = g.source AND p.stream = g.stream AND p."offset" > g."offset"
    WHERE g.status = 'gap' AND p.captured_ns IS NOT NULL
  )
"""
"""Directions of links of whose answers some may be missing, between others that were captured."""

_RELAY_UNANSWERED: Final = f"""
WITH links AS ({_LINKS}), brokers AS ({_BROKERS}), consumers AS ({_OPEN}), relayed AS (
  SELECT message_key, consumer_id, arg_min(source, captured_ns) AS source,
    arg_min(sender, captured_ns) AS sender, arg_min(receiver, captured_ns) AS receiver,
    arg_min(frame, captured_ns) AS frame, arg_min(stream, captured_ns) AS stream,
    arg_min("offset", captured_ns) AS "offset", min(captured_ns) AS relayed_ns
  FROM hops h
  WHERE kind = 'relayed' AND captured_ns IS NOT NULL
    AND NOT EXISTS (
      FROM hops a
      WHERE a.kind = 'relay_acknowledged' AND a.message_key = h.message_key
        AND a.consumer_id = h.consumer_id
    )
  GROUP BY ALL
), unanswered AS (
  SELECT r.*, m.destination, coalesce(c.name, d.consumer_client_id, d.consumer) AS client,
    if(d.verdict IS NULL, 'neither delivered nor acknowledged them',
      'had them acknowledged by the consumer, and did not pass that on') AS what
  FROM relayed r
  JOIN ({ENDS}) e ON e.source = r.source
  LEFT JOIN deliveries d ON d.message_key = r.message_key AND d.consumer_id = r.consumer_id
  LEFT JOIN consumers c ON c.consumer_id = r.consumer_id
  LEFT JOIN (
    SELECT message_key, any_value(destination) AS destination, max(expiration_ms) AS expiration_ms,
      any_value(destination_kind) AS kind
    FROM messages WHERE protocol = 'jms' GROUP BY 1
  ) m ON m.message_key = r.message_key
  WHERE e.end_ns - coalesce(d.acknowledged_ns, r.relayed_ns) >= {LONG_NS}
    AND coalesce(d.verdict IN ('acknowledged', 'committed'), c.is_ready, true)
    AND NOT coalesce(m.expiration_ms > 0 AND m.expiration_ms < e.end_ns // 1000000, false)
    AND coalesce(c.is_open, NOT EXISTS (
      FROM packets_gpacket g
      WHERE g.source = r.source AND g.stream <> r.stream AND g.captured_ns >= r.relayed_ns
        AND g.packet_type IN (9, 21, 37)
    ))
    AND NOT EXISTS (
      FROM deliveries o
      WHERE o.consumer_id = r.consumer_id AND o.outcome = 'unacknowledged'
    )
    AND NOT (coalesce(m.kind, 'queue') LIKE '%queue' AND EXISTS (
      FROM deliveries o
      WHERE o.message_key = r.message_key AND o.consumer_id <> r.consumer_id
        AND o.delivered_ns > r.relayed_ns
    ))
    AND (r.source, r.stream) NOT IN (SELECT (source, stream) FROM ({_TORN}))
)
SELECT u.destination, u.client, count(*) AS count, u.what, f.broker AS holder, t.broker,
  back.last_frame, arg_min(u.source, u.relayed_ns) AS source,
  arg_min(u.frame, u.relayed_ns) AS frame, arg_min(u.stream, u.relayed_ns) AS stream,
  arg_min(u."offset", u.relayed_ns) AS "offset"
FROM unanswered u
JOIN links back
ON back.source = u.source AND back.sender = u.receiver AND back.receiver = u.sender
JOIN brokers f ON f.addr = back.receiver_addr
JOIN brokers t ON t.addr = back.sender_addr
GROUP BY 1, 2, 4, 5, 6, 7
"""
_NOT_ROUTED: Final = f"""
WITH links AS ({_LINKS}), brokers AS ({_BROKERS}), waits AS (
  SELECT w.*, regexp_extract(w.stream, '>(.*):', 1) AS server_addr
  FROM jms_queued w
  WHERE w.delayed_ms IS NULL AND NOT EXISTS (
      FROM deliveries o WHERE o.destination = w.destination AND o.outcome = 'unacknowledged'
    )
), found AS (
  SELECT w.*, c.name AS client, c.dst_addr, EXISTS (
      FROM packets_gpacket g
      WHERE g.packet_type IN (5, 35) AND g.src_addr = c.dst_addr AND g.dst_addr = w.server_addr
        AND list_contains(map_keys(g.properties), c.consumer_id || ':prefetch')
    ) AS was_announced
  FROM waits w JOIN ({_OPEN}) c
  ON c.destination = w.destination AND NOT c.is_topic AND c.selector IS NULL
    AND c.dst_addr <> w.server_addr AND c.is_open
  WHERE w.end_ns - greatest(w.since_ns, c.captured_ns) >= {LONG_NS}
)
SELECT w.destination, w.client, count(*) AS count, f.broker AS holder, t.broker,
  if(w.was_announced, 'announced', 'never announced') AS announced,
  arg_min(w.source, w.since_ns) AS source, arg_min(w.frame, w.since_ns) AS frame,
  arg_min(w.stream, w.since_ns) AS stream, arg_min(w."offset", w.since_ns) AS "offset"
FROM found w
JOIN brokers f ON f.addr = w.server_addr
JOIN brokers t ON t.addr = w.dst_addr
WHERE EXISTS (
  FROM links l WHERE l.sender_addr = w.dst_addr AND l.receiver_addr = w.server_addr
)
GROUP BY 1, 2, 4, 5, 6
"""
_BROKER_SILENT: Final = f"""
WITH links AS ({_LINKS}), brokers AS ({_BROKERS}), asked AS (
  SELECT *, src_addr || ':' || src_port AS sender, dst_addr || ':' || dst_port AS receiver,
    packet_type_name || coalesce(' ' || properties['I'].value, '') AS request
  FROM packets_gpacket
  WHERE (flags LIKE '%A%' OR packet_type = 11) AND captured_ns IS NOT NULL
)
SELECT NULL AS destination, t.broker AS client, count(*) AS count, f.broker AS holder,
  arg_min(p.request, p.captured_ns) AS request, back.last_frame,
  arg_min(p.source, p.captured_ns) AS source, arg_min(p.frame, p.captured_ns) AS frame,
  arg_min(p.stream, p.captured_ns) AS stream, arg_min(p."offset", p.captured_ns) AS "offset"
FROM asked p
JOIN ({ENDS}) e ON e.source = p.source
JOIN links back
ON back.source = p.source AND back.sender = p.receiver AND back.receiver = p.sender
JOIN brokers f ON f.addr = p.src_addr
JOIN brokers t ON t.addr = p.dst_addr
WHERE e.end_ns - p.captured_ns >= {LONG_NS}
  AND (p.source, p.stream) NOT IN (SELECT (source, stream) FROM ({_TORN}))
  AND NOT EXISTS (
    FROM packets_gpacket r
    WHERE r.source = p.source AND r.packet_type = p.packet_type + 1
      AND r.src_addr = p.dst_addr AND r.src_port = p.dst_port
      AND r.dst_addr = p.src_addr AND r.dst_port = p.src_port AND r.captured_ns >= p.captured_ns
      AND r.properties['X'].value IS NOT DISTINCT FROM p.properties['X'].value
  )
GROUP BY 2, 4, 6
"""

CLUSTER: Final = (
    Symptom(
        "relay_unanswered",
        "stuck",
        "{messages} from broker {holder}: broker {broker} {what}; frame {last_frame} is the last"
        " of its link",
        TRACE_ALL,
        _RELAY_UNANSWERED,
        table="packets_gpacket",
    ),
    Symptom(
        "not_routed",
        "stuck",
        "{messages} kept by broker {holder}; broker {broker} has a consumer, and {announced} it",
        TRACE_ALL,
        _NOT_ROUTED,
        table="packets_gpacket",
    ),
    Symptom(
        "broker_silent",
        "stuck",
        "{requests} of broker {holder} not answered by it: {request}; frame {last_frame} is the"
        " last of its link",
        _LINK,
        _BROKER_SILENT,
        table="packets_gpacket",
    ),
)
