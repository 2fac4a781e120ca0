"""The state of MQTT in the store: the row of each session, subscription, message and value.

Rules of this file:

1. Only what outlives the process is written: sessions that outlive their connection, and what they
   have; retained values; wills.
2. A row is written before what depends on it leaves: an acknowledgement, and a PUBLISH with its
   packet identifier, which is sent again with DUP.
3. A row that cannot be is refused when the store is read, because packets are made of it later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from wireyard.broker.session import Session, Will
from wireyard.broker.store import Store, Table
from wireyard.endpoints import Delivery, Message
from wireyard.formats.mqtt.control import Connect, Publish
from wireyard.formats.mqtt.properties import Property, properties_of
from wireyard.formats.mqtt.topics import has_wildcard
from wireyard.formats.mqtt.writing import encode
from wireyard.layers.mqtt.deliveries.subscriptions import Subscription
from wireyard.layers.mqtt.qos import MAX_IN_FLIGHT

_SESSIONS: Final = Table(
    "mqtt_sessions",
    (
        "client_id TEXT NOT NULL", "user_name TEXT", "expiry_s INTEGER NOT NULL",
        "expires_at REAL", "is_connected INTEGER NOT NULL", "will_state TEXT", "will_due REAL",
        "will_topic TEXT", "will_payload BLOB", "will_qos INTEGER", "will_retain INTEGER",
        "will_properties TEXT",
    ),
)  # fmt: skip
_SUBSCRIPTIONS: Final = Table(
    "mqtt_subscriptions",
    (
        "client_id TEXT NOT NULL", "filter TEXT NOT NULL", "qos INTEGER NOT NULL",
        "no_local INTEGER NOT NULL", "retain_as_published INTEGER NOT NULL",
        "retain_handling INTEGER NOT NULL", "identifier INTEGER",
    ),
    keys=2,
)  # fmt: skip
_MESSAGES: Final = Table(
    "mqtt_messages",
    (
        "message INTEGER", "topic TEXT NOT NULL", "payload BLOB NOT NULL", "qos INTEGER NOT NULL",
        "retain INTEGER NOT NULL", "properties TEXT", "expires_at REAL",
    ),
)  # fmt: skip
_DELIVERIES: Final = Table(
    "mqtt_deliveries",
    (
        "delivery INTEGER", "client_id TEXT NOT NULL", "message INTEGER NOT NULL",
        "qos INTEGER NOT NULL", "retain INTEGER NOT NULL", "identifiers TEXT",
        "packet_id INTEGER", "is_received INTEGER NOT NULL",
    ),
)  # fmt: skip
_HELD: Final = Table("mqtt_held", ("client_id TEXT NOT NULL", "packet_id INTEGER NOT NULL"), keys=2)
_RETAINED: Final = Table(
    "mqtt_retained",
    (
        "topic TEXT NOT NULL", "payload BLOB NOT NULL", "qos INTEGER NOT NULL", "properties TEXT",
        "expires_at REAL",
    ),
)  # fmt: skip
TABLES: Final = (_SESSIONS, _SUBSCRIPTIONS, _MESSAGES, _DELIVERIES, _HELD, _RETAINED)

_LATEST: Final = 1e12
"""A time, in seconds since 1970, that no interval of MQTT reaches."""


class Persistence:
    """Writes the state of a broker to its store, and reads it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._copies: dict[Message, list[int]] = {}
        """Number of each message that has rows, and how many deliveries it has."""
        self._last_message = self._last_delivery = 0

    # --- writing --------------------------------------------------------------------------

    def put_session(self, session: Session) -> None:
        """Write a session, if there will be anything to do about it after a restart."""
        will = session.will
        if not session.is_durable and will is None:
            self.remove_session(session)
            return
        session.is_stored = True
        values: tuple[Any, ...] = (None,) * 7
        if will is not None:
            packet = will.packet
            values = (
                will.state, will.due, packet.will_topic, packet.will_payload or b"",
                packet.will_qos or 0, int(packet.will_retain or 0), _text(packet.will_properties),
            )  # fmt: skip
        self.store.put(
            _SESSIONS, session.client_id, session.user, session.expiry_s, session.expires_at,
            int(session.link is not None), *values,
        )  # fmt: skip

    def remove_session(self, session: Session) -> None:
        """Remove a session with all that it has, but its subscriptions."""
        if not session.is_stored:
            return
        session.is_stored = False
        self.store.remove(_SESSIONS, session.client_id)
        for delivery in (*session.queue, *session.flows.sending.values()):
            self.remove_delivery(delivery)
        for packet_id in session.flows.receiving:
            self.release(session, packet_id)

    def put_subscription(self, subscription: Subscription) -> None:
        """Write a subscription."""
        client_id, filter, qos, no_local, as_published, handling, identifier = subscription
        self.store.put(
            _SUBSCRIPTIONS, client_id, filter, qos, int(no_local), int(as_published), handling,
            identifier,
        )  # fmt: skip

    def remove_subscription(self, client_id: str, filter: str) -> None:
        """Remove a subscription."""
        self.store.remove(_SUBSCRIPTIONS, client_id, filter)

    def put_delivery(self, session: Session, delivery: Delivery, is_received: bool = False) -> None:
        """Write a message that waits for a session or is in flight to it.

        `is_received` is whether its PUBREC has arrived.
        """
        message = delivery.message
        if delivery.tag is None:
            copies = self._copies.get(message)
            if copies is None:
                copies = self._copies[message] = [self._put_message(message), 0]
            copies[1] += 1
            self._last_delivery = delivery.tag = self._last_delivery + 1
        numbers = delivery.identifiers
        self.store.put(
            _DELIVERIES, delivery.tag, session.client_id, self._copies[message][0], delivery.qos,
            int(delivery.retain), json.dumps(numbers) if numbers else None, delivery.packet_id,
            int(is_received),
        )  # fmt: skip

    def _put_message(self, message: Message) -> int:
        self._last_message += 1
        self.store.put(
            _MESSAGES, self._last_message, message.topic, message.payload, message.qos,
            int(message.retain), _text(message.properties), message.expires_at,
        )  # fmt: skip
        return self._last_message

    def remove_delivery(self, delivery: Delivery) -> None:
        """Remove a delivery, and its message with the last one."""
        if delivery.tag is None:
            return
        self.store.remove(_DELIVERIES, delivery.tag)
        delivery.tag = None
        copies = self._copies[delivery.message]
        copies[1] -= 1
        if not copies[1]:
            self.store.remove(_MESSAGES, copies[0])
            del self._copies[delivery.message]

    def hold(self, session: Session, packet_id: int) -> None:
        """Remember a packet identifier of QoS 2 until its PUBREL."""
        self.store.put(_HELD, session.client_id, packet_id)

    def release(self, session: Session, packet_id: int) -> None:
        """Forget a packet identifier."""
        self.store.remove(_HELD, session.client_id, packet_id)

    def put_retained(self, message: Message, is_kept: bool) -> None:
        """Write the retained value of a topic, or that it has none."""
        if is_kept:
            self.store.put(
                _RETAINED, message.topic, message.payload, message.qos, _text(message.properties),
                message.expires_at,
            )  # fmt: skip
        else:
            self.store.remove(_RETAINED, message.topic)

    # --- reading --------------------------------------------------------------------------

    def sessions(self) -> Iterator[tuple[Session, bool]]:
        """Yield the sessions, without messages, and whether each was connected."""
        return self.store.read(_SESSIONS, _session)

    def subscriptions(self) -> Iterator[Subscription]:
        """Yield the subscriptions."""
        return self.store.read(_SUBSCRIPTIONS, _subscription)

    def deliveries(self) -> Iterator[tuple[str, Delivery, bool]]:
        """Yield the client id of each delivery, the delivery, and whether its PUBREC has come."""
        messages = dict(self.store.read(_MESSAGES, lambda number, *row: (number, _message(*row))))

        def delivery(
            tag: int, client_id: str, number: int, qos: int, retain: int,
            identifiers: str | None, packet_id: int | None, is_received: int,
        ) -> tuple[str, Delivery, bool]:  # fmt: skip
            message = messages.get(number)
            if message is None:
                raise ValueError("has no message")
            numbers = _identifiers(identifiers) if identifiers else ()
            _require(qos in (1, 2), "no QoS")
            _require(packet_id is None or 0 < packet_id <= MAX_IN_FLIGHT, "no packet id")
            found = Delivery(message, qos, bool(retain), numbers, tag)
            found.packet_id = packet_id
            self._copies.setdefault(message, [number, 0])[1] += 1
            self._last_delivery = tag
            return client_id, found, bool(is_received)

        self._last_message = max(messages, default=0)
        return self.store.read(_DELIVERIES, delivery)

    def held(self) -> Iterator[tuple[str, int]]:
        """Yield the packet identifiers of QoS 2 without PUBREL, each with its client id."""
        return self.store.read(_HELD, _held)

    def retained(self) -> Iterator[Message]:
        """Yield the retained values."""
        return self.store.read(_RETAINED, _retained)


