"""JMQ packets as frozen values: decoding, encoding, and conversion to and from rows.

`decode` returns a packet or raises. `read_row` never raises: it returns the values that could be
read, and the error. Both run the same code, so `decode` raises exactly if the row has an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from wireyard import java
from wireyard.errors import DecodeError, EncodeError
from wireyard.formats.base import Row, View
from wireyard.formats.fields import (
    PlainFields,
    Takes,
    bits_of,
    code_of,
    flag,
    flag_letters,
    maybe,
    milliseconds,
    octets,
    pack_header,
    whole,
)
from wireyard.formats.jmq.body import PlainBody, body_bytes
from wireyard.formats.jmq.items import (
    destination_hash,
    encode_items,
    item_pairs,
)
from wireyard.formats.jmq.layout import (
    FLAGS,
    FLAGS_OF_103,
    HEADER_BYTES,
    HEADERS,
    MAGIC,
    PACKET_TYPES,
    SECRET_BODIES,
    VERSIONS,
)
from wireyard.formats.jmq.reading import (
    SHORT_OBJECTS,
    encode_section,
    is_cut,
    read_cut_packet,
    read_header,
    read_items,
    read_packet,
    read_prefix,
    read_properties,
    write_properties,
)
from wireyard.formats.jmq.trailer import (
    Stamp,
    size_message,
    stamp_rows,
    stamps_of,
    stamps_of_rows,
    write_stamps,
)
from wireyard.formats.message_id import address_bytes, address_text, sys_message_id_text
from wireyard.formats.properties import (
    PlainProperties,
    Properties,
    plain_properties,
)
from wireyard.formats.property_rows import matching_section, raw_section, typed_properties

_NO_ADDRESS = bytes(10) + b"\xff\xff" + bytes(4)


def source_address(name: str, value: Any) -> bytes:
    """Return the 16 bytes of an address, given as bytes or as text."""
    if isinstance(value, str):
        try:
            return address_bytes(value)
        except ValueError as error:
            raise EncodeError(name, value, str(error)) from None
    if not isinstance(value, bytes) or len(value) != 16:
        raise EncodeError(name, value, "an address has 16 bytes, or is text")
    return value


def _as_given(_name: str, value: Any) -> Any:
    """Leave a body for `__post_init__`, because its conversion depends on other fields."""
    return value


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Packet(PlainFields):
    """One JMQ packet; absent items are None.

    The type may be given by its name, flags by their letters, times as `datetime`, the address as
    text, properties as a dict of plain values, and the body as text, bytes, a dict, or a list,
    depending on the type.

    Sizes are not fields, because they follow from the others. `property_offset` preserves the
    padding of the variable header, which differs between writers without a meaning; if it is None,
    `encode` chooses.

    `raw_header` has the bytes of the fixed and the variable header if the other fields would be
    encoded to other bytes, for example with items in another order (errata 39). `encode` uses it
    while it agrees with those fields; after one was replaced, the header is encoded from them.
    """

    version: Takes[int, int] = Takes(whole, 301)
    packet_type: Takes[int | str, int] = Takes(code_of(PACKET_TYPES))
    expiration: Takes[int | datetime, int] = Takes(milliseconds, 0)
    timestamp: Takes[int | datetime, int] = Takes(milliseconds, 0)
    source_ip: Takes[bytes | str, bytes] = Takes(source_address, _NO_ADDRESS)
    source_port: int = 0
    sequence: int = 0
    property_offset: int | None = field(default=None, compare=False, repr=False)
    priority: int = 5
    encryption: int = 0
    bit_flags: Takes[int | str, int] = Takes(bits_of(FLAGS), 0)
    consumer_id: int = 0
    transaction_id: int | None = None
    producer_id: int | None = None
    delivery_time: Takes[int | datetime | None, int | None] = Takes(maybe(milliseconds), None)
    delivery_count: int | None = None
    destination: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    message_type: str | None = None
    destination_class: str | None = None
    reply_to_class: str | None = None
    unknown_items: Takes[Sequence[tuple[int, bytes]], tuple[tuple[int, bytes], ...]] = Takes(
        item_pairs, ()
    )
    properties: Takes[PlainProperties | None, Properties | None] = Takes(plain_properties, None)
    body: Takes[PlainBody | None, bytes | None] = Takes(_as_given, None)
    timestamps: Takes[Sequence[Any] | None, tuple[Stamp, ...] | None] = Takes(stamps_of, None)
    """Stamps behind the body, only in the dialect `timestamps`; None if the packet has no size of
    its message (errata 37)."""
    raw_header: bytes | None = field(default=None, compare=False, repr=False)
    short_objects: Takes[bool, bool] = Takes(flag, False)
    """Whether an OBJECT property has a length of 16 bits (errata 41)."""

    _spelled: ClassVar[Mapping[str, str]] = {
        "packet_type": "packet_type_name",
        "source_ip": "source_ip_text",
        "bit_flags": "flags",
    }

    def __post_init__(self) -> None:
        """Convert the arguments, and add what a packet always has.

        This is a transaction id in the header of 103, and the size of a message before its stamps.
        """
        PlainFields.__post_init__(self)
        object.__setattr__(self, "body", body_bytes(self.packet_type, self.bit_flags, self.body))
        if self.version == 103 and self.transaction_id is None:
            object.__setattr__(self, "transaction_id", 0)
        if self.timestamps is not None:
            items = size_message(self.unknown_items, len(self.body or b""))
            object.__setattr__(self, "unknown_items", items)

    @property
    def packet_type_name(self) -> str | None:
        """Name of the packet type, None if it is unknown."""
        return PACKET_TYPES.get(self.packet_type)

    @property
    def flags(self) -> str:
        """Letters of the set flags, in bit order from Q."""
        return flag_letters(self.bit_flags, FLAGS)

    @property
    def destination_hash(self) -> int | None:
        """Number of the destination (errata 36), None if the packet has none."""
        return (
            None if self.destination is None else destination_hash(self.destination, self.bit_flags)
        )

    @property
    def source_ip_text(self) -> str:
        """The address as the shipped classes print it."""
        return address_text(self.source_ip)

    @property
    def sys_message_id(self) -> str:
        """The SysMessageID, which identifies the message."""
        return sys_message_id_text(
            self.sequence, self.source_ip_text, self.source_port, self.timestamp
        )

    def _is_secret(self, name: str) -> bool:
        return name == "body" and self.packet_type in SECRET_BODIES


_FIELDS = tuple(item.name for item in fields(Packet) if item.name != "short_objects")
_ELSEWHERE = (
    "property_offset", "properties", "body", "timestamps", "raw_header", "short_objects",
)  # fmt: skip
_OF_HEADERS = {item.name: item.default for item in fields(Packet) if item.name not in _ELSEWHERE}
"""The fields that the two headers hold, with their defaults."""


def decode(view: View, context: int = 0) -> Packet:
    """Decode one whole packet; its context is that of its dialect.

    Raises
    ------
    DecodeError
        The first rule that the packet breaks.
    """
    values: Row = {}
    read_packet(view, values, context)
    known = {name: values[name] for name in _FIELDS if name in values}
    return Packet(**known, short_objects=context == SHORT_OBJECTS)


def read_row(view: View, context: int = 0) -> tuple[Row, DecodeError | None]:
    """Read one packet into its row; the error is None for a whole and well-formed one.

    Values that could not be read are None.
    """
    values: Row = {}
    error: DecodeError | None = None
    try:
        read_packet(view, values, context)
        if "properties" in values:
            write = partial(
                encode_section, values["version"], short_objects=context == SHORT_OBJECTS
            )
            values.update(raw_section(values["properties"], write))
    except DecodeError as raised:
        error = raised
        if is_cut(view, values):
            with suppress(DecodeError):
                read_cut_packet(view, values, context)
    if "source_ip" in values:
        values["source_ip_text"] = address_text(values["source_ip"])
        values["sys_message_id"] = sys_message_id_text(
            values["sequence"],
            values["source_ip_text"],
            values["source_port"],
            values["timestamp"],
        )
        values["flags"] = flag_letters(values["bit_flags"], FLAGS)
    if "destination" in values:
        values["destination_hash"] = destination_hash(values["destination"], values["bit_flags"])
    values["packet_type_name"] = PACKET_TYPES.get(values.get("packet_type", 0))
    if values.get("timestamps") is not None:
        values["timestamps"] = stamp_rows(values["timestamps"])
    if "unknown_items" in values:
        values["unknown_items"] = [
            {"type": code, "value": data} for code, data in values["unknown_items"]
        ]
    return values, error


def encode(packet: Packet) -> bytes:
    """Encode a packet: a decoded one to its original bytes, others as the shipped classes do.

    A `property_offset` is used if it leaves up to four bytes of padding.

    Raises
    ------
    EncodeError
        A value that does not fit the header, the items or the properties of the version.
    """
    if packet.version not in HEADERS:
        raise EncodeError("version", packet.version, f"one of {VERSIONS}")
    layout = HEADERS[packet.version]
    section = write_properties(packet.version, packet.properties, packet.short_objects)
    body = packet.body or b""
    stamps = packet.timestamps
    if stamps is not None:
        body += write_stamps(stamps)
    head = maybe(octets)("raw_header", packet.raw_header)
    if head is not None and _matches(head + section + body, len(head), packet):
        return bytes(head + section + body)
    items = encode_items(partial(getattr, packet))
    offset = HEADER_BYTES + len(items)
    computed = {
        "magic": MAGIC,
        "size": offset + len(section) + len(body),
        "property_offset": offset,
        "property_size": len(section),
    }
    header = pack_header(layout, packet, computed)
    if packet.version == 103 and packet.bit_flags > FLAGS_OF_103:
        raise EncodeError("bit_flags", packet.bit_flags, "103 has the flags Q to F only")
    return b"".join((header, items, section, body))


def _matches(view: bytes, offset: int, packet: Packet) -> bool:
    """Return whether the headers of `view`, which end at `offset`, agree with a packet's fields."""
    values: Row = {}
    try:
        version = read_prefix(view, values)
        header = read_header(view, version, values)
        read_items(view, header["property_offset"], values)
    except DecodeError:
        return False
    wanted = maybe(whole)("property_offset", packet.property_offset)
    return (
        header["property_offset"] == offset
        and wanted in (None, offset)
        and all(
            _is_same(values.get(name, default), getattr(packet, name))
            for name, default in _OF_HEADERS.items()
        )
    )


