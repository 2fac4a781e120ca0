r"""Tables of the JMQ packet: header fields, items, flags, packet types, columns. No logic.

Everything is big-endian; every Java integer is signed (errata 19)::

    0   magic            4   1B FF E3 C2
    4   version          2   103, 200, 301
    6   packet type      2
    8   size             4   the whole packet
    12  expiration       8   (103: a 32-bit transaction id stands here first)
    20  timestamp        8 \
    28  source address  16  | the 32 bytes of the SysMessageID
    44  source port      4  |
    48  sequence         4 /
    52  property offset  4   from the first byte of the packet
    56  property size    4
    60  priority         1
    61  encryption       1
    62  bit flags        2
    64  consumer id      8   (103: 4 bytes at 68)
    72  variable items .. property offset, then properties, then the body
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from wireyard.formats.jmq_names import FLAGS, PACKET_TYPES
from wireyard.layout import Column, Field, Layout

__all__ = [
    "BROKER_TYPES",
    "CLIENT_TYPES",
    "COLUMNS",
    "DERIVED",
    "FLAGS",
    "FLAGS_OF_103",
    "HEADERS",
    "HEADER_BYTES",
    "ITEMS",
    "ITEMS_BY_NAME",
    "MAGIC",
    "MAGIC_BYTES",
    "MAX_PACKET_BYTES",
    "MESSAGE_TYPES",
    "PACKET_TYPES",
    "PREFIX_BYTES",
    "SECRET_BODIES",
    "SPEC",
    "STAMPED",
    "SYS_MESSAGE_ID",
    "VERSIONS",
    "Item",
    "least_bytes",
]

SPEC = "JMQ 3.0.1c"
MAGIC = 469754818
MAGIC_BYTES = MAGIC.to_bytes(4, "big")
VERSIONS = (103, 200, 301)
PREFIX_BYTES = 12
"""Magic, version, type and size, which are the same in every version."""
HEADER_BYTES = 72
MAX_PACKET_BYTES = 70 * 1024 * 1024 + HEADER_BYTES
"""Default limit of brokers: ``imq.message.max_size=70m``, plus the fixed header."""

_HEAD = f"{SPEC}, fixed header"


def _header(name: str, *rows: tuple[str, int, int, str, str, str | None]) -> Layout:
    fields = (Field(n, at, width, kind, doc, _HEAD, unit) for n, at, width, kind, doc, unit in rows)
    return Layout(name, tuple(fields))


_PREFIX = (
    ("magic", 0, 4, "u32", "469754818 in every version", None),
    ("version", 4, 2, "u16", "103, 200 or 301", None),
    ("packet_type", 6, 2, "i16", "type of the packet", None),
    ("size", 8, 4, "i32", "size of the packet", "bytes"),
)

_HEADER_301 = _header(
    "jmq 200 and 301",
    *_PREFIX,
    ("expiration", 12, 8, "i64", "when the message expires; 0 is never", "ms since epoch"),
    ("timestamp", 20, 8, "i64", "when the sender sent it", "ms since epoch"),
    ("source_ip", 28, 16, "bytes", "address of the original sender", None),
    ("source_port", 44, 4, "i32", "port of the original sender", None),
    ("sequence", 48, 4, "i32", "counts up with each packet of a sender", None),
    ("property_offset", 52, 4, "i32", "where the properties begin", "bytes"),
    ("property_size", 56, 4, "i32", "length of the properties", "bytes"),
    ("priority", 60, 1, "i8", "0 to 9", None),
    ("encryption", 61, 1, "u8", "unused", None),
    ("bit_flags", 62, 2, "u16", "one-bit flags, Q lowest", None),
    ("consumer_id", 64, 8, "i64", "consumer, or the id that ties a reply to its request", None),
)

_HEADER_103 = _header(
    "jmq 103",
    *_PREFIX,
    ("transaction_id", 12, 4, "i32", "32-bit transaction id", None),
    ("expiration", 16, 8, "i64", "when the message expires; 0 is never", "ms since epoch"),
    ("timestamp", 24, 8, "i64", "when the sender sent it", "ms since epoch"),
    ("source_ip", 32, 16, "bytes", "address of the original sender", None),
    ("source_port", 48, 4, "i32", "port of the original sender", None),
    ("sequence", 52, 4, "i32", "counts up with each packet of a sender", None),
    ("property_offset", 56, 4, "i32", "where the properties begin", "bytes"),
    ("property_size", 60, 4, "i32", "length of the properties", "bytes"),
    ("priority", 64, 1, "i8", "0 to 9", None),
    ("encryption", 65, 1, "u8", "unused", None),
    ("bit_flags", 66, 2, "u16", "one-bit flags; only Q to F count", None),
    ("consumer_id", 68, 4, "i32", "32-bit consumer id", None),
)

HEADERS = MappingProxyType({103: _HEADER_103, 200: _HEADER_301, 301: _HEADER_301})
"""Fixed header by version."""


def least_bytes(version: int) -> int:
    """Return the smallest size of a packet; of an unknown version only the prefix is known."""
    return HEADER_BYTES if version in HEADERS else PREFIX_BYTES


SYS_MESSAGE_ID = ("timestamp", "source_ip", "source_port", "sequence")
"""The four fields that identify a message: 32 contiguous bytes of the header."""


@dataclass(frozen=True, slots=True)
class Item:
    """One kind of variable-header item; `width` is its length in bytes, None for text."""

    code: int
    name: str
    width: int | None
    doc: str
    spec: str


_LIST = f"{SPEC}, variable header"
_SHIPPED = "shipped classes, variable header"

ITEMS = MappingProxyType(
    {
        item.code: item
        for item in (
            # In the order the shipped writer sends them; any order is read.
            Item(8, "transaction_id", 8, "transaction the packet belongs to", _LIST),
            Item(9, "producer_id", 8, "producer that sent it", _LIST),
            Item(10, "delivery_time", 8, "earliest time of delivery", _SHIPPED),
            Item(11, "delivery_count", 4, "number of deliveries", _SHIPPED),
            Item(1, "destination", None, "queue or topic name", _LIST),
            Item(2, "message_id", None, "JMSMessageID chosen by the client", _LIST),
            Item(3, "correlation_id", None, "JMSCorrelationID", _LIST),
            Item(4, "reply_to", None, "JMSReplyTo destination", _LIST),
            Item(5, "message_type", None, "JMSType", _LIST),
            Item(6, "destination_class", None, "Java class of the destination", _LIST),
            Item(7, "reply_to_class", None, "Java class of the reply-to destination", _LIST),
        )
    }
)
"""Items of the variable header by type: type and length of two bytes each, then the value, which is
text if no width is given; type 0 ends the list. Items of other types are preserved."""
STAMPED = 12
"""Type of the item with the size of the message data, in the dialect with time stamps behind it."""
ITEMS_BY_NAME = MappingProxyType({item.name: item for item in ITEMS.values()})

FLAGS_OF_103 = 0x007F
"""The flags of version 103, Q to F: T was added in 200, the others later (errata 27)."""

MESSAGE_TYPES = (1, 2, 3, 4, 5, 6)
"""Packet types that carry a JMS message."""

SECRET_BODIES = (12, 38)
"""Packet types whose body is secret: AUTHENTICATE and AUTHENTICATE_REQUEST.

