"""JMQ packets as GPackets, and back: the port that GPacket 3.5 sketches under "Use In S1MQ".

The GPacket's header has fields for the type, timestamp, sequence and bit flags. The rest follows
the four steps of the specification:

1. and 2. The other fields of JMQ's fixed and variable headers become properties with terse names
   (`TERSE`). A field with its default value is left out.
3. Properties of a control packet stay properties. No Java identifier begins with a dot, so a terse
   name never equals a name that JMS allows; a name that begins with a dot all the same gets another
   dot in front.
4. The properties of a JMS message are in the payload, in front of the body, as JMQ marshals them.

The port is lossless in both directions: a JMQ packet comes back with the same bytes, and so does
the GPacket of one. `to_jmq` refuses any other GPacket, however similar (errata G9).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from wireyard import java
from wireyard.errors import EncodeError
from wireyard.formats.gpacket import packet as gpacket
from wireyard.formats.jmq import packet as jmq
from wireyard.formats.jmq.layout import MESSAGE_TYPES
from wireyard.formats.jmq.reading import read_properties, write_properties
from wireyard.formats.jmq.trailer import read_stamps, write_stamps
from wireyard.formats.properties import Properties, Property
from wireyard.formats.property_rows import typed_properties


class Terse(NamedTuple):
    """A property for a field of a JMQ packet, with its name and type on the wire."""

    name: str
    type: str
    field: str
    doc: str


TERSE = (
    Terse(".v", "short", "version", "JMQ version; always there, it marks a ported packet"),
    Terse(".e", "long", "expiration", "when the message expires"),
    Terse(".a", "string", "source_ip", "address of the sender, 32 hexadecimal digits"),
    Terse(".h", "integer", "source_port", "port of the sender"),
    Terse(".o", "integer", "property_offset", "where JMQ properties began: the list's padding"),
    Terse(".p", "byte", "priority", "priority"),
    Terse(".x", "short", "encryption", "unused by JMQ"),
    Terse(".c", "long", "consumer_id", "consumer, or the id that ties a reply to its request"),
    Terse(".t", "long", "transaction_id", "transaction the packet belongs to"),
    Terse(".g", "long", "producer_id", "producer that sent it"),
    Terse(".l", "long", "delivery_time", "not to be delivered before"),
    Terse(".k", "integer", "delivery_count", "how often it was delivered"),
    Terse(".d", "string", "destination", "queue or topic name"),
    Terse(".D", "string", "destination_class", "Java class of the destination"),
    Terse(".m", "string", "message_id", "JMSMessageID chosen by the client"),
    Terse(".i", "string", "correlation_id", "JMSCorrelationID"),
    Terse(".r", "string", "reply_to", "JMSReplyTo destination"),
    Terse(".R", "string", "reply_to_class", "Java class of the reply-to destination"),
    Terse(".j", "string", "message_type", "JMSType"),
    Terse(".u", "object", "unknown_items", "byte[]: items of other types, as the list has them"),
    Terse(".w", "object", "raw_header", "byte[]: both JMQ headers, where the others lose them"),
    Terse(".b", "boolean", "short_objects", "JMQ properties have OBJECTs with lengths of 16 bits"),
    Terse(".y", "object", "timestamps", "byte[]: time stamps behind the body"),
    Terse(".n", "integer", "", "bytes of JMS properties in front of the body; absent if none"),
    Terse(
        ".s", "object", "", "byte[]: section of a control packet, where properties alone lose it"
    ),
)
"""The terse properties, in the order in which they are written."""

_BY_NAME = {terse.name: terse for terse in TERSE}
_FIELDS = tuple(terse for terse in TERSE if terse.field)
_VERSION, _SECTION_BYTES, _SECTION = _BY_NAME[".v"], _BY_NAME[".n"], _BY_NAME[".s"]
_DEFAULTS = {item.name: item.default for item in fields(jmq.Packet)}
_MAX_TEXT_BYTES = 0xFFFF
_ALWAYS_FITS = _MAX_TEXT_BYTES // 6
"""Characters: modified UTF-8 takes six bytes for one at most."""
_ITEM = struct.Struct(">HH")
_LONG_STRING = bytes.fromhex("aced0005 7c")
"""A serialized String up to its length, an integer of eight bytes."""
_BYTE_ARRAY = bytes.fromhex("aced0005 7572 0002 5b42 acf317f8060854e0 02 0000 78 70")
"""A serialized byte[] up to its length, an integer of four bytes."""


def to_gpacket(packet: jmq.Packet) -> gpacket.Packet:
    """Port a JMQ packet to a GPacket; raise an EncodeError if a value cannot be written."""
    entries = {}
    for terse in _FIELDS:
        value = getattr(packet, terse.field)
        if terse is _VERSION or value != _DEFAULTS[terse.field]:
            entries[terse.name] = _to_property(terse, value)
    payload = packet.body or b""
    if packet.properties is not None:
        section = write_properties(packet.version, packet.properties, packet.short_objects)
        if packet.packet_type in MESSAGE_TYPES:
            entries[_SECTION_BYTES.name] = _to_property(_SECTION_BYTES, len(section))
            payload = section + payload
        else:
            if section != _section_from_properties(packet):
                entries[_SECTION.name] = _to_property(_SECTION, section)
            for name, entry in packet.properties.items():
                # Another dot can make a name too long; then the section above has the property.
                own = "." + name if name.startswith(".") else name
                if len(java.encode_modified(own)) <= _MAX_TEXT_BYTES:
                    entries[own] = _fit_text(entry)
    return gpacket.Packet(
        packet_type=packet.packet_type,
        timestamp=packet.timestamp,
        sequence=packet.sequence,
        bit_flags=packet.bit_flags,
        properties=Properties(entries),
        payload=payload or None,
    )


def _section_from_properties(packet: jmq.Packet) -> bytes | None:
    """Return the section that `to_jmq` rebuilds from a control packet's properties alone.

    None if a name or a text may be too long for a property.
    """
    properties = Properties(packet.properties or {})
    longest = max(map(len, properties), default=0)
    if longest > _ALWAYS_FITS or any(
        _fit_text(entry) is not entry for entry in properties.values()
    ):
        return None
    if not properties:
        return b""
    return write_properties(packet.version, properties, packet.short_objects)


def to_jmq(packet: gpacket.Packet | gpacket.LinkPacket) -> jmq.Packet:
    """Port a GPacket back to the JMQ packet that it was made from.

    An EncodeError is raised if it was not made from a JMQ packet: a terse property is missing,
    unknown or has the wrong type, or the JMQ packet would be ported to other bytes. A DecodeError
    is raised if the JMQ properties in it are invalid in its JMQ version.
    """
    if isinstance(packet, gpacket.LinkPacket):
        raise EncodeError("packet", packet, "a link packet holds no JMQ packet")
    entries = typed_properties(packet.properties)
    if _VERSION.name not in entries:
        raise EncodeError(f"property {_VERSION.name}", None, "a ported packet has its JMQ version")
    values: dict[str, Any] = {
        terse.field: _from_property(terse, entries[terse.name])
        for terse in _FIELDS
        if terse.name in entries
    }
    properties, body = _properties_and_body(packet, entries, values)
    original = jmq.Packet(
        **values,
        packet_type=packet.packet_type,
        timestamp=packet.timestamp,
        sequence=packet.sequence,
        bit_flags=packet.bit_flags,
        properties=properties,
        body=body or None,
    )
    if gpacket.encode(to_gpacket(original)) != gpacket.encode(packet):
        raise EncodeError("packet", packet, "differs from the port of its JMQ packet")
    return original


def _properties_and_body(
    packet: gpacket.Packet, entries: Mapping[str, Property], values: Mapping[str, Any]
) -> tuple[Properties | None, bytes]:
    payload = packet.payload or b""
    short_objects = values.get("short_objects", False)
    read = partial(read_properties, values[_VERSION.field], start=0, short_objects=short_objects)
    own = dict(_own_entries(entries))
    if packet.packet_type not in MESSAGE_TYPES:
        if _SECTION.name in entries:
            return read(_from_property(_SECTION, entries[_SECTION.name])), payload
        return Properties(own) if own else None, payload
    if own:
        raise EncodeError("properties", list(own), "those of a message belong in its payload")
    if _SECTION_BYTES.name not in entries:
        return None, payload
    size = _from_property(_SECTION_BYTES, entries[_SECTION_BYTES.name])
    if not 0 <= size <= len(payload):
        raise EncodeError(f"property {_SECTION_BYTES.name}", size, f"{len(payload)} bytes at most")
    return read(payload[:size]), payload[size:]


def _own_entries(entries: Mapping[str, Property]) -> Iterator[tuple[str, Property]]:
    """Yield the properties of the JMQ packet itself, without the terse ones."""
    for name, entry in entries.items():
        if name.startswith(".."):
            yield name[1:], entry
        elif not name.startswith("."):
            yield name, entry
        elif name not in _BY_NAME:
            raise EncodeError(f"property {name}", entry.value, "no terse property has this name")


def _to_property(terse: Terse, value: Any) -> Property:
    try:
        return _fit_text(Property(terse.type, _WRITERS.get(terse.name, _unchanged)(value)))
    except (TypeError, ValueError, AttributeError, struct.error) as error:
        raise EncodeError(terse.field, value, str(error)) from None


def _from_property(terse: Terse, entry: Property) -> Any:
    kind: str = entry.type
    value: Any = entry.value
    long_text = terse.type == "string" and kind == "object"
    if kind != terse.type and not long_text:
        raise EncodeError(f"property {terse.name}", value, f"has type {kind}, not {terse.type}")
    try:
        return _READERS.get(terse.name, _unchanged)(_long_text(value) if long_text else value)
    except (ValueError, struct.error) as error:
        raise EncodeError(f"property {terse.name}", value, str(error)) from None


def _fit_text(entry: Property) -> Property:
    """Return a property, its text as a serialized String if it is longer than a string can be."""
    text: Any = entry.value
    if entry.type != "string" or len(text) <= _ALWAYS_FITS:
        return entry
    data = java.encode_modified(text)
    if len(data) <= _MAX_TEXT_BYTES:
        return entry
    return Property("object", _LONG_STRING + struct.pack(">q", len(data)) + data)


def _long_text(data: bytes) -> str:
    return java.decode_text(_length_prefixed(_LONG_STRING, 8, data))


def _array_bytes(data: bytes) -> bytes:
    return _length_prefixed(_BYTE_ARRAY, 4, data)


def _length_prefixed(head: bytes, width: int, data: bytes) -> bytes:
    """Return the bytes after `head` and a length of `width` bytes.

    Bytes after them are ignored, because a shipped writer leaves slack there.
    """
    start = len(head) + width
    size = int.from_bytes(data[len(head) : start], "big")
    if not data.startswith(head) or size > len(data) - start:
        raise ValueError(f"does not begin as {head.hex()}, or ends too early")
    return data[start : start + size]


def _unchanged(value: Any) -> Any:
    return value


def _byte_array(data: bytes) -> bytes:
    return _BYTE_ARRAY + struct.pack(">i", len(data)) + data


def _items_bytes(items: Iterable[tuple[int, bytes]]) -> bytes:
    return _byte_array(b"".join(_ITEM.pack(code, len(value)) + value for code, value in items))


def _items_of(data: bytes) -> tuple[tuple[int, bytes], ...]:
    data = _array_bytes(data)
    items = []
    at = 0
    while at < len(data):
        code, size = _ITEM.unpack_from(data, at)
        at += _ITEM.size
        if size > len(data) - at:
            raise ValueError(f"item {code} needs {size} bytes, {len(data) - at} left")
        items.append((code, data[at : at + size]))
        at += size
    return tuple(items)


_WRITERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        ".a": bytes.hex,
        ".u": _items_bytes,
        ".s": _byte_array,
        ".y": lambda stamps: _byte_array(write_stamps(stamps)),
    }
)
_READERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        ".a": bytes.fromhex,
        ".u": _items_of,
        ".s": _array_bytes,
        ".y": lambda data: read_stamps(_array_bytes(data)),
    }
)
"""Conversions of the fields whose property value differs from the field's value."""