def _is_same(decoded: Any, held: Any) -> bool:
    """Return whether a field equals a header's value; its lone surrogates may be escaped."""
    if isinstance(decoded, str) and isinstance(held, str):
        return java.storable(decoded) == java.storable(held)
    return type(decoded) is type(held) and bool(decoded == held)


def packet_of(row: Mapping[str, Any], context: int = 0) -> Packet:
    """Return the packet of a row.

    An EncodeError is raised for a missing packet type, or a property whose value does not belong to
    its type.
    """
    values = {name: row[name] for name in _FIELDS if row.get(name) is not None}
    if "packet_type" not in values:
        raise EncodeError("packet_type", None, "every packet has a type")
    if "properties" in values:
        properties = typed_properties(values["properties"])
        version = values.get("version", VERSIONS[-1])
        read = partial(read_properties, version, start=0, short_objects=context == SHORT_OBJECTS)
        values["properties"] = matching_section(properties, row.get("raw_properties"), read)
    if "unknown_items" in values:
        values["unknown_items"] = tuple(
            (item["type"], item["value"]) for item in values["unknown_items"]
        )
    if "timestamps" in values:
        values["timestamps"] = stamps_of_rows("timestamps", values["timestamps"])
    return Packet(**values, short_objects=context == SHORT_OBJECTS)
