"""Application messages, and the PUBLISH packets that carry them.

A message goes to many clients, so what their packets have in common is encoded once: packets of
QoS 0 are equal, others differ in the packet identifier only.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Any, Final

from wireyard.formats.mqtt.control import Publish
from wireyard.formats.mqtt.cursor import read_integer
from wireyard.formats.mqtt.layout import PUBLISH
from wireyard.formats.mqtt.properties import Property
from wireyard.formats.mqtt.writing import encode

MQIPDP: Final = 2
"""The version of 1999, the only one with words whose first byte is the lower one (errata M12)."""
_EXPIRY: Final = "message_expiry_interval"
_CACHED_HEADERS: Final = 512
"""Variable headers kept, of 64 KiB or less each."""


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
    packet_id
        The packet identifier, once it is in flight at QoS 1 or 2.
    """

    __slots__ = ("identifiers", "message", "packet_id", "qos", "retain", "tag")

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

    def is_expired(self, now: float) -> bool:
        """Return whether it may no longer begin."""
        return self.message.expires_at is not None and now >= self.message.expires_at


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
