"""The sections of JMQ packets, read into values by name; the property section is written here too.

Each section is read by a function of its own. The values before an error are valid.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from wireyard import java
from wireyard.errors import DecodeError, EncodeError, Malformed, Truncated, UnsupportedVersion
from wireyard.formats.base import Row, View
from wireyard.formats.jmq.items import encode_items, item_value, walk_items
from wireyard.formats.jmq.layout import (
    FLAGS_OF_103,
    HEADER_BYTES,
    HEADERS,
    ITEMS,
    MAGIC,
    PREFIX_BYTES,
    SECRET_BODIES,
    SPEC,
    VERSIONS,
    least_bytes,
)
from wireyard.formats.jmq.trailer import stamps_in
from wireyard.formats.properties import (
    Properties,
    Property,
    decode_properties,
    encode_properties,
)

SHORT_OBJECTS: Final = 1
STAMPS: Final = 2
"""The contexts of the dialects: short objects, and time stamps behind the body."""
_HEAD = f"{SPEC}, fixed header"
_PREFIX = struct.Struct(">IHhi")


def read_packet(view: View, values: Row, context: int) -> None:
    """Fill `values` section by section."""
    version = read_prefix(view, values)
    header = read_header(view, version, values)
    offset, size = header["property_offset"], header["property_size"]
    body_start = offset + size
    values["body_size"] = len(view) - body_start
    values["body"] = bytes(view[body_start:]) or None
    error: DecodeError | None = None
    try:
        read_items(view, offset, values)
    except DecodeError as raised:
        error = raised  # The properties can still be read; only the first error is reported.
    try:
        if size:
            section = bytes(view[offset:body_start])
            values["properties"] = read_properties(
                version, section, offset, context == SHORT_OBJECTS
            )
    except DecodeError as raised:
        if values["packet_type"] in SECRET_BODIES:  # Java's names may be parts of the secret.
            where = raised.offset, "cannot be read", raised.spec, raised.code
            raised = Malformed("jmq", "properties", *where)
        error = error or raised
    if context == STAMPS and error is None:
        items = values.get("unknown_items", ())
        body, values["timestamps"] = stamps_in(items, bytes(view[body_start:]), body_start)
        values.update(body_size=len(body), body=body or None)
    if error:
        raise error
    if header["bit_flags"] != values["bit_flags"] or not _is_written(view, offset, values):
        values["raw_header"] = bytes(view[:offset])


def is_cut(view: View, values: Row) -> bool:
    """Return whether a packet goes on behind the view, by the size in its first bytes."""
    return values.get("version") in HEADERS and values["size"] > len(view)


def read_cut_packet(view: View, values: Row, context: int) -> None:
    """Fill `values` with the headers and the properties that are in the view, not with the body."""
    if len(view) < HEADER_BYTES:
        return
    header = read_header(view, values["version"], values)
    offset, size = header["property_offset"], header["property_size"]
    read_items(view, min(offset, len(view)), values)
    if 0 < size <= len(view) - offset:
        section = bytes(view[offset : offset + size])
        values["properties"] = read_properties(
            values["version"], section, offset, context == SHORT_OBJECTS
        )


def read_header(view: View, version: int, values: Row) -> dict[str, Any]:
    """Read the fixed header and check that the sections fit; return its unchanged fields."""
    layout = HEADERS[version]
    header: dict[str, Any] = layout.unpack(view)
    values.update(header)
    del values["magic"]
    if version == 103:
        values["bit_flags"] &= FLAGS_OF_103  # 2.0 clients left garbage above (errata 27).
    check_sections(layout["property_offset"].offset, header)
    return header


def _is_written(view: View, offset: int, values: Row) -> bool:
    """Return whether the items of a packet are encoded to the variable header that it has."""
    try:
        return encode_items(values.get) == view[HEADER_BYTES:offset]
    except EncodeError:
        return False


def read_prefix(view: View, values: Row) -> int:
    """Read magic, version, type and size; return the version, which has to be a known one."""
    if len(view) < PREFIX_BYTES:
        raise Truncated("jmq", "fixed header", 0, HEADER_BYTES, len(view), _HEAD)
    magic, version, packet_type, size = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise Malformed("jmq", "magic", 0, f"is {magic}, not {MAGIC}", _HEAD, "bad_magic")
    values.update(version=version, packet_type=packet_type, size=size)
    least = least_bytes(version)
    if size < least or size > len(view):
        raise Truncated("jmq", "packet", 0, max(size, least), len(view), _HEAD)
    if size < len(view):
        raise Malformed("jmq", "size", 8, f"is {size}, {len(view)} bytes were given", _HEAD)
    if version not in HEADERS:
        known = ", ".join(map(str, VERSIONS))
        raise UnsupportedVersion("jmq", "version", 4, f"is {version}, not one of {known}", _HEAD)
    return int(version)


def check_sections(at: int, header: Mapping[str, int]) -> None:
    """Check that the sections fit into the packet; the property offset is at `at`."""
    offset, size, total = header["property_offset"], header["property_size"], header["size"]
    if not HEADER_BYTES <= offset <= total:
        problem = f"is {offset}, not between {HEADER_BYTES} and the size, {total}"
        raise Malformed("jmq", "property offset", at, problem, _HEAD)
    if not 0 <= size <= total - offset:
        problem = f"is {size}, {total - offset} bytes are left after the property offset"
        raise Malformed("jmq", "property size", at + 4, problem, _HEAD)


def read_items(view: View, stop: int, values: Row) -> None:
    """Read the variable header; of two items of one type the last counts."""
    for span in walk_items(view, HEADER_BYTES, stop):
        item = ITEMS.get(span.code)
        if item is not None:
            value = item_value(view, span)
            if item.name != "transaction_id" or values["version"] != 103:
                values[item.name] = value  # In 103 that of the header counts (errata 2).
        elif span.code:
            unknown = values.get("unknown_items", ())
            values["unknown_items"] = (*unknown, (span.code, item_value(view, span)))


def read_properties(
    version: int, data: bytes, start: int, short_objects: bool = False
) -> Properties:
    """Read a property section at `start` of its packet, in the encoding of its version."""
    if version == 301:
        return decode_properties(data, "jmq", start, SPEC, short_objects)
    try:
        entries = java.read_hashtable(data)
    except java.JavaError as error:
        spec = f"{SPEC}, history, 3.0.1"
        at = start + error.offset
        raise Malformed("jmq", error.field, at, error.problem, spec, error.code) from None
    properties = {name: Property(*entry) for name, entry in entries.items()}
    return Properties(properties, data, short_objects)


def write_properties(
    version: int, properties: Properties | None, short_objects: bool = False
) -> bytes:
    """Encode a property section for its version; a decoded one to its original bytes."""
    if properties is None:
        return b""
    section = properties.section
    if (
        section is not None
        and (section[:2] == b"\xac\xed") == (version != 301)
        and properties.short_objects == short_objects
    ):
        return section
    return encode_section(version, properties, short_objects)


def encode_section(version: int, properties: Properties, short_objects: bool) -> bytes:
    """Encode a property section anew."""
    if version == 301:
        return encode_properties(properties, short_objects)
    return java.write_hashtable(properties)
