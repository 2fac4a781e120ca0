"""JMQ packets as frozen values: decode, encode, and rows.

`decode` accepts or raises; `read_row` is its lenient twin, which gives what could be read and the
error beside it. Both run the same steps, so a packet is malformed for one exactly when the other
raises.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from wireyard import java
from wireyard.errors import DecodeError, EncodeError, Malformed, Truncated, UnsupportedVersion
from wireyard.formats.base import Row, View
from wireyard.formats.jmq.items import destination_hash, encode_items, item_value, walk_items
from wireyard.formats.jmq.layout import (
    FLAGS,
    HEADER_BYTES,
    HEADERS,
    ITEMS,
    MAGIC,
    PACKET_TYPES,
    PREFIX_BYTES,
    SPEC,
    VERSIONS,
)
from wireyard.formats.message_id import address_text, sys_message_id_text
from wireyard.formats.properties import (
    Properties,
    Property,
    decode_properties,
    encode_properties,
    raw_section,
    section_if_said,
    typed_properties,
)

__all__ = [
    "Packet",
    "check_sections",
    "decode",
    "encode",
    "packet_of",
    "read_prefix",
    "read_properties",
    "read_row",
    "write_properties",
]

_HEAD = f"{SPEC}, fixed header"
_PREFIX = struct.Struct(">IHhi")
_NO_ADDRESS = bytes(10) + b"\xff\xff" + bytes(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """One JMQ packet; absent items are None.

    Sizes are not fields: they follow from the rest. `property_offset` is kept because writers pad
    the variable header differently; None lets `encode` choose.

    `raw_header` has the fixed and the variable header where the other fields alone are written to
    other bytes, such as items in another order (errata 39). `encode` takes it as long as it says
    what those fields say: a packet in which one was replaced is written anew.
    """

    version: int = 301
    packet_type: int
    expiration: int = 0
    timestamp: int = 0
    source_ip: bytes = _NO_ADDRESS
    source_port: int = 0
    sequence: int = 0
    property_offset: int | None = None
    priority: int = 5
    encryption: int = 0
    bit_flags: int = 0
    consumer_id: int = 0
    transaction_id: int | None = None
    producer_id: int | None = None
    delivery_time: int | None = None
    delivery_count: int | None = None
    destination: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    message_type: str | None = None
    destination_class: str | None = None
    reply_to_class: str | None = None
    unknown_items: tuple[tuple[int, bytes], ...] = ()
    properties: Properties | None = None
    body: bytes | None = None
    raw_header: bytes | None = None
    short_objects: bool = False
    """Whether an OBJECT property has a length of 16 bits (errata 41)."""

    @property
    def packet_type_name(self) -> str | None:
        """Name of the packet type, None if it has none."""
        return PACKET_TYPES.get(self.packet_type)

    @property
    def flags(self) -> str:
        """Letters of the set flags, in bit order from Q."""
        return flag_letters(self.bit_flags)

    @property
    def destination_hash(self) -> int | None:
        """Number of the destination (errata 36), None if the packet has none."""
        return (
            None if self.destination is None else destination_hash(self.destination, self.bit_flags)
        )

    @property
    def sys_message_id(self) -> str:
        """The id that identifies the message, whatever the client chose to call it."""
        address = address_text(self.source_ip)
        return sys_message_id_text(self.sequence, address, self.source_port, self.timestamp)


_FIELDS = tuple(item.name for item in fields(Packet) if item.name != "short_objects")
_ELSEWHERE = ("property_offset", "properties", "body", "raw_header", "short_objects")
_OF_HEADERS = {item.name: item.default for item in fields(Packet) if item.name not in _ELSEWHERE}
"""What the two headers say of a packet, with what it is where they do not."""


def flag_letters(bit_flags: int) -> str:
    """Return the letters of the set flags, in bit order from Q."""
    return "".join(letter for letter, bit in FLAGS.items() if bit_flags & bit)


def decode(view: View, context: int = 0) -> Packet:
    """Decode one whole packet; the context tells whether it has short objects.

    Raises
    ------
    DecodeError
        The first rule the packet breaks.
    """
    values: Row = {}
    _read(view, values, bool(context))
    found = {name: values[name] for name in _FIELDS if name in values}
    return Packet(**found, short_objects=bool(context))


def read_row(view: View, context: int = 0) -> tuple[Row, DecodeError | None]:
    """Read one whole packet into its row; the error is None for a well-formed one.

    Values that could not be read are None.
    """
    values: Row = {}
    error: DecodeError | None = None
    try:
        _read(view, values, bool(context))
        if "properties" in values:
            write = partial(_encode_section, values["version"], short_objects=bool(context))
            values.update(raw_section(values["properties"], write))
    except DecodeError as found:
        error = found
    if "source_ip" in values:
        values["source_ip_text"] = address_text(values["source_ip"])
        values["sys_message_id"] = sys_message_id_text(
            values["sequence"],
            values["source_ip_text"],
            values["source_port"],
            values["timestamp"],
        )
        values["flags"] = flag_letters(values["bit_flags"])
    if "destination" in values:
        values["destination_hash"] = destination_hash(values["destination"], values["bit_flags"])
    values["packet_type_name"] = PACKET_TYPES.get(values.get("packet_type", 0))
    if "unknown_items" in values:
        values["unknown_items"] = [
            {"type": code, "value": data} for code, data in values["unknown_items"]
        ]
    return values, error


def _read(view: View, values: Row, short_objects: bool) -> None:
    """Fill `values` section by section; what is there when an error rises is right."""
    version = read_prefix(view, values)
    header = _read_header(view, version, values)
    offset, size = header["property_offset"], header["property_size"]
    body_start = offset + size
    values["body_size"] = len(view) - body_start
    values["body"] = bytes(view[body_start:]) or None
    error: DecodeError | None = None
    try:
        _read_items(view, offset, values)
    except DecodeError as found:
        error = found  # The properties can still be read: only the first error is told.
    try:
        if size:
            section = bytes(view[offset:body_start])
            values["properties"] = read_properties(version, section, offset, short_objects)
    except DecodeError as found:
        error = error or found
    if error:
        raise error
    if header["bit_flags"] != values["bit_flags"] or not _is_written(view, offset, values):
        values["raw_header"] = bytes(view[:offset])


def _read_header(view: View, version: int, values: Row) -> dict[str, Any]:
    """Read the fixed header and check that the sections fit; return it as it stands there."""
    layout = HEADERS[version]
    header: dict[str, Any] = layout.unpack(view)
    values.update(header)
    del values["magic"]
    if version == 103:
        values["bit_flags"] &= 0x00FF  # 2.0 clients left garbage above (errata 27).
    check_sections(layout["property_offset"].offset, header)
    return header


def _is_written(view: View, offset: int, values: Row) -> bool:
    """Tell whether the items of a packet are written to the variable header it has."""
    try:
        return encode_items(values.get) == view[HEADER_BYTES:offset]
    except EncodeError:
        return False


def read_prefix(view: View, values: Row) -> int:
    """Read what no version may change and return the version, if it is one of ours."""
    if len(view) < PREFIX_BYTES:
        raise Truncated("jmq", "fixed header", 0, HEADER_BYTES, len(view), _HEAD)
    magic, version, packet_type, size = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise Malformed("jmq", "magic", 0, f"is {magic}, not {MAGIC}", _HEAD, "bad_magic")
    values.update(version=version, packet_type=packet_type, size=size)
    if size < HEADER_BYTES or size > len(view):
        raise Truncated("jmq", "packet", 0, max(size, HEADER_BYTES), len(view), _HEAD)
    if size < len(view):
        raise Malformed("jmq", "size", 8, f"is {size}, {len(view)} bytes were given", _HEAD)
    if version not in HEADERS:
        known = ", ".join(map(str, VERSIONS))
        raise UnsupportedVersion("jmq", "version", 4, f"is {version}, not one of {known}", _HEAD)
    return int(version)


def check_sections(at: int, header: Mapping[str, int]) -> None:
    """Check that the sections fit in the packet; the property offset stands at `at`."""
    offset, size, total = header["property_offset"], header["property_size"], header["size"]
    if not HEADER_BYTES <= offset <= total:
        problem = f"is {offset}, not between {HEADER_BYTES} and the size, {total}"
        raise Malformed("jmq", "property offset", at, problem, _HEAD)
    if not 0 <= size <= total - offset:
        problem = f"is {size}, {total - offset} bytes are left after the property offset"
        raise Malformed("jmq", "property size", at + 4, problem, _HEAD)


def _read_items(view: View, stop: int, values: Row) -> None:
    """Read the variable header; of two items of one type the later counts."""
    for span in walk_items(view, HEADER_BYTES, stop):
        item = ITEMS.get(span.code)
        if item is not None:
            value = item_value(view, span)
            if item.name != "transaction_id" or values["version"] != 103:
                values[item.name] = value  # In 103 the header wins (errata 2).
        elif span.code:
            unknown = values.get("unknown_items", ())
            values["unknown_items"] = (*unknown, (span.code, item_value(view, span)))


def read_properties(
    version: int, data: bytes, start: int, short_objects: bool = False
) -> Properties:
    """Read a property section in the encoding of its version; it stands at `start`."""
    if version == 301:
        return decode_properties(data, "jmq", start, SPEC, short_objects)
    try:
        entries = java.read_hashtable(data)
    except java.JavaError as error:
        spec = f"{SPEC}, history, 3.0.1"
        at = start + error.offset
        raise Malformed("jmq", error.field, at, error.problem, spec, error.code) from None
    found = {name: Property(*entry) for name, entry in entries.items()}
    return Properties(found, data, short_objects)


def encode(packet: Packet) -> bytes:
    """Encode a packet: one that was decoded to its bytes, another as the shipped classes would.

    A `property_offset` that leaves room for up to four bytes of padding is honoured.

    Raises
    ------
    EncodeError
        A value the version's header, items or properties cannot hold.
    """
    layout = HEADERS.get(packet.version)
    if layout is None:
        raise EncodeError("version", packet.version, f"one of {VERSIONS}")
    section = write_properties(packet.version, packet.properties, packet.short_objects)
    body = b"" if packet.body is None else packet.body
    if not isinstance(body, bytes):
        raise EncodeError("body", body, "a body is bytes")
    if packet.raw_header is not None:
        if not isinstance(packet.raw_header, bytes):
            raise EncodeError("raw_header", packet.raw_header, "headers are bytes")
        whole = packet.raw_header + section + body
        if _says(whole, packet):
            return whole
    items = encode_items(partial(getattr, packet))
    offset = HEADER_BYTES + len(items)
    computed = {
        "magic": MAGIC,
        "size": offset + len(section) + len(body),
        "property_offset": offset,
        "property_size": len(section),
        "transaction_id": packet.transaction_id or 0,
    }
    values = []
    for field in layout.fields:
        value = computed[field.name] if field.name in computed else getattr(packet, field.name)
        _check_value(field.name, field.code, value)
        values.append(value)
    return b"".join((layout.struct.pack(*values), items, section, body))


def _says(view: bytes, packet: Packet) -> bool:
    """Tell whether the fixed and the variable header of `view` say what a packet's fields say."""
    values: Row = {}
    try:
        version = read_prefix(view, values)
        header = _read_header(view, version, values)
        _read_items(view, header["property_offset"], values)
    except DecodeError:
        return False
    offset = header["property_offset"]
    if offset != len(packet.raw_header or b"") or packet.property_offset not in (None, offset):
        return False
    # Columns spell lone surrogates out.
    return all(
        _shown(values.get(name, default)) == _shown(getattr(packet, name))
        for name, default in _OF_HEADERS.items()
    )