Basic and jmqadminkey logins send the password in base64, digest logins a hash of it and of the
nonce in the request. No property of the protocol holds a secret.
"""

CLIENT_TYPES = (10, 12, 14, 16, 18, 20, 22, 24, 26, 32, 34, 36, 40, 42, 44, 46, 48, 50)
"""Packet types that only clients send."""

BROKER_TYPES = tuple(
    code
    for code, name in PACKET_TYPES.items()
    # Clients answer pings too. Brokers also send three types without a request.
    if (name.endswith("_REPLY") and name != "PING_REPLY")
    or name in ("AUTHENTICATE_REQUEST", "INFO", "DEBUG")
)
"""Packet types that only brokers send."""


def _columns() -> tuple[Column, ...]:
    head = _HEADER_301
    derived = f"{SPEC}, correlation with JMS"

    def plain(name: str, kind: str) -> Column:
        return Column(name, kind, head[name].doc, _HEAD, head[name].unit)

    def item(name: str) -> Column:
        entry = ITEMS_BY_NAME[name]
        kind = {None: "string", 8: "int64", 4: "int32"}[entry.width]
        unit = "ms since epoch" if name == "delivery_time" else None
        return Column(name, kind, entry.doc, entry.spec, unit)

    return (
        plain("version", "int32"),
        plain("packet_type", "int32"),
        Column("packet_type_name", "string", "name of the packet type, null if unknown", _HEAD),
        plain("size", "int64"),
        plain("expiration", "int64"),
        plain("timestamp", "int64"),
        plain("source_ip", "binary"),
        Column("source_ip_text", "string", "the address as the shipped classes print it", _HEAD),
        plain("source_port", "int32"),
        plain("sequence", "int32"),
        plain("property_offset", "int64"),
        plain("property_size", "int64"),
        plain("priority", "int32"),
        plain("encryption", "int32"),
        plain("bit_flags", "int32"),
        Column("flags", "string", "letters of the set flags, in bit order from Q", _HEAD),
        plain("consumer_id", "int64"),
        item("transaction_id"),
        item("producer_id"),
        item("delivery_time"),
        item("delivery_count"),
        item("destination"),
        Column(
            "destination_hash",
            "int64",
            "CRC-32 of T:name or Q:name in UTF-8, 0 to 4294967295; two names may share one",
            f"{SPEC}, open issue 1",
        ),
        item("message_id"),
        Column("sys_message_id", "string", "sequence-address-port-timestamp", derived),
        item("correlation_id"),
        item("reply_to"),
        item("message_type"),
        item("destination_class"),
        item("reply_to_class"),
        Column("unknown_items", "items", "items of other types, as sent", _LIST),
        Column("properties", "properties", "typed properties, null if none", f"{SPEC}, properties"),
        Column("body_size", "int64", "length of the body", f"{SPEC}, overview", "bytes"),
        Column("body", "binary", "the body as on the wire, null if none", f"{SPEC}, overview"),
        Column("raw_header", "binary", "both headers, if the columns do not determine them", _HEAD),
        Column(
            "raw_properties",
            "binary",
            "the section, if `properties` does not determine it",
            f"{SPEC}, properties",
        ),
        Column(
            "timestamps",
            "name_values",
            "stamps behind the body: whence, and timestamp, address and port",
            f"{SPEC}, open issue 2",
        ),
    )


COLUMNS = _columns()
"""The columns of a JMQ row, in the order of the outside contract."""

DERIVED = MappingProxyType(
    {
        "packet_type_name": "packet_type",
        "size": "the other columns",
        "source_ip_text": "source_ip",
        "property_offset": "the other columns",
        "property_size": "properties",
        "flags": "bit_flags",
        "sys_message_id": ", ".join(SYS_MESSAGE_ID),
        "destination_hash": "destination, bit_flags",
        "body_size": "body",
    }
)
"""Columns that follow from other columns, each with those; a row to encode may omit them."""
