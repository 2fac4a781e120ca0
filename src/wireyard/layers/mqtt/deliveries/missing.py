"""Verdicts for missing deliveries, from the connections and the session of the subscriber.

Rules of this file (errata M31 and M32):

1. The verdict ``not_forwarded`` needs evidence on the subscriber's own connection that the broker
   is past the message: a delivered message that was sent after the broker confirmed the missing one
   and came at the same or a higher QoS, or the answer to a later request.
2. A message that waits for a full window is overtaken only by messages of its own topic, because
   MQTT orders messages within a topic only (MQTT 3.1.1 and 5.0, 4.6).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from wireyard.formats.base import Row
from wireyard.layers.mqtt.deliveries.grids import Numbers
from wireyard.layers.mqtt.deliveries.missing_columns import (
    Connection,
    connections_of,
    find_connections,
    verdict_of_absence,
    verdict_of_wait,
)
from wireyard.layers.mqtt.grids import NO_TIME, NONE
from wireyard.layers.mqtt.kernels.deliveries import MISSED, VERDICT_NAMES
from wireyard.layers.mqtt.records import (
    PROTOCOL,
    Client,
    ConnectionRecord,
    Message,
    Subscribed,
    may_exceed,
)
from wireyard.layers.mqtt.violations import RULES, violation_of
from wireyard.layers.records import Position, violation_row
from wireyard.layers.stages import Fact, Found, Key, KeyedRecord

MISSING: Final = "missing"
_UNSUBSCRIBED: Final = (
    RULES["unsubscribed"].name,
    f"against the rule that {RULES['unsubscribed'].text}",
)
_LATEST, _CONNECTION, _MISSED = range(3)
"""The order of the kinds of records."""


class MissedDelivery(NamedTuple):
    """An expected delivery to a client or a group that is missing."""

    message: Message
    confirmed: Position
    """When the broker confirmed the message."""
    subscribed: Subscribed
    granted: tuple[tuple[str, int, Position | None], ...]
    """The clients that were certainly subscribed, each with its QoS, and when it left."""


class LatestDelivered(NamedTuple):
    """The message sent last among those delivered on one connection at a QoS.

    There is one up to each end of a subscription of the recipient.
    """

    topic: str | None
    """Its topic; None if it is the last among all topics."""
    connection: tuple[str, str]
    """The endpoint of the client, and which connection from there."""
    qos: int
    sent: Position
    at: Position
    """When it was delivered."""


_OnConnection = tuple[str | None, tuple[str, str], int]
"""Topic, connection and QoS of a `LatestDelivered`."""
_AT: Final = attrgetter("at")


class UnsubscribedDelivery(NamedTuple):
    """A delivery to a client without a subscription that matches its topic."""

    client: Client
    at: Position
    message_key: str | None


def unsubscribed_record(one: UnsubscribedDelivery) -> KeyedRecord:
    """Return the record of a delivery without a subscription."""
    return KeyedRecord(MISSING, one.client[:3], (_MISSED, *one.at.order), one)


def latest_record(key: Key, latest: LatestDelivered) -> KeyedRecord:
    """Return the record of a latest delivered message, for the client or group in `key`."""
    return KeyedRecord(MISSING, key, (_LATEST, *latest.at.order), latest)


def connection_record(connection: ConnectionRecord, name: str) -> KeyedRecord:
    """Return the record of a connection, for one of the names in its `served_as`."""
    key = (*connection.client[:2], name)
    return KeyedRecord(MISSING, key, (_CONNECTION, *connection.opened.order), connection)


def missing_record(
    message: Message,
    name: str,
    subscribed: Subscribed,
    active: list[Subscribed],
    confirmed: Position,
) -> KeyedRecord:
    """Return the record of a missed delivery.

    `name` is the client that should get the message, or the shared filter of the group, and
    `subscribed` is the first matching subscription. `active` are the subscriptions that were active
    from before the message until the broker confirmed it.
    """
    granted: dict[str, tuple[str, int, Position | None]] = {}
    for sub in active:
        name_of, qos, left = granted.get(sub.client.name, (sub.client.name, 0, sub.leaving))
        left = left and sub.leaving and max(left, sub.leaving)
        granted[name_of] = name_of, max(sub.qos, qos), left
    missed = MissedDelivery(message, confirmed, subscribed, tuple(granted.values()))
    key = (*message.client[:2], name)
    return KeyedRecord(MISSING, key, (_MISSED, *message.sent.order), missed)


def explain(
    records: Iterator[LatestDelivered | ConnectionRecord | MissedDelivery | UnsubscribedDelivery],
) -> Iterator[Found]:
    """Yield the missed deliveries of one client or one group, with their verdicts.

    All records are held; those of each kind are in the order of time.
    """
    held = list(records)
    connections = [one for one in held if isinstance(one, ConnectionRecord)]
    missed = [one for one in held if isinstance(one, MissedDelivery)]
    latest: defaultdict[_OnConnection, list[LatestDelivered]] = defaultdict(list)
    for record in held:
        if isinstance(record, LatestDelivered):
            before = latest[record.topic, record.connection, record.qos]
            if not before or before[-1].sent < record.sent:
                before.append(record)
        elif isinstance(record, UnsubscribedDelivery) and _has_answered(connections, record):
            violation = violation_of(
                *_UNSUBSCRIBED, record.client, False, record.at, record.message_key
            )
            yield Fact("violations", violation_row(PROTOCOL, violation))
    clients = _Clients(connections, missed, latest)
    for one in missed:
        yield Fact("deliveries", _row(one, *clients.explain(one)))


def _has_answered(connections: Sequence[ConnectionRecord], one: UnsubscribedDelivery) -> bool:
    """Return whether no SUBSCRIBE may have waited for its answer at a delivery.

    So it is if the broker answered all of the connection, or a request after the delivery.
    """
    after = bisect_right(connections, one.at, key=attrgetter("accepted"))
    last = connections[after - 1] if after else None
    if last is None or (last.closed and last.closed <= one.at):
        return False
    return not last.is_asking or (last.answered is not None and one.at < last.answered)


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


class _Clients:
    """The clients that should get the same messages: their connections, as columns.

    The connections are accepted ones, those of a client in the order of their opening. `latest` are
    the latest messages delivered, by topic or None, connection and QoS.
    """

    def __init__(
        self,
        connections: Sequence[ConnectionRecord],
        missed: Sequence[MissedDelivery],
        latest: Mapping[_OnConnection, Sequence[LatestDelivered]],
    ) -> None:
        self._records, self._latest = connections, latest
        ends = [(one.accepted, one.closed, one.until) for one in connections]
        times = {at for of in ends for at in of if at is not None}
        times |= {at for one in missed for at in (one.message.start, one.confirmed)}
        self._ranks: dict[Position | None, int] = {
            at: rank for rank, at in enumerate(sorted(times))
        }
        self._ranks[None] = NONE
        self._numbers = Numbers[tuple[str, str, str]]()
        ranks = np.array([[self._ranks[at] for at in of] for of in ends], np.int32)
        self._grid = connections_of(
            connections, ranks.reshape(-1, 3), range(len(connections)), self._numbers.__getitem__
        )

    def explain(self, one: MissedDelivery) -> tuple[ConnectionRecord | None, str]:
        """Return the connection on which a delivery is missing, and the verdict."""
        result: tuple[ConnectionRecord | None, str] = (None, "undecided")
        for name, qos, left in one.granted:
            result = self._explain_client(name, min(qos, one.message.qos), left, one)
            if result[1] not in ("not_forwarded", "not_kept"):
                break  # A broker may choose any member of a group, even one that is offline.
        return result

    def _explain_client(
        self, name: str, qos: int, left: Position | None, one: MissedDelivery
    ) -> tuple[ConnectionRecord | None, str]:
        """Return the same for a subscribed client that did not get the message."""
        message, confirmed, grid = one.message, one.confirmed, self._grid
        broker = message.client[:2]
        served = self._numbers[*broker, one.subscribed.served_as]
        first, last = find_connections(grid, served, self._numbers[*broker, name])
        stop = self._ranks[confirmed]
        waiting = (
            NO_TIME if message.taken is None or message.taken.ns is None else message.taken.ns,
            NONE if message.expires_s is None else message.expires_s,
        )
        start = self._ranks[message.start]
        verdict, place = verdict_of_absence(grid, first, last, start, stop, qos, *waiting)
        connection = None if place == NONE else self._records[int(grid[place, Connection.CLIENT])]
        if verdict != MISSED or connection is None:
            return connection, VERDICT_NAMES[verdict]
        was_away = stop < grid[place, Connection.ACCEPTED]
        overtaken = self._has_later(connection, qos, confirmed, left, message.topic)
        passed = self._has_later(connection, min(qos, 1), confirmed, left)
        filled = connection.filled
        was_open = not was_away and passed and filled is not None and confirmed < filled
        if not overtaken and qos and connection.is_full and not was_open:
            after = place + 1 if place + 1 < last else NONE
            waits = VERDICT_NAMES[verdict_of_wait(grid, place, after, *waiting)]
            # A connection of an unknown client may have resumed the session.
            may_be_back = left is not None and left == connection.until and waits != "discarded"
            later = grid[place + 1 : last, Connection.CLIENT].tolist()
            is_unseen = any(self._records[number].damaged for number in later)
            may_be_lost = passed or is_unseen or connection.was_fuller
            is_open = may_be_back or (waits == "queued" and may_be_lost)
            return connection, "undecided" if is_open else waits
        answered = connection.answered_open if qos else connection.answered
        is_answered = (
            answered is not None
            and max(confirmed, connection.opened) < answered
            and (left is None or answered < left)
        )
        if not (overtaken or is_answered or passed):
            return connection, "undecided"
        if may_exceed(connection.maximum_packet_size, message.topic, message.length):
            return connection, "too_large"
        return connection, "not_kept" if was_away else "not_forwarded"

    def _has_later(
        self,
        connection: ConnectionRecord,
        qos: int,
        confirmed: Position,
        left: Position | None,
        topic: str | None = None,
    ) -> bool:
        """Return whether a message sent after `confirmed` was delivered on a connection.

        `qos` is the lowest QoS of its delivery, and `topic` its topic, None for any.
        """
        endpoint = connection.client.endpoint, connection.opened.stream.partition("#")[2]
        ends = [end for end in (connection.closed, left) if end is not None]
        for level in range(qos, 3):
            of_level = self._latest.get((topic, endpoint, level), ())
            count = bisect_left(of_level, min(ends), key=_AT) if ends else len(of_level)
            last = of_level[count - 1] if count else None
            if last is not None and confirmed < last.sent and connection.opened < last.at:
                return True
        return False
