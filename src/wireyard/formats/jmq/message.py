"""The JMS message that a packet carries, in the words of JMS.

The specification's table of JMS headers and packet fields, and what the shipped classes add to it
(JMSDeliveryTime, JMSXDeliveryCount). Opening the body is ``wireyard.formats.jmq.body``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from wireyard.errors import UsageError
from wireyard.formats.base import Row
from wireyard.formats.jmq.layout import FLAGS, MESSAGE_TYPES, SECRET_BODIES
from wireyard.formats.jmq.packet import Packet
from wireyard.formats.properties import Property
from wireyard.formats.property_rows import typed_properties

__all__ = [
    "BODY_KINDS",
    "JMS_HEADERS",
    "JmsMessage",
    "destination_kind",
    "redact",
    "reply_to_kind",
]

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

    The Q flag separates queue from topic, the name shows if it is temporary.
    """
    if name is None:
        return None
    kind = "queue" if bit_flags & FLAGS["Q"] else "topic"
    return f"temporary_{kind}" if name.startswith(_TEMPORARY) else kind


def reply_to_kind(name: str | None, class_name: str | None) -> str | None:
    """Return the kind of a reply-to destination, None if neither name nor class shows it.

    No flag speaks of it: a temporary one has its kind in the name, any other in the class.
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
    """The header of one JMS message; what the packet does not have is None.

    Times are ms since epoch; an expiration of 0 is never.
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
    """What identifies the message, whatever the client chose to call it."""
    jms_message_id: str
    """What applications see: ``ID:`` and the id of the client's choice, else the one above."""
    correlation_id: str | None
    reply_to: str | None
    reply_to_kind: str | None
    message_type: str | None
    delivery_time: int | None
    delivery_count: int | None
    properties: Mapping[str, Property]

    @classmethod
    def of(cls, source: Packet | Mapping[str, Any]) -> JmsMessage:
        """Return the message in a packet, or in the row of one.

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
        """JMSDeliveryMode as JMS numbers it: 2 is persistent, 1 is not."""
        return _PERSISTENT if self.persistent else _NON_PERSISTENT

    @property
    def jmsx(self) -> dict[str, Any]:
        """The JMSX* properties; JMSXDeliveryCount comes from its item, which only brokers send."""
        found = {
            name: entry.value for name, entry in self.properties.items() if name.startswith("JMSX")
        }
        if self.delivery_count is not None:
            found["JMSXDeliveryCount"] = self.delivery_count
        return found

    def headers(self) -> dict[str, Any]:
        """Return the JMS headers by their JMS names, then the JMSX* properties."""
        return {name: getattr(self, field) for name, field in JMS_HEADERS.items()} | self.jmsx


def redact(row: Row) -> Row:
    """Return the row without passwords; a row without one comes back as it is.

    The body of an AUTHENTICATE packet becomes None. `body_size` stays what it was on the wire, so
    a null body beside a size that is not 0 is a body that was taken out. Such a row cannot be
    encoded to the packet it came from.
    """
    if row.get("packet_type") in SECRET_BODIES and row.get("body") is not None:
        return {**row, "body": None}
    return row
