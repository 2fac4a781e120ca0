"""Verdicts for missing deliveries, from the connections and the session of the subscriber.

Rules of this file (errata M31 and M32):

1. The verdict ``not_forwarded`` needs evidence on the subscriber's own connection that the broker
   is past the message: a delivered message that was sent after the broker confirmed the missing one
   and came at the same or a higher QoS, or the answer to a later request.
2. A message that waits for a full window is overtaken only by messages of its own topic, because
   MQTT orders messages within a topic only (MQTT 3.1.1 and 5.0, 4.6).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from wireyard.formats.base import Row
from wireyard.layers.mqtt.records import (
    PROTOCOL,
    Client,
    ConnectionRecord,
    Message,
    Subscribed,
    may_exceed,
)
from wireyard.layers.mqtt.topics import topic_hash
from wireyard.layers.mqtt.violations import RULES, violation_of
from wireyard.layers.records import Position, violation_row
from wireyard.layers.stages import Fact, Found, Key, KeyedRecord, Order

__all__ = [
    "MISSING",
    "LatestDelivered",
    "MissedDelivery",
    "UnsubscribedDelivery",
    "connection_record",
    "explain",
    "latest_record",
    "missing_record",
    "unsubscribed_record",
]

MISSING: Final = "missing"
_UNSUBSCRIBED: Final = (
    RULES["unsubscribed"].name,
    f"against the rule that {RULES['unsubscribed'].text}",
)
_LATEST, _CONNECTION, _MISSED = range(3)
"""The order of the kinds of records; missed deliveries are ordered by topic."""


class MissedDelivery(NamedTuple):
    """An expected delivery to a client or a group that is missing."""

    message: Message
    confirmed: Position
    """When the broker confirmed the message."""
    subscribed: Subscribed
    granted: tuple[tuple[str, int], ...]
    """The clients that were certainly subscribed, each with its QoS."""


class LatestDelivered(NamedTuple):
    """The message sent last among those delivered on one connection at a QoS."""

    topic: str | None
    """Its topic; None if it is the last among all topics."""
    connection: tuple[str, str]
    """The endpoint of the client, and which connection from there."""
    qos: int
    sent: Position
    at: Position
    """When it was delivered."""


class UnsubscribedDelivery(NamedTuple):
    """A delivery to a client without a subscription that matches its topic."""

    client: Client
    at: Position
    message_key: str | None


def unsubscribed_record(one: UnsubscribedDelivery) -> KeyedRecord:
    """Return the record of a delivery without a subscription."""
    return KeyedRecord(MISSING, one.client[:3], (_MISSED, 0, *one.at.order), one)


def latest_record(key: Key, latest: LatestDelivered) -> KeyedRecord:
    """Return the record of a latest delivered message, for the client or group in `key`."""
    topic = latest.topic
    order = (_LATEST, 0, *latest.at.order) if topic is None else _order_on(topic, None)
    return KeyedRecord(MISSING, key, order, latest)


def _order_on(topic: str, missed: Position | None) -> Order:
    """Return the order key of a missed message; with None, that of the records before them."""
    group = topic_hash(topic)
    if missed is None:
        return _MISSED, group, -1, 0, "", 0
    return _MISSED, group, *missed.order


def connection_record(connection: ConnectionRecord, name: str) -> KeyedRecord:
    """Return the record of a connection, for one of the names in its `served_as`."""
    return KeyedRecord(
        MISSING,
        (*connection.client[:2], name),
        (_CONNECTION, 0, *connection.opened.order),
        connection,
    )


def missing_record(
    message: Message,
    name: str,
    subscribed: Subscribed,
    active: list[Subscribed],
    confirmed: Position,
) -> KeyedRecord:
    """Return the record of a missed delivery.

    Parameters
    ----------
    name
        The client that should get the message, or the shared filter of the group.
    subscribed
        The first matching subscription.
    active
        The subscriptions that were active from before the message until the broker confirmed it.
    """
    granted: dict[str, int] = {}
    for sub in active:
        granted[sub.client.name] = max(sub.qos, granted.get(sub.client.name, 0))
    missed = MissedDelivery(message, confirmed, subscribed, tuple(granted.items()))
    key = (*message.client[:2], name)
    return KeyedRecord(MISSING, key, _order_on(message.topic, message.sent), missed)


def explain(
    records: Iterator[LatestDelivered | ConnectionRecord | MissedDelivery | UnsubscribedDelivery],
) -> Iterator[Found]:
    """Yield the missed deliveries of one client or one group, with their verdicts.

    Limits
    ------
    The connections are held, and for each of them and QoS the latest delivered message: among all
    topics, and of each topic with the current hash.
    """
    history = ConnectionHistory()
    for record in records:
        if isinstance(record, LatestDelivered):
            history.add_latest(record)
        elif isinstance(record, ConnectionRecord):
            history.add(record)
        elif isinstance(record, UnsubscribedDelivery):
            # A SUBSCRIBE may be unanswered until a later request is answered.
            if history.has_answered(record.client.name, record.at):
                violation = violation_of(
                    *_UNSUBSCRIBED, record.client, False, record.at, record.message_key
                )
                yield Fact("violations", violation_row(PROTOCOL, violation))
        else:
            yield Fact("deliveries", _row(record, *_explain_missed(record, history)))


def _row(missed: MissedDelivery, connection: ConnectionRecord | None, verdict: str) -> Row:
    """Return the row of a missed delivery; `connection` is the one on which it is missing."""
    message, subscribed = missed.message, missed.subscribed
    by, receiver = message.client, (connection or subscribed).client
    return {
        "message_key": message.key,
        "protocol": PROTOCOL,
        "origin": message.origin,
        "destination": message.topic,
        "consumer": receiver.endpoint,
        "consumer_client_id": receiver.client_id,
        "consumer_id": subscribed.identifier,
        "subscription": subscribed.filter,
        "subscribed_frame": subscribed.granted.frame,
        "verdict": verdict,
        "producer": by.endpoint,
        "producer_client_id": by.client_id,
        "sent_ns": message.sent.ns,
        "sent_frame": message.sent.frame,
        "accepted_frame": None if message.accepted is None else message.accepted.frame,
        "outcome": "expired" if verdict == "expired" else None,
        **message.sent.lead,
    }


class ConnectionHistory:
    """The connections of clients, and the latest messages delivered on them."""

    def __init__(self) -> None:
        self._connections: dict[str, list[ConnectionRecord]] = {}
        self._latest: dict[tuple[tuple[str, str], int], LatestDelivered] = {}
        self._latest_on_topic: dict[tuple[str, tuple[str, str], int], LatestDelivered] = {}
        """The same by topic, for the topics with the current hash."""
        self._hash = -1

    def add(self, connection: ConnectionRecord) -> None:
        """Add an accepted connection; those of a client come in the order of their opening."""
        self._connections.setdefault(connection.client.name, []).append(connection)

    def shows(self, name: str) -> bool:
        """Return whether a client's connections were captured from their CONNECT on."""
        connections = self._connections.get(name, ())
        return bool(connections) and all(connection.begun for connection in connections)

    def add_latest(self, latest: LatestDelivered) -> None:
        """Add a latest delivered message; those of a topic come before its missed ones."""
        topic, endpoint, qos, *_ = latest
        if topic is None:
            before = self._latest.get((endpoint, qos), latest)
            self._latest[endpoint, qos] = max(before, latest, key=_sent)
            return
        if topic_hash(topic) != self._hash:
            self._hash = topic_hash(topic)
            self._latest_on_topic.clear()
        before = self._latest_on_topic.get((topic, endpoint, qos), latest)
        self._latest_on_topic[topic, endpoint, qos] = max(before, latest, key=_sent)

    def has_later(
        self, connection: ConnectionRecord, qos: int, confirmed: Position, topic: str | None = None
    ) -> bool:
        """Return whether a message sent after `confirmed` was delivered on a connection.

        Parameters
        ----------
        qos
            The lowest QoS of its delivery.
        topic
            Its topic; None for any.
        """
        endpoint = connection.client.endpoint, connection.opened.stream.partition("#")[2]
        latest = (
            self._latest.get((endpoint, level))
            if topic is None
            else self._latest_on_topic.get((topic, endpoint, level))
            for level in range(qos, 3)
        )
        return any(
            one is not None
            and confirmed < one.sent
            and connection.opened < one.at
            and (connection.closed is None or one.at < connection.closed)
            for one in latest
        )

    def at(self, name: str, position: Position) -> ConnectionRecord | None:
        """Return the last connection of a client that was accepted up to a position."""
        connections = self._connections.get(name, [])
        after = bisect_right(connections, position, key=_accepted)
        return connections[after - 1] if after else None

    def between(
        self, name: str, start: Position, stop: Position
    ) -> tuple[ConnectionRecord | None, bool]:
        """Return the connection that a client had from `start` to `stop`.

        Returns
        -------
        connection, certain
            None if the client was not connected. It is not certain if the connection began or ended
            in between.
        """
        connection = self.at(name, stop)
        if connection is None or (connection.closed is not None and connection.closed < start):
            return None, True
        return connection, _accepted(connection) < start and (
            connection.until is None or stop <= connection.until
        )

    def has_answered(self, name: str, position: Position) -> bool:
        """Return whether the broker answered a request after a position on the same connection."""
        connection = self.at(name, position)
        if connection is None or (connection.closed is not None and connection.closed <= position):
            return False
        return connection.answered is not None and position < connection.answered

    def after(self, name: str, position: Position) -> ConnectionRecord | None:
        """Return the first connection of a client after a position."""
        connections = self._connections.get(name, [])
        after = bisect_right(connections, position, key=_accepted)
        return connections[after] if after < len(connections) else None


