"""Rows of packets, and what is read from them row by row: properties, users, relayed messages.

A row is a plain dictionary from a reader. A field that is null is treated like a missing one, and
is read by ``get``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

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

NEEDED: Final = (
    "source", "stream", "offset", "format", "status", "captured_ns", "frame", "src_addr",
    "src_port", "dst_addr", "dst_port", "version", "packet_type", "packet_type_name", "size",
    *SYS_MESSAGE_ID, "source_ip_text", "property_offset", "property_size", "bit_flags",
    "consumer_id", "transaction_id", "producer_id", "delivery_count", "destination", "message_id",
    "sys_message_id", "correlation_id", "reply_to", "properties", "body", "payload",
)  # fmt: skip
"""The columns of JMQ packets and GPackets that are read; bodies of messages are not."""

MAX_TEXT: Final = 1024
"""The most characters of a name or an id that are kept: the wire allows 65535 bytes, and a peer
must not determine how much memory is held. Names in use are far shorter."""
MOST_ITEM_BYTES: Final = HEADER_BYTES + MAX_TEXT
"""The largest property offset of packets whose header items all fit in `MAX_TEXT`."""

# --- properties and bodies ------------------------------------------------------------------


def properties_of(row: Row) -> Mapping[str, Any]:
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


def user_of(row: Row) -> str | None:
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
    packet_type = row["packet_type"]
    if packet_type not in (MESSAGE_DATA, MESSAGE_ACK) or row["version"] == LINK_VERSION:
        return
    properties = properties_of(row)
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
