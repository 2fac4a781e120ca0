"""One set of topics: a message of MQTT for JMS clients, and one of JMS for those of MQTT.

Rules of this file:

1. A topic has one name on each side (`name_of`): ``plant/v1.2`` is ``plant.v1$2E2``. Topics that
   begin with ``$`` and temporary ones are their own side's alone.
2. A message is passed on at the moment at which its own side routes it, and made anew only where
   somebody on the other side gets it.
3. A message of MQTT to ``$Q/shop/orders`` goes to the queue ``shop.orders``.
4. What a message has that the other side has not is left out; a message that the other side cannot
   have at all is said in a line.
"""

from __future__ import annotations

from math import ceil
from typing import Any, Final

from wireyard.broker.core import Core
from wireyard.broker.jmq.core import JmqCore
from wireyard.broker.jmq.destinations import QUEUES, Destination, is_name, name_of, topic_of
from wireyard.endpoints import Message
from wireyard.endpoints.codes import NO_SUBSCRIBERS, QUOTA_EXCEEDED
from wireyard.endpoints.jmq import Message as JmsMessage
from wireyard.endpoints.jmq.packets import Stamp, read_packet
from wireyard.errors import WireError
from wireyard.formats.jmq.body import body_value
from wireyard.formats.jmq.layout import FLAGS
from wireyard.formats.jmq.message import BODY_KINDS, reply_to_kind
from wireyard.formats.jmq.packet import Packet, decode, encode
from wireyard.formats.mqtt.control import Publish
from wireyard.formats.mqtt.properties import Property
from wireyard.formats.mqtt.topics import has_wildcard
from wireyard.formats.mqtt.writing import encode as encode_publish
from wireyard.layers.jmq.rules import DESTINATION_CLASSES, OK, TEMPORARY

_PRIORITY: Final = 4
_MOST_QOS: Final = 2
_RESERVED: Final = "mq."
_HEX: Final = "0x"
_ORIGIN: Final = object()
"""The origin of messages of MQTT, which are not passed back."""


class Bridge:
    """Passes messages on between the two halves of a broker."""

    def __init__(self, mqtt: Core, jmq: JmqCore) -> None:
        self._mqtt, self._jmq = mqtt, jmq
        self._elsewhere = Destination("MQTT", False)
        """In which messages to topics are counted that no JMS client has named."""
        mqtt.router.also, jmq.router.also = self._from_mqtt, self._from_jms

    def _from_mqtt(self, message: Message) -> int:
        """Pass a message on to JMS clients; return its reason code."""
        is_queue = message.topic.startswith(QUEUES)
        if message.topic.startswith("$") and not is_queue:
            return NO_SUBSCRIBERS
        name = name_of(message.topic.removeprefix(QUEUES) if is_queue else message.topic)
        router = self._jmq.router
        destination = None
        if not is_name(name, router.limits.max_name):
            pass
        elif is_queue:
            destination = self._queue(name)
        elif router.subscriptions_of(name):
            destination = router.destinations.get((False, name), self._elsewhere)
        if destination is None:
            return NO_SUBSCRIBERS
        self._jmq.set_time(self._mqtt.now)
        try:
            made = to_jms(message, name, is_queue, self._jmq.stamp())
        except WireError as error:
            self._mqtt.say(f"{message.topic}: a message is nothing for JMS clients: {error}")
            return NO_SUBSCRIBERS
        made.origin = _ORIGIN
        if router.publish(made, destination, name) == OK:
            return 0
        return QUOTA_EXCEEDED if is_queue else NO_SUBSCRIBERS

    def _queue(self, name: str) -> Destination | None:
        """Return a queue; make one that may be made by its name."""
        router = self._jmq.router
        found = router.destinations.get((True, name))
        is_own = name.startswith((_RESERVED, TEMPORARY))
        has_room = len(router.destinations) < router.limits.max_destinations
        if found is None and not is_own and has_room:
            return router.home(True, name)
        return None if found is router.dead else found

    def _from_jms(self, message: JmsMessage, name: str) -> None:
        """Pass a message to a topic on to MQTT clients."""
        topic = topic_of(name)
        is_own = topic.startswith(("$", TEMPORARY)) or has_wildcard(topic)
        if message.origin is _ORIGIN or is_own or name_of(topic) != name:
            return
        router = self._mqtt.router
        is_over = 0 < message.expiration <= self._jmq.router.now_ms
        if is_over or not router.has_receivers(topic):
            return
        self._mqtt.set_time(self._jmq.now)
        try:
            router.route(to_mqtt(decode(message.packet), topic, self._jmq.router.now_ms), None)
        except (WireError, ValueError) as error:
            self._jmq.say(f"T:{name}: a message is nothing for MQTT clients: {error}")


