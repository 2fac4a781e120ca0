"""From the packets of a capture to tables: a pure function of rows.

The steps, and what each can be cut by. Two need the packets of their key in order and keep state
over them; the others are joins.

================  ===========================================  =======================
step              key                                          kind
================  ===========================================  =======================
directions        source, connection (endpoints and ordinal)   join: first telling row
connections       source, connection                           state: `Observer`
flows, sessions   source, server, client id                    state: `Observer`
retained values   source, server, topic                        join: next value
subscriptions     source, server                               join: filter against topic
deliveries        source, server, client id, topic, payload    join: `assign`
conversations     source, server, response topic, data         join: equality
================  ===========================================  =======================

A server is one endpoint. A message is called by stream and offset of its first PUBLISH, a will by
those of its CONNECT.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from wireyard.layers.mqtt.deliveries import deliveries
from wireyard.layers.mqtt.directions import Side, sides_of
from wireyard.layers.mqtt.observer import Observer
from wireyard.layers.mqtt.records import End, Handed, Link, Message, Moment, Subscribed, Violation
from wireyard.layers.mqtt.retained import Retained, Value

__all__ = ["Derived", "derive_tables", "observe", "retained_values"]

Row = Mapping[str, Any]
Record = TypeVar("Record", Message, Handed, Subscribed, Link)
Tables = dict[str, list[dict[str, Any]]]
_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
_AT_PUBREL: Final = 2
"""The QoS at which a broker has a message with PUBREL."""


class Derived(NamedTuple):
    """Tables by name, and how much of what was left out of them, by the cap that it was above."""

    tables: Tables
    dropped: Counter[str]


def observe(observer: Observer, rows: Iterable[Row], ends: Iterable[End] | None = None) -> None:
    """Show an observer the rows of a capture and the ends of its streams, each in its place.

    Rows have odd places, so that what comes between two has one of its own.
    """
    waiting = iter(sorted(ends or (), key=lambda end: end.frame))
    end = next(waiting, None)
    place = -1
    for place, row in enumerate(rows):
        frame = row.get("frame")
        while end is not None and frame is not None and end.frame < frame:
            observer.end(end, 2 * place)
            end = next(waiting, None)
        observer.take(row, 2 * place + 1)
    while end is not None:
        observer.end(end, 2 * (place + 1))
        end = next(waiting, None)
    observer.finish(ends is not None)


def derive_tables(
    rows: Iterable[Row],
    streams: Iterable[Row] | None = None,
    sides: Mapping[tuple[str, str], Side] | None = None,
) -> Derived:
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
        Which side of its connection each stream is. If that is not known, the rows tell, and are
        gone through twice.

    Returns
    -------
    Derived
        Tables ``deliveries``, ``sessions``, ``retained``, ``violations``, ``conversations``, with
        the columns of ``wireyard.layers.tables``; what a row does not have is not in it.
    """
    if sides is None:
        rows = list(rows)
        sides = sides_of(rows)
    known = None if streams is None else list(streams)
    begun = frozenset((one["source"], one["stream"]) for one in known or () if one["begun"])
    observer = Observer(sides, begun)
    observe(observer, rows, None if known is None else _ends(known))
    notes, brokers = observer.notes, observer.brokers
    messages, handed = _by_broker(notes.messages), _by_broker(notes.handed)
    subscriptions, links = _by_broker(notes.subscriptions), _by_broker(notes.links)
    tables: Tables = {
        "deliveries": [],
        "sessions": [_session(link) for link in notes.links],
        "retained": [],
        "violations": [_violation(one) for one in notes.violations],
        "conversations": [],
    }
    dropped = Counter(notes.dropped)
    for key, broker in brokers.items():
        retained = retained_values([*messages[key], *broker.wills])
        setters = {one.key: one for one in (*messages[key], *broker.wills) if one.retain}
        for each in handed[key]:
            if each.retain:
                value = retained.latest(each.topic, each.payload, each.at.time)
                each.value = setters[value.key] if value else None
        tables["deliveries"] += deliveries(
            broker, messages[key], handed[key], subscriptions[key], links[key]
        )
        tables["retained"] += _retained(retained, setters)
        tables["conversations"] += _conversations(messages[key])
        dropped += broker.dropped
        dropped["retained"] += retained.dropped
    return Derived(tables, +dropped)


def _ends(streams: Iterable[Row]) -> Iterator[End]:
    for one in streams:
        if one["ended"] is not None:
            yield End(one["source"], one["stream"], one["ended_frame"], one["ended_ns"])


