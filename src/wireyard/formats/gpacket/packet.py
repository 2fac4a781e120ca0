"""GPackets and link packets as frozen values: decoding, encoding, and conversion to and from rows.

`decode` returns a packet or raises. `read_row` never raises: it returns the values that could be
read, and the error. Both run the same code, so `decode` raises exactly if the row has an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from wireyard.errors import DecodeError, EncodeError, Malformed, Truncated, UnsupportedVersion
from wireyard.formats.base import Row, View
from wireyard.formats.fields import (
    PlainFields,
    Takes,
    bits_of,
    code_of,
    flag,
    flag_letters,
    milliseconds,
    octets_or_none,
    pack_header,
    whole,
)
from wireyard.formats.framing import checked_size
from wireyard.formats.gpacket.layout import (
    DOCUMENTED,
    FLAGS,
    HEADER_BYTES,
    HEADERS,
    LINK,
    LINK_BYTES,
    LINK_HEADER,
    LINK_TYPES,
    LINK_VERSION,
    MAGIC,
    MAGIC_BYTES,
    MAX_LINK_BYTES,
    PACKET_TYPES,
    PORTED_FLAGS,
    PORTED_NAME,
    PORTED_TYPES,
    PREFIX_BYTES,
    SHIPPED,
    SPEC,
    VERSION,
    least_bytes,
)
from wireyard.formats.properties import (
    PlainProperties,
    Properties,
    decode_properties,
    encode_properties,
    plain_properties,
)
from wireyard.formats.property_rows import matching_section, raw_section, typed_properties
from wireyard.layout import Layout

_HEAD = f"{SPEC}, packet format"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Packet(PlainFields):
    """One GPacket; sizes are not fields, because they follow from the others.

    The type may be given by its name, flags by their letters, the time as a `datetime`, and
    properties as a dict of plain values.
    """

    version: int = VERSION
    packet_type: Takes[int | str, int] = Takes(code_of(PACKET_TYPES))
    timestamp: Takes[int | datetime, int] = Takes(milliseconds, 0)
    sequence: int = 0
    bit_flags: Takes[int | str, int] = Takes(bits_of(FLAGS), 0)
    header_order: str = SHIPPED
    """Order of the header fields: ``shipped`` or ``documented``."""
    properties: Takes[PlainProperties | None, Properties | None] = Takes(plain_properties, None)
    payload: Takes[bytes | None, bytes | None] = Takes(octets_or_none, None)
    short_objects: Takes[bool, bool] = Takes(flag, False)
    """Whether an OBJECT property has a length of 16 bits (errata 41)."""

    _spelled: ClassVar[Mapping[str, str]] = {
        "packet_type": "packet_type_name",
        "bit_flags": "flags",
    }

    @property
    def packet_type_name(self) -> str | None:
        """Name of the packet type, None if it has none."""
        return _names(self.properties)[0].get(self.packet_type)

    @property
    def flags(self) -> str:
        """Letters of the set flags, in bit order."""
        return _letters(self.bit_flags, self.properties)

    def _shown(self, name: str, value: Any) -> str:
        is_other = name in self._spelled and is_ported(self.properties)
        return repr(value) if is_other else PlainFields._shown(self, name, value)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LinkPacket(PlainFields):
    """One link packet: the packets by which two brokers open their connection, before GPackets."""

    version: ClassVar[int] = LINK_VERSION
    packet_type: Takes[int | str, int] = Takes(code_of(LINK_TYPES))
    destination_id: int = 0
    bit_flags: int = 0
    payload: Takes[bytes | None, bytes | None] = Takes(octets_or_none, None)

    _spelled: ClassVar[Mapping[str, str]] = {"packet_type": "packet_type_name"}

    @property
    def packet_type_name(self) -> str | None:
        """Name of the packet type, None if it has none."""
        return LINK_TYPES.get(self.packet_type)


_FIELDS = tuple(item.name for item in fields(Packet) if item.name != "short_objects")
_LINK_FIELDS = tuple(item.name for item in fields(LinkPacket))


def is_ported(properties: Properties | None) -> bool:
    """Return whether a packet with these properties is a ported JMQ packet (errata G11)."""
    name, entry = next(iter((properties or {}).items()), (None, None))
    return name == PORTED_NAME and entry is not None and entry.type == "short"


def _names(properties: Properties | None) -> tuple[Mapping[int, str], Mapping[str, int]]:
    """Return the names of packet types, and the bits of flag letters."""
    return (PORTED_TYPES, PORTED_FLAGS) if is_ported(properties) else (PACKET_TYPES, FLAGS)


def _letters(bit_flags: int, properties: Properties | None) -> str:
    return flag_letters(bit_flags, _names(properties)[1])


def header_of(prefix: bytes) -> Layout | None:
    """Return the layout of the header that begins with these `PREFIX_BYTES`, None if none does.

    The magic decides, in either position; only a packet without one can be a link packet. The
    version is not checked, so that packets of unknown versions are framed too.
    """
    if prefix[:4] == MAGIC_BYTES:
        return HEADERS[DOCUMENTED]
    if prefix[8:12] == MAGIC_BYTES:
        return HEADERS[SHIPPED]
    if prefix[:2] == LINK_VERSION.to_bytes(2, "big"):
        return LINK_HEADER
    return None


def decode(view: View, context: int = 0) -> Packet | LinkPacket:
    """Decode one whole packet; a context of 1 means short objects.

    Raises
    ------
    DecodeError
        The first rule that the packet breaks.
    """
    values: Row = {}
    _read(view, values, bool(context))
    if "format" in values:
        return LinkPacket(**{name: values[name] for name in _LINK_FIELDS})
    known = {name: values[name] for name in _FIELDS if name in values}
    return Packet(**known, short_objects=bool(context))


def read_row(view: View, context: int = 0) -> tuple[Row, DecodeError | None]:
    """Read one packet into its row; the error is None for a whole and well-formed one.

    Values that could not be read are None. A link packet has flags as a number only.
    """
    values: Row = {}
    error: DecodeError | None = None
    try:
        _read(view, values, bool(context))
        if "properties" in values:
            write = partial(encode_properties, short_objects=bool(context))
            values.update(raw_section(values["properties"], write))
    except DecodeError as raised:
        error = raised
    properties = values.get("properties")
    names = LINK_TYPES if "format" in values else _names(properties)[0]
    values["packet_type_name"] = names.get(values.get("packet_type", 0))
    if "bit_flags" in values and "format" not in values:
        values["flags"] = _letters(values["bit_flags"], properties)
    return values, error


def _read(view: View, values: Row, short_objects: bool) -> None:
    """Fill `values`; the values before an error are valid."""
    prefix = bytes(view[:PREFIX_BYTES])
    if len(prefix) < PREFIX_BYTES:
        raise Truncated("gpacket", "fixed header", 0, HEADER_BYTES, len(prefix), _HEAD)
    layout = header_of(prefix)
    if layout is None:
        raise Malformed("gpacket", "magic", 8, "is not there", _HEAD, "bad_magic")
    for name in ("version", "packet_type", "size", "magic"):
        if name in layout:
            field = layout[name]
            data = prefix[field.offset : field.stop]
            values[name] = int.from_bytes(data, "big", signed=field.kind.startswith("i"))
    if layout is LINK_HEADER:
        values["format"] = LINK
        _check_size(view, values, layout, LINK_BYTES)
        values.update(layout.unpack(view))
        values["payload_size"] = len(view) - LINK_BYTES
        values["payload"] = bytes(view[LINK_BYTES:]) or None
        return
    values["header_order"] = DOCUMENTED if layout is HEADERS[DOCUMENTED] else SHIPPED
    _check_size(view, values, layout, least_bytes(values["version"]))
    if values["version"] != VERSION:
        problem = f"is {values['version']}, not {VERSION}"
        at = layout["version"].offset
        raise UnsupportedVersion("gpacket", "version", at, problem, _HEAD)
    values.update(layout.unpack(view))
    _read_sections(view, values, layout["property_size"].offset, short_objects)


def _read_cut(view: View, values: Row, layout: Layout) -> None:
    """Read the fixed header of a packet that goes on behind the view, if all of it is there."""
    if len(view) >= layout.size and values["version"] in (VERSION, LINK_VERSION):
        values.update(layout.unpack(view))


def _check_size(view: View, values: Row, layout: Layout, least: int) -> None:
    size, at, spec = values["size"], layout["size"].offset, layout["size"].spec
    checked_size("gpacket", layout["size"], size, least, size)
    if size > len(view):
        _read_cut(view, values, layout)
        raise Truncated("gpacket", "packet", 0, size, len(view), spec)
    if size < len(view):
        problem = f"is {size}, {len(view)} bytes were given"
        raise Malformed("gpacket", "size", at, problem, spec)
    if layout is LINK_HEADER and size > MAX_LINK_BYTES:
        raise Malformed("gpacket", "size", at, f"is {size}, over {MAX_LINK_BYTES}", spec)


def _read_sections(view: View, values: Row, at: int, short_objects: bool) -> None:
    """Read properties and payload; the property size is at `at`."""
    size, most = values["property_size"], len(view) - HEADER_BYTES
    if not 0 <= size <= most:
        problem = f"is {size}, {most} bytes are left after the fixed header"
        raise Malformed("gpacket", "property size", at, problem, _HEAD)
    payload = HEADER_BYTES + size
    values["payload_size"] = len(view) - payload
    values["payload"] = bytes(view[payload:]) or None
    if size:
        section = bytes(view[HEADER_BYTES:payload])
        values["properties"] = _decode_section(section, short_objects)


def _decode_section(section: bytes, short_objects: bool) -> Properties:
    return decode_properties(section, "gpacket", HEADER_BYTES, SPEC, short_objects)


def encode(packet: Packet | LinkPacket) -> bytes:
    """Encode a packet, with the header in its `header_order`.

    Raises
    ------
    EncodeError
        A value that does not fit the header or the properties.
    """
    payload = packet.payload or b""
    if isinstance(packet, LinkPacket):
        if len(payload) > MAX_LINK_BYTES - LINK_BYTES:
            raise EncodeError("payload", payload, f"{MAX_LINK_BYTES - LINK_BYTES} bytes at most")
        return pack_header(LINK_HEADER, packet, {"size": LINK_BYTES + len(payload)}) + payload
    if not isinstance(packet.header_order, str) or packet.header_order not in HEADERS:
        raise EncodeError("header_order", packet.header_order, f"one of {', '.join(HEADERS)}")
    if whole("version", packet.version) != VERSION:
        raise EncodeError("version", packet.version, f"{VERSION} is the only one")
    section = _encode_section(packet.properties, packet.short_objects)
    computed = {
        "magic": MAGIC,
        "size": HEADER_BYTES + len(section) + len(payload),
        "property_size": len(section),
    }
    return pack_header(HEADERS[packet.header_order], packet, computed) + section + payload


def _encode_section(properties: Properties | None, short_objects: bool) -> bytes:
    if properties is None:
        return b""
    if properties.section is not None and properties.short_objects == short_objects:
        return properties.section
    return encode_properties(properties, short_objects)


def packet_of(row: Mapping[str, Any], context: int = 0) -> Packet | LinkPacket:
    """Return the packet of a row; a row of version 100 is a link packet.

    An EncodeError is raised for a missing packet type, a field of the other kind of packet, or a
    property whose value does not belong to its type.
    """
    link = row.get("version") == LINK_VERSION
    names, others = (_LINK_FIELDS, _FIELDS) if link else (_FIELDS, _LINK_FIELDS)
    for name in others:
        if name not in (*names, "version") and row.get(name) is not None:
            raise EncodeError(name, row[name], f"no field of version {row.get('version', VERSION)}")
    values = {name: row[name] for name in names if row.get(name) is not None}
    if "packet_type" not in values:
        raise EncodeError("packet_type", None, "every packet has a type")
    if link:
        if isinstance(row.get("flags"), int):  # as in JSON Lines
            values.setdefault("bit_flags", row["flags"])
        return LinkPacket(**values)
    if "properties" in values:
        properties = typed_properties(values["properties"])
        read = partial(_decode_section, short_objects=bool(context))
        values["properties"] = matching_section(properties, row.get("raw_properties"), read)
    return Packet(**values, short_objects=bool(context))
