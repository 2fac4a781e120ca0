"""Why a message was not delivered: where its subscriber was, and what became of its session.

Rules of this file (errata M31 and M32):

1. A broker is blamed only where a packet on the subscriber's own connection shows that it was done
   with the message: one that was sent after the broker had taken it and came at the same QoS or a
   higher one, or the answer to a request of later than that.
2. A message that waits for a full window is not passed over by messages of other topics: MQTT keeps
   the order of one topic only (MQTT 3.1.1 and 5.0, 4.6).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from wireyard.layers.mqtt.expected import Expected
from wireyard.layers.mqtt.records import (
    SMALLEST_WINDOW,
    ConnectionRecord,
    Message,
    Subscribed,
    may_exceed,
)
from wireyard.layers.mqtt.rows import delivery_row
from wireyard.layers.mqtt.topics import topic_hash
from wireyard.layers.records import Position
from wireyard.layers.stages import Fact, Found, Key, KeyedRecord, Order

__all__ = [
    "MISSING",
    "Passed",
    "Progress",
    "connection_record",
    "explain",
    "missing_record",
    "passed_record",
]

MISSING: Final = "missing"
_PASSED, _CONNECTION, _MISSED = range(3)
"""The order of the records; of what was missed, one topic comes after the other."""
_NS_PER_S: Final = 1_000_000_000


class Missed(NamedTuple):
    """A message that was due to a client, or to one of a group, and was not delivered."""

    message: Message
    taken: Position
    """When the broker had shown that it took it."""
    subscribed: Subscribed
    granted: tuple[tuple[str, int], ...]
    """Who was subscribed for certain, and at which QoS."""


class Passed(NamedTuple):
    """The message sent last of those that came to one endpoint at a QoS."""

    topic: str | None
    """Its topic; None where it is that sent last of any topic."""
    endpoint: str
    qos: int
    sent: Position
    at: Position
    """When it was delivered."""


class Progress:
    """How far the messages of a topic came to those who subscribe to it.

    Limits
    ------
    What is held is a position for each connection on which some of them came, and QoS.
    """

    def __init__(self) -> None:
        self.missed: set[str] = set()
        """Those who did not get one."""
        self._passed: dict[tuple[Key, str, int], Passed] = {}

    def add(self, one: Expected) -> None:
        """Add what was delivered of a message."""
        topic, sent, client = one.message.topic, one.start, one.message.client
        for each in one.attempts:
            key = (*client[:2], one.name), each.client.endpoint, each.qos
            before = self._passed.get(key)
            if before is None or before.sent < sent:
                self._passed[key] = Passed(topic, each.client.endpoint, each.qos, sent, each.at)

    def records(self) -> Iterator[KeyedRecord]:
        """Note how far messages came, for those who did not get one of this topic or another."""
        for (key, _, _), passed in self._passed.items():
            yield passed_record(key, passed._replace(topic=None))
            if key[-1] in self.missed:
                yield passed_record(key, passed)


def passed_record(key: Key, passed: Passed) -> KeyedRecord:
    """Pass on how far messages came to those who have a name."""
    topic = passed.topic
    order = (_PASSED, 0, *passed.at.order) if topic is None else _order_on(topic, None)
    return KeyedRecord(MISSING, key, order, passed)


def _order_on(topic: str, missed: Position | None) -> Order:
    """Return the place of a message that was missed, and before them of what came on its topic."""
    group = topic_hash(topic)
    if missed is None:
        return _MISSED, group, -1, 0, "", 0
    return _MISSED, group, *missed.order


def connection_record(connection: ConnectionRecord, name: str) -> KeyedRecord:
    """Pass on a connection of a client that is served under a name."""
    return KeyedRecord(
        MISSING,
        (*connection.client[:2], name),
        (_CONNECTION, 0, *connection.opened.order),
        connection,
    )


def missing_record(
    message: Message, name: str, subscribed: Subscribed, certain: list[Subscribed], taken: Position
) -> KeyedRecord:
    """Pass on a message that was not delivered to anybody of those who were due to get it.

    Parameters
    ----------
    name
        Who was: a client, or the filter that several share.
    subscribed
        The first subscription that matches.
    certain
        Those that stood from before the message until the broker had it.
    """
    granted: dict[str, int] = {}
    for sub in certain:
        granted[sub.client.name] = max(sub.qos, granted.get(sub.client.name, 0))
    missed = Missed(message, taken, subscribed, tuple(granted.items()))
    key = (*message.client[:2], name)
    return KeyedRecord(MISSING, key, _order_on(message.topic, message.sent), missed)


def explain(records: Iterator[Passed | ConnectionRecord | Missed]) -> Iterator[Found]:
    """Yield deliveries that were missed by one client, or by those that share a subscription.

    Limits
    ------
    What is held is the connections, and how far messages came on each: of all topics together, and
    of the topics with one hash.
    """
    presence = Presence()
    for record in records:
        if isinstance(record, Passed):
            presence.passed(record)
        elif isinstance(record, ConnectionRecord):
            presence.add(record)
        else:
            connection, verdict = _missed(record, presence)
            row = delivery_row(record.message, None, record.subscribed, verdict, connection)
            yield Fact("deliveries", row)


class Presence:
    """When clients were connected, and how far messages came to them."""

    def __init__(self) -> None:
        self._connections: dict[str, list[ConnectionRecord]] = {}
        self._passed: dict[tuple[str, int], Passed] = {}
        self._passed_on: dict[tuple[str, str, int], Passed] = {}
        """The same by topic, of those with one hash."""
        self._hash = -1

    def add(self, connection: ConnectionRecord) -> None:
        """Add a connection that was accepted; those of a client in the order of their opening."""
        self._connections.setdefault(connection.client.name, []).append(connection)

    def shows(self, name: str) -> bool:
        """Return whether a client's connections were captured from their CONNECT on."""
        connections = self._connections.get(name, ())
        return bool(connections) and all(connection.begun for connection in connections)

    def passed(self, passed: Passed) -> None:
        """Add how far messages came; what is of one topic comes before what was missed of it."""
        topic, endpoint, qos, *_ = passed
        if topic is None:
            before = self._passed.get((endpoint, qos), passed)
            self._passed[endpoint, qos] = max(before, passed, key=_sent)
            return
        if topic_hash(topic) != self._hash:
            self._hash = topic_hash(topic)
            self._passed_on.clear()
        before = self._passed_on.get((topic, endpoint, qos), passed)
        self._passed_on[topic, endpoint, qos] = max(before, passed, key=_sent)

    def is_passed(
        self, connection: ConnectionRecord, qos: int, taken: Position, topic: str | None = None
    ) -> bool:
        """Return whether a message that was sent after a position came on a connection.

        Parameters
        ----------
        qos
            The lowest QoS that it may have come at.
        topic
            That of the message; None if it may be any.
        """
        endpoint = connection.client.endpoint
        found = (
            self._passed.get((endpoint, level))
            if topic is None
            else self._passed_on.get((topic, endpoint, level))
            for level in range(qos, 3)
        )
        return any(
            one is not None
            and taken < one.sent
            and connection.opened < one.at
            and (connection.closed is None or one.at < connection.closed)
            for one in found
        )

    def at(
        self, name: str, start: Position, stop: Position
    ) -> tuple[ConnectionRecord | None, bool]:
        """Return the connection a client had from `start` to `stop`.

        Returns
        -------
        connection, certain
            Not certain is one that began or ended between them; None is none at all.
        """
        connections = self._connections.get(name, [])
        behind = bisect_right(connections, stop, key=_accepted)
        connection = connections[behind - 1] if behind else None
        if connection is None or (connection.closed is not None and connection.closed < start):
            return None, True
        return connection, _accepted(connection) < start and (
            connection.until is None or stop <= connection.until
        )

    def after(self, name: str, position: Position) -> ConnectionRecord | None:
        """Return the first connection of a client after a position."""
        connections = self._connections.get(name, [])
        behind = bisect_right(connections, position, key=_accepted)
        return connections[behind] if behind < len(connections) else None


