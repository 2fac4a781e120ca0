"""Application messages, the PUBLISH packets that carry them, and those in flight of a session.

A message goes to many clients, so what their packets have in common is encoded once: packets of
QoS 0 are equal, others differ in the packet identifier only.

The states of flows are those of `SENDER` for messages that this side sends, and of `RECEIVER` for
those that it receives. A flow is kept while its message is in flight; afterwards its packet
identifier is free, because this side has read the acknowledgement itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import ceil
from typing import Any, Final

from wireyard.formats.mqtt.control import Publish
from wireyard.formats.mqtt.cursor import read_integer
from wireyard.formats.mqtt.layout import PUBLISH
from wireyard.formats.mqtt.properties import Property
from wireyard.formats.mqtt.writing import encode
from wireyard.layers.mqtt.qos import IN_FLIGHT, MAX_IN_FLIGHT, RECEIVER, SENDER
from wireyard.layers.states import Cell

MQIPDP: Final = 2
"""The version of 1999, the only one with words whose first byte is the lower one (errata M12)."""
_EXPIRY: Final = "message_expiry_interval"
_CACHED_HEADERS: Final = 512
"""Variable headers kept, of 64 KiB or less each."""
_BEGINS: Final = ("", SENDER["free", "publish_1"].state, SENDER["free", "publish_2"].state)
_TO_RESEND: Final = frozenset({"resend_1", "resend_2"})
_TO_RELEASE: Final = frozenset({"unread_2", "rerelease"})


class Message:
    """A message as its publisher sent it.

    Parameters
    ----------
    properties
        Those of 5.0, without topic alias and subscription identifier.
    expires_at
        Time from which on no delivery may begin; None for never.
    packet_id
        Of the PUBLISH that brought it, 0 at QoS 0.
    """

    __slots__ = (
        "dup", "encoded", "expires_at", "packet_id", "payload", "properties", "qos", "retain",
        "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: tuple[Property, ...] = (),
        expires_at: float | None = None,
        packet_id: int = 0,
        dup: bool = False,
    ) -> None:
        self.topic, self.payload, self.qos, self.retain = topic, payload, qos, retain
        self.properties, self.expires_at = properties, expires_at
        self.packet_id, self.dup = packet_id, dup
        self.encoded: dict[int, tuple[bytes, bytes]] = {}
        """By `key_of`: the bytes before and after the packet identifier of a PUBLISH."""

    @classmethod
    def of(cls, packet: Publish, topic: str, now: float) -> Message:
        """Return the message of a packet whose topic alias, if it has one, stands for `topic`."""
        properties = tuple(one for one in packet.properties if one.name != "topic_alias")
        lifetime = dict(properties).get(_EXPIRY)
        expires_at = None if lifetime is None else now + int(lifetime)  # type: ignore[arg-type]
        return cls(
            topic, packet.payload, packet.qos, packet.retain, properties, expires_at,
            packet.packet_id or 0, packet.dup,
        )  # fmt: skip

    def __repr__(self) -> str:
        retained = ", retained" if self.retain else ""
        return f"<Message {self.topic!r}, QoS {self.qos}{retained}, {len(self.payload)} bytes>"

    @property
    def size(self) -> int:
        """Bytes that it takes in a queue, about."""
        return len(self.payload) + len(self.topic) + 200


class Delivery:
    """A message on its way to one receiver.

    Parameters
    ----------
    identifiers
        Subscription identifiers that the receiver is sent.
    tag
        Anything of the caller's, to recognise it by.

    Attributes
    ----------
    packet_id, state
        The packet identifier, and the state in `SENDER`, once it is in flight at QoS 1 or 2.
    """

    __slots__ = ("identifiers", "message", "packet_id", "qos", "retain", "state", "tag")

    def __init__(
        self,
        message: Message,
        qos: int,
        retain: bool = False,
        identifiers: tuple[int, ...] = (),
        tag: Any = None,
    ) -> None:
        self.message, self.qos, self.retain = message, qos, retain
        self.identifiers, self.tag = identifiers, tag
        self.packet_id: int | None = None
        self.state = ""

    def is_expired(self, now: float) -> bool:
        """Return whether it may no longer begin."""
        return self.message.expires_at is not None and now >= self.message.expires_at


class NoIdentifier(Exception):
    """All packet identifiers are in use."""


class Flows:
    """The flows of a session in both directions, by packet identifier."""

    def __init__(self) -> None:
        self.sending: dict[int, Delivery] = {}
        """In the order in which they were first sent, in which they are sent again too."""
        self.receiving: dict[int, str] = {}
        """States in `RECEIVER`."""
        self.requests: set[int] = set()
        """Packet identifiers of SUBSCRIBE and UNSUBSCRIBE packets without an answer."""
        self._last_id = 0

    def begin(self, delivery: Delivery) -> int:
        """Begin to send a message; return its packet identifier.

        A `NoIdentifier` is raised if there is none left.
        """
        packet_id = delivery.packet_id = self.free_id()
        delivery.state = _BEGINS[delivery.qos]
        self.sending[packet_id] = delivery
        return packet_id

    def restore(self, delivery: Delivery, is_received: bool) -> None:
        """Continue with a message that was in flight before a restart.

        `is_received` is whether its PUBREC has arrived.
        """
        assert delivery.packet_id is not None
        delivery.state = _BEGINS[delivery.qos]
        self.sending[delivery.packet_id] = delivery
        # Identifiers go on behind it: those before it were acknowledged not long ago.
        self._last_id = max(self._last_id, delivery.packet_id)
        if is_received:
            self.sent(delivery.packet_id, "pubrec")

    def hold(self, packet_id: int) -> None:
        """Continue with a packet identifier whose PUBREL had not arrived before a restart."""
        for event in ("publish_2", "pubrec"):
            self.received(packet_id, event)

    def free_id(self) -> int:
        """Return a packet identifier that is not in use."""
        for _ in range(MAX_IN_FLIGHT):
            self._last_id = self._last_id % MAX_IN_FLIGHT + 1
            if self._last_id not in self.sending and self._last_id not in self.requests:
                return self._last_id
        raise NoIdentifier

    def sent(self, packet_id: int, event: str) -> Cell[str, str]:
        """Apply an event to a flow that this side sends.

        An event that violates a rule changes nothing: the connection ends.
        """
        delivery = self.sending.get(packet_id)
        state = "free" if delivery is None else delivery.state
        cell = SENDER.get((state, event)) or SENDER.lookup(state, event)
        if delivery is not None and cell.rule is None:
            delivery.state = cell.state
            if cell.state not in IN_FLIGHT:
                del self.sending[packet_id]
        return cell

    def received(self, packet_id: int, event: str) -> Cell[str, str]:
        """Apply an event to a flow that this side receives, unless it violates a rule."""
        state = self.receiving.get(packet_id, "free")
        cell = RECEIVER.get((state, event)) or RECEIVER.lookup(state, event)
        if cell.rule is None:
            if cell.state in IN_FLIGHT:
                self.receiving[packet_id] = cell.state
            else:
                self.receiving.pop(packet_id, None)
        return cell

    def resume(self) -> None:
        """Continue on a new connection."""
        for packet_id in list(self.sending):
            self.sent(packet_id, "resumed")
        for packet_id in list(self.receiving):
            self.received(packet_id, "resumed")

    def discard(self) -> list[Delivery]:
        """End the session: forget all flows; return the messages whose delivery was open."""
        deliveries = list(self.sending.values())
        self.sending.clear()
        self.receiving.clear()
        return deliveries

    def to_release(self) -> Iterator[int]:
        """Yield the flows whose PUBREL has to be sent again, each in its new state."""
        for packet_id, delivery in list(self.sending.items()):
            if delivery.state in _TO_RELEASE:
                self.sent(packet_id, "pubrel")
                yield packet_id

    def to_resend(self) -> list[int]:
        """Return the flows whose PUBLISH has to be sent again."""
        return [number for number, one in self.sending.items() if one.state in _TO_RESEND]

    def resend(self, packet_id: int) -> Delivery:
        """Begin a flow again with DUP; return its message."""
        delivery = self.sending[packet_id]
        self.sent(packet_id, f"dup_{delivery.qos}")
        return delivery


def key_of(version: int, qos: int, retain: bool) -> int:
    """Return the number under which `Message.encoded` has a form of a message."""
    return version << 3 | qos << 1 | retain


def publish_packet(
    delivery: Delivery, version: int, now: float, alias: int | None, names_topic: bool
) -> tuple[bytes, bytes]:
    """Return the bytes before and after the packet identifier of a PUBLISH without DUP.

    What does not depend on the receiver is kept in `Message.encoded`.
    """
    message = delivery.message
    properties = _properties(delivery, now, alias) if version == 5 else ()
    topic = message.topic if names_topic else ""
    before, after = _variable_header(version, topic, properties)
    size = len(before) + len(after) + len(message.payload) + (2 if delivery.qos else 0)
    first = PUBLISH << 4 | delivery.qos << 1 | delivery.retain
    pieces = bytes((first, *_digits(size))) + before, after + message.payload
    if not delivery.qos:
        pieces = b"".join(pieces), b""
    if message.expires_at is None and alias is None and not delivery.identifiers:
        message.encoded[key_of(version, delivery.qos, delivery.retain)] = pieces
    return pieces


def _properties(delivery: Delivery, now: float, alias: int | None) -> tuple[Property, ...]:
    message = delivery.message
    properties = message.properties
    if message.expires_at is not None:
        left = max(0, ceil(message.expires_at - now))
        properties = tuple(
            one._replace(value=left) if one.name == _EXPIRY else one for one in properties
        )
    if alias is not None:
        properties += (Property("topic_alias", alias),)
    return properties + tuple(
        Property("subscription_identifier", number) for number in delivery.identifiers
    )


@lru_cache(maxsize=_CACHED_HEADERS)
def _variable_header(
    version: int, topic: str, properties: tuple[Property, ...]
) -> tuple[bytes, bytes]:
    """Return the variable header of a PUBLISH before and after the packet identifier."""
    packet = encode(Publish(topic=topic, properties=properties, version_in_force=version))
    _, start = read_integer(packet, 1, len(packet))
    behind_topic = start + 2 + int.from_bytes(packet[start : start + 2], "big")
    return packet[start:behind_topic], packet[behind_topic:]


def _digits(size: int) -> list[int]:
    """Return Remaining Length as bytes."""
    digits = [size & 0x7F]
    while size := size >> 7:
        digits[-1] |= 0x80
        digits.append(size & 0x7F)
    return digits
