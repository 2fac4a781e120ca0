r"""The packet of the RMP messaging layer as tables, no logic: typing word, fields, layers, columns.

Everything is big-endian and unsigned (errata R4), nothing is padded (R8)::

     0                   1
     0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5
    +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    |0 0 0 0| FLAGS     | LAYER     |   typing information
    +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+

A packet is one message after the other; a message is the typing information, the fields its flags
announce, and data. Each message but the last has the length of its data; the last has the rest.
``wireyard.decode`` returns all messages of a packet; streams and tables have one row for each.
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
"""First typing word that belongs to other protocols; what follows it is theirs (errata R18)."""
LAYER_MASK = 0x003F
"""The layer in the typing word; masked, for it shares its byte with two flags (errata R2)."""
PREFIX_BYTES = 2
"""The length in front of each packet of a framed stream; the layer itself has none."""
MAX_PACKET_BYTES = 1 << 20
"""Longest packet believed: no transport of this layer takes more. A datagram ends at 65507 bytes, a
message of corosync's closed process groups at 1 MiB."""
MAX_MESSAGE_BYTES = 0xFFFF
"""Most data a message can have that another one follows: its length has 16 bits."""

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
"""What every message begins with."""
SEGMENT = _part(
    "segmentation and reassembly",
    ("message_number", 2, "u16", "number the sending process gave the message", None),
    ("packet_number", 2, "u16", "which packet of the message this is, from 1", None),
    ("packet_count", 2, "u16", "how many packets the message has", None),
)
"""There if the flag ``segmentation`` is set: the message is a part of one, or can be replied to."""
DOMAIN = _part("domain filtering", ("domain", 2, "u16", "domain of the message", None))
"""There if the flag ``domain`` is set."""
CLIENTS = _part("multiple clients", ("client", 2, "u16", "client that sent the message", None))
"""There if the flag ``client`` is set."""
REPLY_TO = _part(
    "reply to",
    ("reply_message_number", 2, "u16", "number of the message this one replies to", None),
    ("reply_source", 6, "bytes", "process that sent that message: IPv4 address and port", None),
)
"""There if the flag ``reply_to`` is set."""
LENGTH = _part(
    "multiplexing packets", ("data_size", 2, "u16", "length of the message's data", "bytes")
)
"""There if the flag ``more_follows`` is set; without it the data is the rest of the packet."""


@dataclass(frozen=True, slots=True)
class Part:
    """Fields that are there when their flag is set."""

    flag: str
    layout: Layout


FLAG_ORDER = (
    Part("segmentation", SEGMENT),
    Part("domain", DOMAIN),
    Part("client", CLIENTS),
    Part("reply_to", REPLY_TO),
    Part("more_follows", LENGTH),
)
"""The optional fields as they follow each other: in the order of their flags (errata R5)."""
LIST_ORDER = (*FLAG_ORDER[:3], FLAG_ORDER[4], FLAG_ORDER[3])
"""The other reading, dialect ``list-order``: as the specification lists them. The two differ only
where a message has both a reply-to field and a length."""

LAYERS = MappingProxyType({0: "messaging", 1: "streams", 2: "RPC", 3: "replicated object"})
"""Names of the destination layers; 4 to 63 have none yet."""


def _columns() -> tuple[Column, ...]:
    def plain(layout: Layout, name: str, kind: str) -> Column:
        field = layout[name]
        return Column(name, kind, field.doc, field.spec, field.unit)

    multiplexing = LENGTH["data_size"].spec
    source = REPLY_TO["reply_source"]
    return (
        Column("packet_offset", "offset", "where the packet begins in the stream", SPEC, "bytes"),
        Column("message_in_packet", "int32", "place of the message in its packet, from 0", SPEC),
        plain(TYPING, "typing", "int32"),
        Column("layer", "int32", "layer that handles it; null of other protocols", _TYPING),
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
        Column("data", "binary", "the data; of another protocol with its typing word", SPEC),
    )


COLUMNS = _columns()
"""The columns of an RMP row, in the order of the outside contract."""

DERIVED = MappingProxyType(
    {"typing": "the other columns", "layer_name": "layer", "data_size": "data"}
)
"""Columns that follow from others, and what they follow from: a row need not say them."""