def _sent(passed: Passed) -> Position:
    return passed.sent


def _accepted(connection: ConnectionRecord) -> Position:
    assert connection.accepted is not None
    return connection.accepted


def _missed(one: Missed, presence: Presence) -> tuple[ConnectionRecord | None, str]:
    """Return the connection that a message was missed on, and why."""
    found: tuple[ConnectionRecord | None, str] = (None, "undecided")
    for name, qos in one.granted:
        found = _missed_by(name, min(qos, one.message.qos), one.message, one.taken, presence)
        if found[1] != "not_forwarded":
            break  # A group is served by any member the broker likes, also one that is away.
    return found


def _missed_by(
    name: str, qos: int, message: Message, taken: Position, presence: Presence
) -> tuple[ConnectionRecord | None, str]:
    """Return why a client that was subscribed did not get a message that the broker took."""
    if not presence.shows(name):
        return None, "undecided"
    connection, certain = presence.at(name, message.start, taken)
    if not certain:
        return connection, "undecided"
    if connection is None:
        if qos == 0:
            return None, "offline"
        connection = presence.after(name, taken)
        if connection is None:
            return None, "queued"
        if not connection.may_go_on:
            return connection, "discarded"
        if _expired(message, connection):
            return connection, "expired"
    if connection.damaged:
        return connection, "undecided"
    is_passed = presence.is_passed(connection, qos, taken, message.topic)
    if not is_passed and qos and connection.in_flight[1] >= SMALLEST_WINDOW:
        return connection, "queued"
    is_answered = (
        connection.answered is not None and max(taken, connection.opened) < connection.answered
    )
    if not (is_passed or is_answered or presence.is_passed(connection, qos, taken)):
        return connection, "undecided"
    too_large = may_exceed(connection.maximum_packet_size, message.topic, message.length)
    return connection, "too_large" if too_large else "not_forwarded"


def _expired(message: Message, connection: ConnectionRecord) -> bool:
    opened, sent = connection.opened.ns, message.sent.ns
    if message.expires_s is None or opened is None or sent is None:
        return False
    return opened >= sent + message.expires_s * _NS_PER_S