def _session(
    client_id: str, user: str | None, expiry_s: int, expires_at: float | None, is_connected: int,
    state: str | None, due: float | None, *will: Any,
) -> tuple[Session, bool]:  # fmt: skip
    _require(0 <= expiry_s < 1 << 32 and len(client_id) < 1 << 16, "no session")
    _require(_is_time(expires_at) and _is_time(due), "no time")
    session = Session(client_id)
    session.user, session.expiry_s, session.expires_at = user, expiry_s, expires_at
    session.is_durable = session.is_stored = True
    if state is not None:
        _require(state in ("armed", "delayed"), "no state of a will")
        session.will = _will(client_id, will)
        session.will.state, session.will.due = state, due
    return session, bool(is_connected)


def _subscription(
    client_id: str, filter: str, qos: int, no_local: int, as_published: int, handling: int,
    identifier: int | None,
) -> Subscription:  # fmt: skip
    _require(0 <= qos <= 2 and 0 <= handling <= 2 and filter != "", "no subscription")
    _require(identifier is None or 0 < identifier < 1 << 28, "no identifier")
    return Subscription(
        client_id, filter, qos, bool(no_local), bool(as_published), handling, identifier
    )


def _held(client_id: str, packet_id: int) -> tuple[str, int]:
    _require(0 < packet_id <= MAX_IN_FLIGHT, "no packet id")
    return client_id, packet_id


