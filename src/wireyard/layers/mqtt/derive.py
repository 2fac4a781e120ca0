"""From the packets of a capture to tables: the stages, each with its key.

1. ``clients``, key: source, server and client id. The one stage that follows packets, with an
   `Observer`: sessions, broken rules, and what became of each message on its way to the broker, or
   from it. A connection without a client id stands for itself.
2. ``subscribers``, key: source and server. Which subscriptions match which topics.
3. ``values``, key: source, server and topic. Retained values; what was delivered of them learns
   which message set it, and what a new subscription should have got breaks a rule.
4. ``deliveries``, key: source, server and topic, one payload after the other. Who should have got
   a message, and who got it.
5. ``missing``, key: source, server, and the client or the group that a message was due to. Of a
   group any member may be served, so what was due to it needs all of them.
6. ``conversations``, key: source, server, response topic and correlation data.

The records that a stage needs first stand first in its order. A server is one endpoint. The key of
a message is stream and offset of its first PUBLISH, that of a will those of its CONNECT.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final, TypeVar

from wireyard.formats.base import Row
from wireyard.layers.mqtt.deliveries import (
    CONVERSATIONS,
    DELIVERIES,
    content_record,
    converse,
    deliver,
    message_records,
)
from wireyard.layers.mqtt.directions import Side, Stream, known_streams, sides_of
from wireyard.layers.mqtt.missing import MISSING, connection_record, explain
from wireyard.layers.mqtt.observer import Observer
from wireyard.layers.mqtt.records import VALUES, value_records
from wireyard.layers.mqtt.retained import attempt_record, keep_values
from wireyard.layers.mqtt.rows import session_row, violation_row
from wireyard.layers.mqtt.subscriptions import (
    SUBSCRIBERS,
    last_record,
    match_topics,
    subscription_record,
    topic_record,
    will_record,
)
from wireyard.layers.stages import Chain, Derived, Dropped, Fact, Found, Key, run_chain

__all__ = [
    "CHAIN",
    "CLIENTS",
    "derive_tables",
    "follow_clients",
]

CLIENTS: Final = "clients"
_FLUSH_EVERY: Final = 1024
"""Packets after which what is final is taken away from the observer."""
_MAX_TOPICS: Final = 1 << 14
"""Topics whose records were passed on; those that are evicted are passed on once more."""

Record = TypeVar("Record")


def follow_clients(rows: Iterator[Row]) -> Iterator[Found]:
    """Follow the packets of a client id of a broker, which come behind the rows of its streams."""
    streams: list[Row] = []
    for row in rows:
        if row.get("offset") is not None:
            yield from _follow(Observer(streams), chain((row,), rows))
        else:
            streams.append(row)


def _follow(observer: Observer, packets: Iterator[Row]) -> Iterator[Found]:
    topics: set[tuple[str, bool]] = set()
    for place, packet in enumerate(packets, 1):
        observer.observe(packet)
        if place % _FLUSH_EVERY == 0:
            yield from _flush(observer, topics)
    observer.finish()
    yield from _flush(observer, topics)
    for key, broker in observer.brokers.items():
        if observer.last is not None:
            yield last_record(key, observer.last, broker.has_older)
    for cap, things in observer.output.dropped.items():
        yield Dropped(cap, things)


def _flush(observer: Observer, topics: set[tuple[str, bool]]) -> Iterator[Found]:
    output = observer.output
    for connection in _emptied(output.connections):
        yield Fact("sessions", session_row(connection))
        if connection.accepted is not None:
            for name in connection.served_as:
                yield connection_record(connection, name)
    for breach in _emptied(output.violations):
        yield Fact("violations", violation_row(breach))
    for subscribed in _emptied(output.subscriptions):
        yield subscription_record(subscribed)
    for change in _emptied(output.changes):
        yield from value_records(change)
    for message in _emptied(output.messages):
        if _is_new((message.topic, message.retain), topics):
            yield topic_record(message)
        yield from message_records(message)
    for will in _emptied(output.waiting):
        if _is_new((will.topic, will.retain), topics):
            yield topic_record(will)
        yield will_record(will)
    for each in _emptied(output.attempts):
        yield attempt_record(each) if each.retain else content_record(each)


def _is_new(topic: tuple[str, bool], topics: set[tuple[str, bool]]) -> bool:
    if topic in topics:
        return False
    if len(topics) == _MAX_TOPICS:
        topics.clear()
    topics.add(topic)
    return True


def _emptied(records: list[Record]) -> list[Record]:
    taken = records[:]
    records.clear()
    return taken


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
"""What MQTT packets say.

The first stage is partitioned by `Side.key`, and takes what `known_streams` yields of streams.
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
        Rows of MQTT packets as they are read, of both directions of every connection, in the order
        of time, into which `in_order` puts them; raw streams have neither frames nor times.
    streams
        What the captures show of their streams: ``source, stream, begun, ended, ended_frame,
        ended_ns``. If that is not known, a connection on which nobody says goodbye counts as open,
        but nobody is blamed for what happens behind its last packet.
    sides
        Which side of its connection each stream is, where that is known. If it is None, it is
        decided by `rows` and `streams`.

    Returns
    -------
    derived
        Tables ``deliveries``, ``sessions``, ``retained``, ``violations``, ``conversations``, with
        the columns of ``wireyard.layers.tables``, each in the order of the packets that its rows
        lead to; what a row does not have is not in it.
    """
    rows = list(rows)
    streams = None if streams is None else list(streams)
    if sides is None:
        sides = sides_of(rows, streams or ())
    found, dropped = run_chain(CHAIN, _dealt(rows, streams, sides))
    places = {_packet_of(row): place for place, row in enumerate(rows)}
    tables = {
        table: sorted(found.get(table, ()), key=lambda row: places[_packet_of(row)])
        for table in _TABLES
    }
    return Derived(tables, dropped)


def _dealt(
    rows: Iterable[Row], streams: Iterable[Row] | None, sides: Mapping[Stream, Side]
) -> Iterator[tuple[Key, Row]]:
    """Yield what is known of streams, then packets, each with the key of the first stage."""
    for row in chain(known_streams(sides, streams), rows):
        side = sides.get((row["source"], row["stream"]))
        if side is not None:
            yield side.key, row


def _packet_of(row: Row) -> tuple[str, str, int]:
    return row["source"], row["stream"], row["offset"]