def _shown(value: Any) -> Any:
    return java.storable(value) if isinstance(value, str) else value


def _check_value(name: str, code: str, value: object) -> None:
    """Refuse a header value that `struct` would refuse, or worse, pad or cut."""
    if code == "16s":
        if not isinstance(value, bytes) or len(value) != 16:
            raise EncodeError(name, value, "an address has 16 bytes")
        return
    try:
        struct.pack(">" + code, value)
    except struct.error as error:
        raise EncodeError(name, value, str(error)) from None


def write_properties(
    version: int, properties: Properties | None, short_objects: bool = False
) -> bytes:
    """Write a property section in the encoding of its version: as it was read, if it was."""
    if properties is None:
        return b""
    section = properties.section
    if (
        section is not None
        and (section[:2] == b"\xac\xed") == (version != 301)
        and properties.short_objects == short_objects
    ):
        return section
    return _encode_section(version, properties, short_objects)


def _encode_section(version: int, properties: Properties, short_objects: bool) -> bytes:
    if version == 301:
        return encode_properties(properties, short_objects)
    return java.write_hashtable(properties)


def packet_of(row: Mapping[str, Any], context: int = 0) -> Packet:
    """Return the packet a row describes.

    Raises
    ------
    EncodeError
        A row without a packet type, or with properties that are not of their type.
    """
    values = {name: row[name] for name in _FIELDS if row.get(name) is not None}
    if "packet_type" not in values:
        raise EncodeError("packet_type", None, "every packet has a type")
    if "properties" in values:
        said = typed_properties(values["properties"])
        version = values.get("version", VERSIONS[-1])
        read = partial(read_properties, version, start=0, short_objects=bool(context))
        values["properties"] = section_if_said(said, row.get("raw_properties"), read)
    if "unknown_items" in values:
        values["unknown_items"] = tuple(
            (item["type"], item["value"]) for item in values["unknown_items"]
        )
    return Packet(**values, short_objects=bool(context))