def _by_broker(records: Iterable[Record]) -> defaultdict[tuple[str, str], list[Record]]:
    found: defaultdict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        link = record if isinstance(record, Link) else record.link
        found[link.broker].append(record)
    return found


def _packet(at: Moment) -> dict[str, Any]:
    return {"source": at.source, "stream": at.stream, "offset": at.offset}


def _session(link: Link) -> dict[str, Any]:
    sent, received = link.in_flight
    return {
        "protocol": "mqtt",
        "client": link.client,
        "server": link.server,
        "client_id": link.client_id,
        "user": link.user,
        "opened_ns": link.opened.ns,
        "closed_ns": link.closed.ns if link.closed else None,
        "status": link.status,
        "ended_by": link.ended_by,
        "packets": link.packets,
        "bytes": link.bytes,
        "version": link.version or None,
        "resumed": link.resumed,
        "keep_alive": link.keep_alive,
        "in_flight_sent": sent,
        "in_flight_received": received,
        "opened_frame": link.opened.frame,
        "closed_frame": link.closed.frame if link.closed else None,
        **_packet(link.opened),
    }


def _violation(one: Violation) -> dict[str, Any]:
    return {
        "protocol": "mqtt",
        "rule": one.rule,
        "client": one.link.client,
        "message_key": one.message.key if one.message else None,
        "text": one.text,
        "client_id": one.link.client_id,
        "captured_ns": one.at.ns,
        "frame": one.at.frame,
        **_packet(one.at),
    }


def retained_values(messages: Iterable[Message]) -> Retained:
    """Return the values that the messages of a broker set, wills among them.

    A broker has a message at QoS 2 with its PUBREL, all others with their PUBLISH.
    """
    taken = [
        (at, message)
        for message in messages
        if message.retain and (at := _taken_at(message)) is not None
    ]
    retained = Retained()
    for at, message in sorted(taken, key=lambda one: one[0].place):
        expires = None
        if message.expires_s is not None and at.ns is not None:
            expires = at.ns + message.expires_s * _NS_PER_S
        value = Value(message.topic, message.payload, message.qos, message.key, at.time)
        retained.set(value, expires)
    return retained


def _taken_at(message: Message) -> Moment | None:
    """Return when a broker has a message, None if it refuses it or never has."""
    if message.refused is not None or message.malformed:
        return None
    if message.origin == "will":
        return message.accepted
    return message.released if message.qos == _AT_PUBREL else message.sent


def _retained(retained: Retained, setters: Mapping[str, Message]) -> Iterator[dict[str, Any]]:
    for value in retained.values():
        setter = setters[value.key]
        timed = setter.sent.ns is not None
        yield {
            "topic": value.topic,
            "from_ns": value.since if timed else None,
            "to_ns": value.until if timed else None,
            "payload": value.payload,
            "qos": value.qos,
            "message_key": value.key,
            "client_id": setter.link.client_id,
            "ended_by": value.ended_by,
            "from_frame": setter.sent.frame,
            **_packet(setter.sent),
        }


def _conversations(messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
    """Yield requests with their replies: what was sent to the response topic with their data.

    Of requests that have both in common the one that waits longest is answered; if none waits, the
    one that was answered last is answered again.
    """
    waiting: dict[tuple[str, bytes | None], deque[Message]] = {}
    answered: dict[tuple[str, bytes | None], Message] = {}
    for message in messages:
        key = message.topic, message.correlation_data
        if waiting.get(key):
            answered[key] = waiting[key].popleft()
        if key in answered:
            yield _conversation(answered[key], message)
        if message.response_topic is not None:
            asked = message.response_topic, message.correlation_data
            waiting.setdefault(asked, deque()).append(message)
    for requests in waiting.values():
        for request in requests:
            yield _conversation(request, None)


def _conversation(request: Message, reply: Message | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "kind": "mqtt5",
        "request_key": request.key,
        "requester": request.link.client,
        "requested_ns": request.sent.ns,
        "request": request.topic,
        "requested_frame": request.sent.frame,
        **_packet(request.sent),
    }
    if reply is None:
        return row
    latency_ms = None
    if reply.sent.ns is not None and request.sent.ns is not None:
        latency_ms = (reply.sent.ns - request.sent.ns) // _NS_PER_MS
    return row | {
        "reply_key": reply.key,
        "responder": reply.link.client,
        "replied_ns": reply.sent.ns,
        "latency_ms": latency_ms,
        "replied_frame": reply.sent.frame,
    }
