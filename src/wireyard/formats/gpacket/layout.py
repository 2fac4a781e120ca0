r"""Tables of the GPacket: both header orders, the link header, flags, packet types, columns.

No logic. Everything is big-endian; every Java integer is signed (errata 19). The shipped classes
write the header in this order (errata G1)::

    0   version        2   350
    2   packet type    2
    4   size           4   the whole packet
    8   magic          4   7F FF E3 C2
    12  property size  4
    16  timestamp      8
    24  sequence       8
    32  bit flags      4
    36  properties, then the payload

The figure of the specification has the magic first, then version, type and size. The position of
the magic distinguishes the two. A connection between brokers begins with link packets, which have
no magic (errata G7)::

    0   version        2   100
    2   packet type    2
    4   size           4   the whole packet, 16 to 65536
    8   destination id 4
    12  flags          4
    16  body
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from wireyard.formats.jmq_names import FLAGS as PORTED_FLAGS
from wireyard.formats.jmq_names import PACKET_TYPES as PORTED_TYPES
from wireyard.layout import Column, Field, Layout

__all__ = [
    "COLUMNS",
    "DERIVED",
    "DOCUMENTED",
    "FLAGS",
    "HEADERS",
    "HEADER_BYTES",
    "LINK",
    "LINK_BYTES",
    "LINK_COLUMNS",
    "LINK_HEADER",
    "LINK_SPEC",
    "LINK_TYPES",
    "LINK_VERSION",
    "MAGIC",
    "MAGIC_BYTES",
    "MAX_LINK_BYTES",
    "MAX_PACKET_BYTES",
    "PACKET_TYPES",
    "PORTED_FLAGS",
    "PORTED_NAME",
    "PORTED_SIGN",
    "PORTED_TYPES",
    "PREFIX_BYTES",
    "SHIPPED",
    "SPEC",
    "VERSION",
    "least_bytes",
]

SPEC = "GPacket 3.5"
MAGIC = 2147476418
MAGIC_BYTES = MAGIC.to_bytes(4, "big")
VERSION = 350
SHIPPED, DOCUMENTED = "shipped", "documented"
"""The two orders of the header, as values of the column `header_order`."""
PREFIX_BYTES = 12
"""Version, type, size and magic, in either order, which are enough to frame a packet."""
HEADER_BYTES = 36
MAX_PACKET_BYTES = 71 << 20
"""The largest message that brokers accept by default, 70 MiB, and 1 MiB for its consumers."""

LINK = "gpacket_link"
"""The column `format` of rows of link packets."""
LINK_SPEC = "cluster link protocol"
LINK_VERSION = 100
LINK_BYTES = 16
MAX_LINK_BYTES = 65536

_HEAD = f"{SPEC}, packet format"


class _Row(NamedTuple):
    name: str
    width: int
    kind: str
    doc: str
    unit: str | None = None


def _header(name: str, spec: str, *rows: _Row) -> Layout:
    fields = []
    offset = 0
    for row in rows:
        fields.append(Field(row.name, offset, row.width, row.kind, row.doc, spec, row.unit))
        offset += row.width
    return Layout(name, tuple(fields))


_VERSION = _Row("version", 2, "u16", "350")
_TYPE = _Row("packet_type", 2, "i16", "type of the packet")
_SIZE = _Row("size", 4, "i32", "size of the packet", "bytes")
_MAGIC = _Row("magic", 4, "u32", "2147476418")
_REST = (
    _Row("property_size", 4, "i32", "length of the properties", "bytes"),
    _Row("timestamp", 8, "i64", "when the original sender sent it", "ms since epoch"),
    _Row("sequence", 8, "i64", "counts up with each packet of a sender"),
    _Row("bit_flags", 4, "u32", "one-bit flags, A lowest"),
)

HEADERS = MappingProxyType(
    {
        SHIPPED: _header("gpacket shipped", _HEAD, _VERSION, _TYPE, _SIZE, _MAGIC, *_REST),
        DOCUMENTED: _header("gpacket documented", _HEAD, _MAGIC, _VERSION, _TYPE, _SIZE, *_REST),
    }
)
"""Fixed header by order."""


def least_bytes(version: int) -> int:
    """Return the smallest size of a GPacket; of an unknown version only the prefix is known."""
    return HEADER_BYTES if version == VERSION else PREFIX_BYTES


LINK_HEADER = _header(
    "gpacket link",
    LINK_SPEC,
    _Row("version", 2, "u16", "100"),
    _TYPE,
    _SIZE,
    _Row("destination_id", 4, "i32", "0 in use"),
    _Row("bit_flags", 4, "i32", "1 is for flow control"),
)

FLAGS = MappingProxyType(
    {letter: 1 << bit for bit, letter in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef")}
)
"""Bit of each flag letter, lowest first. In use are A, reply wanted, and B, for the link."""

LINK_TYPES = MappingProxyType(
    {
        1: "UNICAST",
        2: "BROADCAST",
        3: "BROKER_INFO",
        4: "LINK_INIT",
        5: "STOP_FLOW",
        6: "RESUME_FLOW",
        7: "PING",
        9: "BROKER_INFO_REPLY",
    }
)
"""Names of the link packet types, as the shipped classes have them."""

PACKET_TYPES = MappingProxyType(
    {
        1: "G_MESSAGE_DATA",
        2: "G_MESSAGE_DATA_REPLY",
        3: "G_MESSAGE_ACK",
        4: "G_MESSAGE_ACK_REPLY",
        5: "G_NEW_INTEREST",
        6: "G_NEW_INTEREST_REPLY",
        7: "G_REM_DURABLE_INTEREST",
        8: "G_REM_DURABLE_INTEREST_REPLY",
        9: "G_INTEREST_UPDATE",
        10: "G_INTEREST_UPDATE_REPLY",
        11: "G_LOCK",
        12: "G_LOCK_REPLY",
        13: "G_UPDATE_DESTINATION",
        14: "G_UPDATE_DESTINATION_REPLY",
        15: "G_REM_DESTINATION",
        16: "G_REM_DESTINATION_REPLY",
        17: "G_CONFIG_CHANGE_EVENT",
        18: "G_CONFIG_CHANGE_EVENT_REPLY",
        19: "G_GET_CONFIG_CHANGES_REQUEST",
        20: "G_GET_CONFIG_CHANGES_REPLY",
        21: "G_CLIENT_CLOSED",
        22: "G_CLIENT_CLOSED_REPLY",
        23: "G_STOP_MESSAGE_FLOW",
        24: "G_STOP_MESSAGE_FLOW_REPLY",
        25: "G_RESUME_MESSAGE_FLOW",
        26: "G_RESUME_MESSAGE_FLOW_REPLY",
        27: "G_RELOAD_CLUSTER",
        28: "G_RELOAD_CLUSTER_REPLY",
        29: "G_GET_INTEREST_UPDATE",
        30: "G_GET_INTEREST_UPDATE_REPLY",
        31: "G_RESET_PERSISTENCE",
        32: "G_RESET_PERSISTENCE_REPLY",
        33: "G_PING",
        34: "G_PING_REPLY",
        35: "G_DURABLE_ATTACH",
        36: "G_DURABLE_ATTACH_REPLY",
        37: "G_GOODBYE",
        38: "G_GOODBYE_REPLY",
        39: "G_TAKEOVER_PENDING",
        40: "G_TAKEOVER_PENDING_REPLY",
        41: "G_TAKEOVER_COMPLETE",
        43: "G_TAKEOVER_ABORT",
        46: "G_BROKER_INFO_REPLY",
        47: "G_TRANSACTION_INQUIRY",
        48: "G_TRANSACTION_INFO",
        49: "G_FIRST_INFO",
        51: "G_NEW_MASTER_BROKER_PREPARE",
        52: "G_NEW_MASTER_BROKER_PREPARE_REPLY",
        53: "G_NEW_MASTER_BROKER",
        54: "G_NEW_MASTER_BROKER_REPLY",
        55: "G_REPLICATION_GROUP_INFO",
        57: "G_TAKEOVER_ME_PREPARE",
        58: "G_TAKEOVER_ME_PREPARE_REPLY",
        59: "G_TAKEOVER_ME",
        60: "G_TAKEOVER_ME_REPLY",
        61: "G_TAKEOVER_ME_REPLY_ACK",
        63: "G_TRANSFER_FILE_REQUEST",
        64: "G_TRANSFER_FILE_REQUEST_REPLY",
        65: "G_TRANSFER_FILE_LIST",
        67: "G_TRANSFER_FILE_START",
        69: "G_TRANSFER_FILE_END",
        70: "G_TRANSFER_FILE_END_ACK",
        71: "G_TRANSFER_FILE_END_ACK_ACK",
        73: "G_INFO_REQUEST",
        74: "G_INFO",
        75: "G_NOTIFY_PARTITION_ARRIVAL",
        76: "G_NOTIFY_PARTITION_ARRIVAL_REPLY",
    }
)
"""Names of the packet types of the cluster protocol, as the shipped classes have them."""

PORTED_NAME = ".v"
"""The first property of a ported JMQ packet: its version, a short (errata G11)."""
PORTED_SIGN = b"\0\2.v\0\3"
"""Name and type of that property, after the 8 bytes at the start of the section."""


def _columns() -> tuple[Column, ...]:
    head = HEADERS[SHIPPED]

    def plain(name: str, kind: str) -> Column:
        return Column(name, kind, head[name].doc, _HEAD, head[name].unit)

    return (
        plain("version", "int32"),
        plain("packet_type", "int32"),
        Column(
            "packet_type_name", "string", "name of the packet type, that of JMQ if ported", _HEAD
        ),
        plain("size", "int64"),
        plain("magic", "int64"),
        plain("property_size", "int64"),
        plain("timestamp", "int64"),
        plain("sequence", "int64"),
        plain("bit_flags", "int64"),
        Column("flags", "string", "letters of the set flags, those of JMQ if ported", _HEAD),
        Column("header_order", "string", "shipped, or documented: the magic first", _HEAD),
        Column("properties", "properties", "typed properties, null if none", f"{SPEC}, properties"),
        Column("payload_size", "int64", "length of the payload", f"{SPEC}, payload", "bytes"),
        Column("payload", "binary", "the payload, null if none", f"{SPEC}, payload"),
        Column("destination_id", "int64", "only of link packets, else null", LINK_SPEC),
        Column(
            "raw_properties",
            "binary",
            "the section, if `properties` does not determine it",
            f"{SPEC}, properties",
        ),
    )


COLUMNS = _columns()
"""The columns of a row, in the order of the outside contract. A link packet has some of them."""

LINK_COLUMNS = MappingProxyType(
    {
        "version": Column("version", "int32", "100", LINK_SPEC),
        "packet_type": Column("packet_type", "int32", "type of the packet", LINK_SPEC),
        "packet_type_name": Column(
            "packet_type_name", "string", "name of the packet type, null if unknown", LINK_SPEC
        ),
        "size": Column("size", "int64", "size of the packet", LINK_SPEC, "bytes"),
        "destination_id": Column("destination_id", "int64", "0 in use", LINK_SPEC),
        "bit_flags": Column("flags", "int64", "1 is for flow control", LINK_SPEC),
        "payload": Column("payload", "binary", "the body, null if none", LINK_SPEC),
    }
)
"""The columns of a link packet's row, by the column of the format that holds their values."""

DERIVED = MappingProxyType(
    {
        "packet_type_name": "packet_type",
        "size": "the other columns",
        "magic": "version",
        "property_size": "properties",
        "flags": "bit_flags",
        "payload_size": "payload",
    }
)
"""Columns that follow from other columns, each with those; a row to encode may omit them."""