def to_jms(message: Message, name: str, is_queue: bool, stamp: Stamp) -> JmsMessage:
    """Return a message of MQTT as one of JMS.

    An `EncodeError` is raised if it has what no JMS message can have.
    """
    given: dict[str, Any] = {}
    user: dict[str, str] = {}
    for key, value in message.properties:
        if key == "user_property":
            assert isinstance(value, tuple)
            if _is_property(value[0]):
                user.setdefault(*value)
        else:
            given[key] = value
    is_text, body = bool(given.get("payload_format_indicator")), message.payload
    reply_to = given.get("response_topic")
    correlation = given.get("correlation_data")
    timestamp, address, port, sequence = stamp
    flags = (FLAGS["P"] if message.qos else 0) | (FLAGS["Q"] if is_queue else 0)
    asked = None if reply_to is None else name_of(reply_to.removeprefix(QUEUES))
    asked_class = None
    if asked is not None and not asked.startswith(TEMPORARY):
        asked_class = DESTINATION_CLASSES[(reply_to or "").startswith(QUEUES)]
    packet = Packet(
        packet_type="TEXT_MESSAGE" if is_text else "BYTES_MESSAGE",
        destination=name,
        destination_class=DESTINATION_CLASSES[is_queue],
        bit_flags=flags,
        priority=_PRIORITY,
        expiration=int(message.expires_at * 1000) if message.expires_at is not None else 0,
        timestamp=timestamp,
        source_ip=address,
        source_port=port,
        sequence=sequence,
        correlation_id=None if correlation is None else _text_of(correlation),
        reply_to=asked,
        reply_to_class=asked_class,
        message_type=given.get("content_type"),
        properties=user or None,
        body=body or None,
    )
    made = read_packet(encode(packet), {})
    assert isinstance(made, JmsMessage)
    return made


def _is_property(name: str) -> bool:
    """Return whether an application may have a property of a name in JMS."""
    return name.replace("$", "_").isidentifier() and not name.startswith("JMS")


def to_mqtt(packet: Packet, topic: str, now_ms: int) -> Message:
    """Return a message of JMS as one of MQTT.

    A `WireError` is raised if it has what no MQTT message can have, or is damaged; a `ValueError`
    if its body is of Java alone.
    """
    kind = BODY_KINDS[packet.packet_type]
    if kind not in ("text", "bytes", "message"):
        raise ValueError(f"it is a {kind.capitalize()}Message")
    body = body_value(packet)
    properties: list[tuple[str, Any]] = []
    if kind == "text":
        properties.append(("payload_format_indicator", 1))
    if packet.expiration:
        seconds = max(1, ceil((packet.expiration - now_ms) / 1000))
        properties.append(("message_expiry_interval", min(seconds, 0xFFFF_FFFF)))
    if packet.message_type is not None:
        properties.append(("content_type", packet.message_type))
    if packet.reply_to is not None:
        is_queue = (reply_to_kind(packet.reply_to, packet.reply_to_class) or "").endswith("queue")
        prefix = QUEUES if is_queue else ""
        properties.append(("response_topic", prefix + topic_of(packet.reply_to)))
    if packet.correlation_id is not None:
        properties.append(("correlation_data", _data_of(packet.correlation_id)))
    for name, entry in (packet.properties or {}).items():
        if (text := property_text(entry.value)) is not None:
            properties.append(("user_property", (name, text)))
    payload = body.encode() if isinstance(body, str) else body or b""
    qos = _MOST_QOS if packet.bit_flags & FLAGS["P"] else 0
    made = tuple(Property(*one) for one in properties)
    encode_publish(Publish(topic=topic, properties=made, version_in_force=5))
    expires_at = packet.expiration / 1000 if packet.expiration else None
    return Message(topic, payload, qos, False, made, expires_at)


def property_text(value: object) -> str | None:
    """Return a property of JMS as text; None for one that MQTT has not."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None


def _text_of(data: bytes) -> str:
    """Return correlation data as text; those that are none as hexadecimal behind ``0x``."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _HEX + data.hex()


def _data_of(text: str) -> bytes:
    """Return correlation data; hexadecimal stands for data that are no text."""
    try:
        data = bytes.fromhex(text.removeprefix(_HEX)) if text.startswith(_HEX) else b""
    except ValueError:
        return text.encode()
    return data if data and _text_of(data) == text else text.encode()
