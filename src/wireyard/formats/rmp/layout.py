r"""Tables of the RMP messaging layer's packet: typing word, fields, layers, columns. No logic.

Everything is big-endian and unsigned (errata R4), nothing is padded (R8)::

     0                   1
     0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5
    +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    |0 0 0 0| FLAGS     | LAYER     |   typing information
    +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+

A packet is a sequence of messages; a message is the typing information, the fields that its flags
announce, and data. Each message but the last has the length of its data; the data of the last is
the rest of the packet. ``wireyard.decode`` returns all messages of a packet; streams and tables
have one row for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from wireyard.layout import Column, Field, Layout

__all__ = [
    "CLIENTS",
    "COLUMNS",
    "DERIVED",
    "DOMAIN",
    "FLAGS",
    "FLAG_ORDER",
    "FOREIGN",
    "LAYERS",
    "LAYER_MASK",
    "LENGTH",
    "LIST_ORDER",
    "MAX_MESSAGE_BYTES",
    "MAX_PACKET_BYTES",
    "PREFIX_BYTES",
    "REPLY_TO",
    "SEGMENT",
    "SPEC",
    "TYPING",
    "Part",
]

SPEC = "RMP messaging layer"
FOREIGN = 4096
"""Least typing word of other protocols, to which the bytes after it belong (errata R18)."""
LAYER_MASK = 0x003F
"""The bits of the layer in the typing word, whose low byte also has two flags (errata R2)."""
PREFIX_BYTES = 2
"""The length before each packet of a framed stream; the layer itself has none."""
MAX_PACKET_BYTES = 1 << 20
"""Limit of all transports of this layer: a datagram has at most 65507 bytes, a message of
corosync's closed process groups 1 MiB."""
MAX_MESSAGE_BYTES = 0xFFFF
"""Most data of a message before another one, because its length has 16 bits."""

FLAGS = MappingProxyType(
    {
        "segmentation": 0x0800,  # message, packet and number of packets follow
        "domain": 0x0400,  # a domain follows
        "client": 0x0200,  # the sending client follows
        "reply_to": 0x0100,  # the message this one replies to follows
        "more_follows": 0x0080,  # another message follows, and the length of the data
        "reply_requested": 0x0040,  # no field
    }
)
"""Bit of each flag in the typing word, flag 0 first (errata R1)."""

_TYPING = f"{SPEC}, typing information"


def _part(name: str, *rows: tuple[str, int, str, str, str | None]) -> Layout:
    fields, at = [], 0
    for field, width, kind, doc, unit in rows:
        fields.append(Field(field, at, width, kind, doc, f"{SPEC}, {name}", unit))
        at += width
    return Layout(name, tuple(fields))


TYPING = Layout(
    "typing information",
    (Field("typing", 0, 2, "u16", "four zero bits, six flags, six bits of layer", _TYPING),),
)
"""The first field of every message."""
SEGMENT = _part(
    "segmentation and reassembly",
    ("message_number", 2, "u16", "number the sending process gave the message", None),
    ("packet_number", 2, "u16", "number of this packet of the message, from 1", None),
    ("packet_count", 2, "u16", "number of packets of the message", None),
)
"""Present if the flag ``segmentation`` is set: in parts of a message, and to be replied to."""
DOMAIN = _part("domain filtering", ("domain", 2, "u16", "domain of the message", None))
"""Present if the flag ``domain`` is set."""
CLIENTS = _part("multiple clients", ("client", 2, "u16", "client that sent the message", None))
"""Present if the flag ``client`` is set."""
REPLY_TO = _part(
    "reply to",
    ("reply_message_number", 2, "u16", "number of the message this one replies to", None),
    ("reply_source", 6, "bytes", "process that sent that message: IPv4 address and port", None),
)
"""Present if the flag ``reply_to`` is set."""
LENGTH = _part(
    "multiplexing packets", ("data_size", 2, "u16", "length of the message's data", "bytes")
)
"""Present if the flag ``more_follows`` is set; without it the data is the rest of the packet."""


@dataclass(frozen=True, slots=True)
class Part:
    """Fields that are present if their flag is set."""

    flag: str
    layout: Layout


FLAG_ORDER = (
    Part("segmentation", SEGMENT),
    Part("domain", DOMAIN),
    Part("client", CLIENTS),
    Part("reply_to", REPLY_TO),
    Part("more_follows", LENGTH),
)
"""The optional fields in the order of their flags (errata R5)."""
LIST_ORDER = (*FLAG_ORDER[:3], FLAG_ORDER[4], FLAG_ORDER[3])
"""The other reading, dialect ``list-order``: in the order of the specification's list. The two
differ only for messages with both a reply-to field and a length."""

LAYERS = MappingProxyType({0: "messaging", 1: "streams", 2: "RPC", 3: "replicated object"})
"""Names of the destination layers; 4 to 63 have none yet."""


def _columns() -> tuple[Column, ...]:
    def plain(layout: Layout, name: str, kind: str) -> Column:
        field = layout[name]
        return Column(name, kind, field.doc, field.spec, field.unit)

    multiplexing = LENGTH["data_size"].spec
    source = REPLY_TO["reply_source"]
    return (
        Column("packet_offset", "offset", "offset of the packet in the stream", SPEC, "bytes"),
        Column("message_in_packet", "int32", "number of the message in its packet, from 0", SPEC),
        plain(TYPING, "typing", "int32"),
        Column("layer", "int32", "destination layer; null for other protocols", _TYPING),
        Column("layer_name", "string", "name of the layer, null if it has none", _TYPING),
        Column("foreign", "bool", "whether it belongs to another protocol", _TYPING),
        plain(SEGMENT, "message_number", "int32"),
        plain(SEGMENT, "packet_number", "int32"),
        plain(SEGMENT, "packet_count", "int32"),
        plain(DOMAIN, "domain", "int32"),
        plain(CLIENTS, "client", "int32"),
        plain(REPLY_TO, "reply_message_number", "int32"),
        Column("reply_source", "string", f"{source.doc}, as address:port", source.spec),
        Column("reply_requested", "bool", "whether the sender waits for a reply", _TYPING),
        Column("more_follows", "bool", "whether another message follows", multiplexing),
        Column("data_size", "int64", "length of the data", multiplexing, "bytes"),
        Column("data", "binary", "the data; for another protocol with its typing word", SPEC),
    )


COLUMNS = _columns()
"""The columns of an RMP row, in the order of the outside contract."""

DERIVED = MappingProxyType(
    {"typing": "the other columns", "layer_name": "layer", "data_size": "data"}
)
"""Columns that follow from other columns, each with those; a row to encode may omit them."""
