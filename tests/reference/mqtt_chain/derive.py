"""The pipeline from the packets of a capture to tables: its stages and their keys.

1. ``clients``, key: source, server and client id. The only stage that reads packets, with an
   `Observer`. It yields sessions, protocol violations, messages and delivery attempts. A connection
   without a client id has a key of its own.
2. ``subscribers``, key: source and server. Finds the subscriptions that match each topic.
3. ``values``, key: source, server and topic. Derives retained values. It finds the message that set
   a delivered value; a value that a new subscription did not get is a violation.
4. ``deliveries``, key: source, server and topic, one payload after the other. Compares expected
   deliveries with delivery attempts.
5. ``missing``, key: source, server, and the client or group that did not get a message. A broker
   may choose any member of a group, so the connections of all members are needed.
6. ``conversations``, key: source, server, response topic and correlation data.

The order of a stage begins with the records that it needs first. A server is one endpoint. The key
of a message is the stream and offset of its first PUBLISH; that of a will, those of its CONNECT.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final, TypeVar

from tests.reference.mqtt_chain.deliver import deliver
from tests.reference.mqtt_chain.publish import observer_of
from tests.reference.mqtt_chain.sides import known_streams, sides_of
from wireyard.formats.base import Row
from wireyard.layers.mqtt.deliveries import (
    CONVERSATIONS,
    DELIVERIES,
    content_record,
    converse,
    message_records,
)
from wireyard.layers.mqtt.directions import Side, Stream
from wireyard.layers.mqtt.missing import MISSING, connection_record, explain
from wireyard.layers.mqtt.observer import Observer
from wireyard.layers.mqtt.records import VALUES, Message, Subscribed, value_records
from wireyard.layers.mqtt.retained import attempt_record, keep_values
from wireyard.layers.mqtt.rows import session_row, violation_row
from wireyard.layers.mqtt.subscriptions import Last, Topic, match_topics
from wireyard.layers.mqtt.topics import topic_hash
from wireyard.layers.stages import (
    Chain,
    Derived,
    Dropped,
    Fact,
    Found,
    Key,
    KeyedRecord,
    run_chain,
)

__all__ = [
    "CHAIN",
    "CLIENTS",
    "derive_tables",
    "follow_clients",
]

CLIENTS: Final = "clients"
SUBSCRIBERS: Final = "subscribers"
_SUBSCRIBED, _LAST, _WILL, _TOPIC = range(4)
"""The order of the kinds of records of `SUBSCRIBERS`."""
_FLUSH_EVERY: Final = 1024
"""Packets after which the output buffers of the observer are emptied."""
_MAX_TOPICS: Final = 1 << 14
"""Topics remembered as passed on; an evicted topic is passed on again."""

Record = TypeVar("Record")


def follow_clients(rows: Iterator[Row]) -> Iterator[Found]:
    """Observe the packets of a client id of a broker; the rows of its streams come before them."""
    streams: list[Row] = []
    for row in rows:
        if row.get("offset") is not None:
            yield from _follow(observer_of(streams), chain((row,), rows))
        else:
            streams.append(row)


def _follow(observer: Observer, packets: Iterator[Row]) -> Iterator[Found]:
    topics: set[tuple[str, bool]] = set()
    for count, packet in enumerate(packets, 1):
        observer.observe(packet)
        if count % _FLUSH_EVERY == 0:
            yield from _flush(observer, topics)
    observer.finish()
    yield from _flush(observer, topics)
    for key, broker in observer.brokers.items():
        if observer.last is not None:
            last = Last(key, observer.last, broker.has_older, tuple(broker.lost))
            yield _last_record(last)
    for cap, things in observer.output.dropped.items():
        yield Dropped(cap, things)


def _flush(observer: Observer, topics: set[tuple[str, bool]]) -> Iterator[Found]:
    output = observer.output
    for connection in _drained(output.connections):
        yield Fact("sessions", session_row(connection))
        if connection.accepted is not None:
            for name in connection.served_as:
                yield connection_record(connection, name)
    for breach in _drained(output.violations):
        yield Fact("violations", violation_row(breach))
    for subscribed in _drained(output.subscriptions):
        yield _subscription_record(subscribed)
    for change in _drained(output.changes):
        yield from value_records(change)
    for message in _drained(output.messages):
        if _is_new((message.topic, message.retain), topics):
            yield _topic_record(message)
        yield from message_records(message)
    for will in _drained(output.waiting):
        if _is_new((will.topic, will.retain), topics):
            yield _topic_record(will)
        yield _will_record(will)
    for attempt in _drained(output.attempts):
        yield attempt_record(attempt) if attempt.retain else content_record(attempt)


def _is_new(topic: tuple[str, bool], topics: set[tuple[str, bool]]) -> bool:
    if topic in topics:
        return False
    if len(topics) == _MAX_TOPICS:
        topics.clear()
    topics.add(topic)
    return True


def _drained(records: list[Record]) -> list[Record]:
    drained = records[:]
    records.clear()
    return drained


# --- records of the second stage -------------------------------------------------------------


def _subscription_record(subscribed: Subscribed) -> KeyedRecord:
    """Return the record of a subscription."""
    order = _SUBSCRIBED, 0, *subscribed.since.order
    return KeyedRecord(SUBSCRIBERS, subscribed.client[:2], order, subscribed)


def _last_record(last: Last) -> KeyedRecord:
    """Return the record of the last packet of a client."""
    return KeyedRecord(SUBSCRIBERS, last.broker, (_LAST, 0, *last.at.order), last)


def _will_record(will: Message) -> KeyedRecord:
    """Return the record of a will that is published if the capture lasts until its delay ends."""
    return KeyedRecord(SUBSCRIBERS, will.client[:2], (_WILL, 0, *will.sent.order), will)


def _topic_record(message: Message) -> KeyedRecord:
    """Return the record of a topic with messages, and whether they set its retained value."""
    order = _TOPIC, topic_hash(message.topic), *message.sent.order
    return KeyedRecord(SUBSCRIBERS, message.client[:2], order, Topic(message.topic, message.retain))


# --- the tables -----------------------------------------------------------------------------

CHAIN: Final[Chain] = MappingProxyType(
    {
        CLIENTS: follow_clients,
        SUBSCRIBERS: match_topics,
        VALUES: keep_values,
        DELIVERIES: deliver,
        MISSING: explain,
        CONVERSATIONS: converse,
    }
)
"""The stages of the MQTT pipeline.

