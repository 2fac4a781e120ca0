"""The JMS message of a packet, under the names of JMS.

It follows the specification's table of JMS headers and packet fields, and the additions of the
shipped classes (JMSDeliveryTime, JMSXDeliveryCount). ``wireyard.formats.jmq.body`` decodes bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from wireyard.errors import UsageError
from wireyard.formats.jmq.layout import FLAGS, MESSAGE_TYPES
from wireyard.formats.jmq.packet import Packet
from wireyard.formats.properties import Property
from wireyard.formats.property_rows import typed_properties

BODY_KINDS = MappingProxyType(
    dict(
        zip(
            MESSAGE_TYPES,
            ("text", "bytes", "map", "stream", "object", "message"),
            strict=True,
        )
    )
)
"""Kind of body by packet type."""

JMS_HEADERS = MappingProxyType(
    {
        "JMSDestination": "destination",
        "JMSDeliveryMode": "delivery_mode",
        "JMSRedelivered": "redelivered",
        "JMSExpiration": "expiration",
        "JMSPriority": "priority",
        "JMSTimestamp": "timestamp",
        "JMSMessageID": "jms_message_id",
        "JMSCorrelationID": "correlation_id",
        "JMSReplyTo": "reply_to",
        "JMSType": "message_type",
        "JMSDeliveryTime": "delivery_time",
    }
)
"""Field of `JmsMessage` by JMS header, in the order of the specification's table."""

_TEMPORARY = "temporary_destination://"
_PERSISTENT, _NON_PERSISTENT = 2, 1


def destination_kind(name: str | None, bit_flags: int) -> str | None:
    """Return ``queue topic temporary_queue temporary_topic``, None without a destination.

    The flag Q distinguishes queue and topic; the name shows if the destination is temporary.
    """
    if name is None:
        return None
    kind = "queue" if bit_flags & FLAGS["Q"] else "topic"
    return f"temporary_{kind}" if name.startswith(_TEMPORARY) else kind


def reply_to_kind(name: str | None, class_name: str | None) -> str | None:
    """Return the kind of a reply-to destination, None if neither name nor class shows it.

    It has no flag: the kind of a temporary one is in the name, of any other in the class.
    """
    if name is None:
        return None
    for kind in ("queue", "topic"):
        if name.startswith(f"{_TEMPORARY}{kind}/"):
            return f"temporary_{kind}"
        if (class_name or "").endswith(kind.capitalize()):
            return kind
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class JmsMessage:
    """The headers and properties of a JMS message; those that the packet does not have are None.

    Times are ms since epoch; an expiration of 0 means never.
    """

    body_kind: str
    """``text bytes map stream object message``."""
    destination: str | None
    destination_kind: str | None
    persistent: bool
    redelivered: bool
    expiration: int
    priority: int
    timestamp: int
    sys_message_id: str
    """The SysMessageID, which identifies the message."""
    jms_message_id: str
    """JMSMessageID: ``ID:`` and the id that the client chose, or the SysMessageID."""
    correlation_id: str | None
    reply_to: str | None
    reply_to_kind: str | None
    message_type: str | None
    delivery_time: int | None
    delivery_count: int | None
    properties: Mapping[str, Property]

    @classmethod
    def of(cls, source: Packet | Mapping[str, Any]) -> JmsMessage:
        """Return the message of a packet or of a row.

        Raises
        ------
        UsageError
            A packet of another type, or a row whose fixed header could not be read.
        """
        get: Callable[[str], Any] = (
            source.get if isinstance(source, Mapping) else partial(getattr, source)
        )
        kind = BODY_KINDS.get(get("packet_type") or 0)
        identity = get("sys_message_id")
        if kind is None or identity is None:
            raise UsageError(f"packet type {get('packet_type')} holds no JMS message to be read")
        flags = get("bit_flags")
        chosen = get("message_id")
        return cls(
            body_kind=kind,
            destination=get("destination"),
            destination_kind=destination_kind(get("destination"), flags),
            persistent=bool(flags & FLAGS["P"]),
            redelivered=bool(flags & FLAGS["R"]),
            expiration=get("expiration"),
            priority=get("priority"),
            timestamp=get("timestamp"),
            sys_message_id=identity,
            jms_message_id=f"ID:{identity if chosen is None else chosen}",
            correlation_id=get("correlation_id"),
            reply_to=get("reply_to"),
            reply_to_kind=reply_to_kind(get("reply_to"), get("reply_to_class")),
            message_type=get("message_type"),
            delivery_time=get("delivery_time"),
            delivery_count=get("delivery_count"),
            properties=typed_properties(get("properties")),
        )

    @property
    def delivery_mode(self) -> int:
        """JMSDeliveryMode: 2 for persistent, 1 for non-persistent."""
        return _PERSISTENT if self.persistent else _NON_PERSISTENT

    @property
    def jmsx(self) -> dict[str, Any]:
        """The JMSX* properties; JMSXDeliveryCount is an item, which only brokers send."""
        properties = {
            name: entry.value for name, entry in self.properties.items() if name.startswith("JMSX")
        }
        if self.delivery_count is not None:
            properties["JMSXDeliveryCount"] = self.delivery_count
        return properties

    def headers(self) -> dict[str, Any]:
        """Return the JMS headers by their JMS names, then the JMSX* properties."""
        return {name: getattr(self, field) for name, field in JMS_HEADERS.items()} | self.jmsx