def _sent(latest: LatestDelivered) -> Position:
    return latest.sent


def _accepted(connection: ConnectionRecord) -> Position:
    assert connection.accepted is not None
    return connection.accepted


def _explain_missed(
    one: MissedDelivery, history: ConnectionHistory
) -> tuple[ConnectionRecord | None, str]:
    """Return the connection on which a delivery is missing, and the verdict."""
    result: tuple[ConnectionRecord | None, str] = (None, "undecided")
    for name, qos in one.granted:
        result = _explain_client(
            name, min(qos, one.message.qos), one.message, one.confirmed, history
        )
        if result[1] not in ("not_forwarded", "not_kept"):
            break  # A broker may choose any member of a group, even one that is offline.
    return result


def _explain_client(
    name: str, qos: int, message: Message, confirmed: Position, history: ConnectionHistory
) -> tuple[ConnectionRecord | None, str]:
    """Return the connection and verdict for a subscribed client that did not get a message."""
    if not history.shows(name):
        return None, "undecided"
    connection, certain = history.between(name, message.start, confirmed)
    if not certain:
        return connection, "undecided"
    was_away = connection is None
    if connection is None:
        if qos == 0:
            return None, "offline"
        connection = history.after(name, confirmed)
        verdict = _waited(message, history.at(name, confirmed), connection)
        if connection is None:
            return None, verdict or "queued"
        if verdict is not None:
            return connection, verdict
    if connection.damaged:
        return connection, "undecided"
    overtaken = history.has_later(connection, qos, confirmed, message.topic)
    passed = history.has_later(connection, min(qos, 1), confirmed)
    filled = connection.filled
    was_open = not was_away and passed and filled is not None and confirmed < filled
    if not overtaken and qos and connection.is_full and not was_open:
        after = history.after(name, _accepted(connection))
        waits = "undecided" if passed else "queued"
        return connection, _waited(message, connection, after) or waits
    answered = connection.answered_open if qos else connection.answered
    is_answered = answered is not None and max(confirmed, connection.opened) < answered
    if not (overtaken or is_answered or passed):
        return connection, "undecided"
    too_large = may_exceed(connection.maximum_packet_size, message.topic, message.length)
    if too_large:
        return connection, "too_large"
    return connection, "not_kept" if was_away else "not_forwarded"


def _waited(
    message: Message, last: ConnectionRecord | None, after: ConnectionRecord | None
) -> str | None:
    """Return the event that ended the wait of a message for its subscriber, None if none did.

    Parameters
    ----------
    last, after
        The last connection before, and the next one.
    """
    is_kept = after is not None and after.may_be_resumed
    over_ns = None if last is None or is_kept else last.session_over_ns
    until_ns = None if last is None else last.capture_ends_ns
    if after is not None:
        until_ns = after.opened.ns
    if until_ns is not None and message.expires_s is not None:
        expires = message.start.after(message.expires_s)
        limit_ns = until_ns if over_ns is None else min(until_ns, over_ns)
        if expires is not None and expires.time <= limit_ns:
            return "expired"
    if after is not None:
        return None if is_kept else "discarded"
    is_over = over_ns is not None and until_ns is not None and over_ns <= until_ns
    return "discarded" if is_over else None
