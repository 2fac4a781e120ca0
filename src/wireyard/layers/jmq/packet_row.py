"""Rows of packets, and what is read from them row by row: properties, users, relayed messages.

A row is a plain dictionary from a reader. A field that is null is treated like a missing one, and
is read by ``get``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Required, TypedDict, cast

from wireyard.errors import DecodeError, EncodeError
from wireyard.formats.base import Row
from wireyard.formats.gpacket.layout import LINK_VERSION
from wireyard.formats.gpacket.payload import payload_value
from wireyard.formats.jmq.body import body_value
from wireyard.formats.jmq.layout import HEADER_BYTES, SYS_MESSAGE_ID
from wireyard.formats.jmq.packet import read_row
from wireyard.formats.properties import Property
from wireyard.formats.property_rows import typed_value
from wireyard.layers.endpoints import endpoint, endpoints_of
from wireyard.layers.records import Position

__all__ = [
    "MAX_TEXT",
    "MESSAGE_ACK",
    "MESSAGE_DATA",
    "MOST_ITEM_BYTES",
    "NEEDED",
    "PacketRow",
    "Relay",
    "as_packet",
    "number",
    "properties_of",
    "relays",
    "text",
    "user_of",
]

NEEDED: Final = (
    "source",
    "stream",
    "offset",
    "format",
    "status",
    "captured_ns",
    "frame",
    "src_addr",
    "src_port",
    "dst_addr",
    "dst_port",
    "version",
    "packet_type",
    "packet_type_name",
    "size",
    *SYS_MESSAGE_ID,
    "source_ip_text",
    "property_offset",
    "property_size",
    "bit_flags",
    "consumer_id",
    "transaction_id",
    "producer_id",
    "delivery_count",
    "destination",
    "message_id",
    "sys_message_id",
    "correlation_id",
    "reply_to",
    "properties",
    "body",
    "payload",
)
"""The columns of JMQ packets and GPackets that are read; bodies of messages are not."""

MAX_TEXT: Final = 1024
"""The most characters of a name or an id that are kept: the wire allows 65535 bytes, and a peer
must not determine how much memory is held. Names in use are far shorter."""
MOST_ITEM_BYTES: Final = HEADER_BYTES + MAX_TEXT
"""The largest property offset of packets whose header items all fit in `MAX_TEXT`."""


class PacketRow(TypedDict, total=False):
    """A packet of either format, with the columns of `NEEDED`."""

    source: Required[str]
    stream: Required[str]
    offset: Required[int]
    format: str
    status: str
    parent_offset: int
    """The offset of the outer packet, of a packet inside another."""
    captured_ns: int
    frame: int
    src_addr: str
    src_port: int
    dst_addr: str
    dst_port: int
    version: Required[int]
    packet_type: Required[int]
    packet_type_name: str
    size: Required[int]
    timestamp: int
    source_ip: bytes
    source_ip_text: str
    source_port: int
    sequence: int
    property_offset: int
    property_size: int
    bit_flags: Required[int]
    consumer_id: int
    transaction_id: int
    producer_id: int
    delivery_count: int
    destination: str
    message_id: str
    sys_message_id: str
    correlation_id: str
    reply_to: str
    properties: Mapping[str, Any]
    """In the form of packets, or in that of columns."""
    body: bytes
    payload: bytes


def as_packet(row: Row) -> PacketRow:
    """Return a row as a `PacketRow`, unchecked."""
    return cast("PacketRow", row)


# --- properties and bodies ------------------------------------------------------------------


def properties_of(row: PacketRow) -> Mapping[str, Any]:
    """Return a row's properties, in the form of packets or in that of columns."""
    return row.get("properties") or _NONE


_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


def number(properties: Mapping[str, Any], name: str) -> int | None:
    """Return an integer or boolean property, None if there is none with this name."""
    value = _value(properties, name)
    return value if isinstance(value, int) else None


def text(properties: Mapping[str, Any], name: str) -> str | None:
    """Return a string property, None if there is none with this name."""
    value = _value(properties, name)
    return value[:MAX_TEXT] if isinstance(value, str) else None


def _value(properties: Mapping[str, Any], name: str) -> Any:
    entry = properties.get(name)
    if entry is None or isinstance(entry, Property):
        return entry and entry.value
    try:
        return typed_value(name, entry["type"], entry["value"])
    except EncodeError:
        return None


def user_of(row: PacketRow) -> str | None:
    """Return the user of a login, None if the body with the password in it was left out."""
    try:
        login = body_value(row)
    except DecodeError:
        return None
    return login["user"][:MAX_TEXT] if login else None


# --- relayed messages -----------------------------------------------------------------------

MESSAGE_DATA: Final = 1
MESSAGE_ACK: Final = 3
_CONSUMED, _PREPARED = 3, 9
"""Values of the property T: consumed; acknowledged in a transaction that is being committed."""


class Relay(NamedTuple):
    """A message that one broker relayed to another, for a consumer there."""

    message_key: str
    consumer_id: int
    broker: str | None
    """Endpoint of the port mapper of the broker that relays it."""
    at: Position
    sender: str
    receiver: str
    """Endpoints of both brokers."""
    kind: str = "relayed"
    """``relayed``, or ``relay_acknowledged`` for the consumer's acknowledgement on its way back."""


def relays(row: Row) -> Iterator[Relay]:
    """Yield the messages that a GPacket relays or acknowledges; none if it is damaged."""
    packet = as_packet(row)
    packet_type = packet["packet_type"]
    if packet_type not in (MESSAGE_DATA, MESSAGE_ACK) or packet["version"] == LINK_VERSION:
        return
    properties = properties_of(packet)
    kind = "relayed" if packet_type == MESSAGE_DATA else "relay_acknowledged"
    if kind == "relay_acknowledged" and number(properties, "T") not in (_CONSUMED, _PREPARED):
        return
    try:
        payload = payload_value(row)
    except DecodeError:
        return
    host, port = text(properties, "host"), number(properties, "port")
    broker = None if host is None or port is None else endpoint(host, port)
    sender, receiver = endpoints_of(row)
    at = Position.of(row)
    for message_key, consumer_id in _message_consumers(kind, payload):
        yield Relay(message_key, consumer_id, broker, at, sender, receiver, kind)


def _message_consumers(kind: str, payload: Any) -> Iterator[tuple[str, int]]:
    """Yield each message of a payload with each consumer that it is for."""
    if payload is None:
        return
    if kind == "relay_acknowledged":
        for entry in payload:
            yield entry["sys_message_id"], entry["consumer"]["consumer_id"]
        return
    message, error = read_row(payload["packet"], 0)
    if error is None:
        for consumer in payload["consumers"]:
            yield message["sys_message_id"], consumer["consumer_id"]