The first stage is partitioned by `Side.key`. Its rows are those of `known_streams`, then packets.
"""
_TABLES: Final = ("deliveries", "sessions", "retained", "violations", "conversations")


def derive_tables(
    rows: Iterable[Row],
    streams: Iterable[Row] | None = None,
    sides: Mapping[Stream, Side] | None = None,
) -> Derived[list[Row]]:
    """Return the tables that follow from the MQTT packets of captures.

    Parameters
    ----------
    rows
        Rows of MQTT packets as readers yield them, of both directions of every connection, in the
        order of time; `in_order` sorts them so. Raw streams have neither frames nor times.
    streams
        The beginning and end of each stream: ``source, stream, begun, ended, ended_frame,
        ended_ns``. If it is None, a connection without a DISCONNECT counts as open, and nothing
        after its last packet counts as a fault.
    sides
        The side of each stream, if it is known. If it is None, `rows` and `streams` decide it.

    Returns
    -------
    derived
        Tables ``deliveries``, ``sessions``, ``retained``, ``violations``, ``conversations``, with
        the columns of ``wireyard.layers.tables``. Rows are in the order of the packets that they
        cite; the keys of null columns may be absent.
    """
    rows = list(rows)
    streams = None if streams is None else list(streams)
    if sides is None:
        sides = sides_of(rows, streams or ())
    found, dropped = run_chain(CHAIN, _keyed_rows(rows, streams, sides))
    order = {_packet_of(row): number for number, row in enumerate(rows)}
    tables = {
        table: sorted(found.get(table, ()), key=lambda row: order[_packet_of(row)])
        for table in _TABLES
    }
    return Derived(tables, dropped)


def _keyed_rows(
    rows: Iterable[Row], streams: Iterable[Row] | None, sides: Mapping[Stream, Side]
) -> Iterator[tuple[Key, Row]]:
    """Yield the rows of streams, then packets, each with the key of the first stage."""
    for row in chain(known_streams(sides, streams), rows):
        side = sides.get((row["source"], row["stream"]))
        if side is not None:
            yield side.key, row


def _packet_of(row: Row) -> tuple[str, str, int]:
    return row["source"], row["stream"], row["offset"]