def _retained(
    topic: str, payload: bytes, qos: int, properties: str | None, expires_at: float | None
) -> Message:
    _require(payload != b"", "is empty")
    return _message(topic, payload, qos, 1, properties, expires_at)


def _require(is_so: bool, problem: str) -> None:
    if not is_so:
        raise ValueError(problem)


def _is_time(value: float | None) -> bool:
    return value is None or 0 <= value < _LATEST


def _text(properties: Iterable[Property]) -> str | None:
    """Return properties as JSON, bytes in hexadecimal; None if there are none."""
    rows = [
        {"name": name, "value": value.hex() if isinstance(value, bytes) else value}
        for name, value in properties
    ]
    return json.dumps(rows, ensure_ascii=False) if rows else None


def _identifiers(text: str) -> tuple[int, ...]:
    numbers = json.loads(text)
    _require(
        isinstance(numbers, list)
        and all(isinstance(one, int) and 0 < one < 1 << 28 for one in numbers),
        "no subscription identifiers",
    )
    return tuple(numbers)


def _message(
    topic: str, payload: bytes, qos: int, retain: int, text: str | None, expires_at: float | None
) -> Message:
    properties: tuple[Property, ...] = ()
    if text is not None:
        properties = properties_of("properties", json.loads(text)) or ()
        encode(Publish(topic=topic, properties=properties, version_in_force=5))
    is_topic = 0 < len(topic.encode()) < 1 << 16 and not has_wildcard(topic) and "\0" not in topic
    _require(is_topic, "no topic")
    _require(0 <= qos <= 2, "no QoS")
    _require(_is_time(expires_at), "no time")
    return Message(topic, payload, qos, bool(retain), properties, expires_at)


def _will(client_id: str, values: Sequence[Any]) -> Will:
    topic, payload, qos, retain, text = values
    packet = Connect(
        client_id=client_id,
        will_topic=topic,
        will_payload=payload,
        will_qos=qos,
        will_retain=bool(retain),
        will_properties=() if text is None else properties_of("will", json.loads(text)) or (),
        version_in_force=5,
    )
    encode(packet)
    return Will(packet)
