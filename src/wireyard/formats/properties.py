"""The marshalled property section that JMQ 3.0.1 and GPacket share.

``i32 version = 1``, ``i32 count``, then per property a name (u16 length, modified UTF-8), an i16
type and the value. No padding. The specification gives OBJECT a short length; every shipped class
writes and reads 32 bits, and pads the value with the slack of its buffer (errata 1). Sections as
the specification prints them are those with `short_objects` (errata 41).
"""

from __future__ import annotations

import base64
import binascii
import math
import operator
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from wireyard import java
from wireyard.errors import DecodeError, EncodeError, LimitExceeded, Malformed
from wireyard.formats.base import Dialect, Row
from wireyard.formats.cursor import Cursor

__all__ = [
    "SHORT_OBJECTS",
    "TYPES",
    "Properties",
    "Property",
    "decode_properties",
    "decode_value",
    "encode_properties",
    "property_text",
    "property_value",
    "raw_section",
    "section_cursor",
    "section_if_said",
    "typed_properties",
    "typed_value",
]

TYPES = MappingProxyType(
    {
        1: "boolean",
        2: "byte",
        3: "short",
        4: "integer",
        5: "long",
        6: "float",
        7: "double",
        8: "string",
        9: "object",
    }
)
"""Name of each wire type code."""

SHORT_OBJECTS = MappingProxyType(
    {
        "short-object": Dialect(
            1, "OBJECT properties with a length of 16 bits, as the specification prints it"
        )
    }
)
"""The dialect in which a section has `short_objects`; its context is true, the plain one's not."""
SECTION_VERSION = 1
_CODES = MappingProxyType({name: code for code, name in TYPES.items()})
_CODE_BYTES = MappingProxyType({name: struct.pack(">h", code) for code, name in TYPES.items()})
_TEXT_LENGTH = struct.Struct(">H")
_NUMBERS = MappingProxyType(
    {name: struct.Struct(">" + code) for name, code in zip(TYPES.values(), "?bhiqfd", strict=False)}
)
_MIN_PROPERTY_BYTES = 6
"""Name length 2, one character, type 2, one byte: what the count is checked against."""


class Property(NamedTuple):
    """One property: the type's name and the value as Python has it."""

    type: str
    value: bool | int | float | str | bytes


class Properties(Mapping[str, Property]):
    """Properties in wire order, read only.

    Parameters
    ----------
    entries
        Name to property; the later of two with one name counts.
    section
        The bytes they were read from, if they were. An encoder writes these back as they are.
    short_objects
        Whether an OBJECT in these bytes has a length of 16 bits.
    """

    __slots__ = ("_entries", "section", "short_objects")

    def __init__(
        self,
        entries: Mapping[str, Property],
        section: bytes | None = None,
        short_objects: bool = False,
    ) -> None:
        self._entries = {name: Property(*entry) for name, entry in entries.items()}
        self.section = section
        self.short_objects = short_objects

    def __getitem__(self, name: str) -> Property:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return _comparable(self) == _comparable(other)

    def __hash__(self) -> int:
        return hash(frozenset(self._entries))

    def __repr__(self) -> str:
        return f"Properties({self._entries!r})"


def _comparable(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Make NaN equal to itself: two packets with the same bytes are the same."""
    return {
        name: (kind, "NaN" if isinstance(value, float) and math.isnan(value) else value)
        for name, (kind, value) in entries.items()
    }


def decode_properties(
    data: bytes, format: str, base: int, spec: str, short_objects: bool = False
) -> Properties:
    """Decode one marshalled property section.

    Parameters
    ----------
    data
        The section, all of it. Bytes after the last property are kept and ignored.
    format, base, spec
        For errors: the format's name, where the section begins in its packet, its document.
    short_objects
        Whether an OBJECT has a length of 16 bits.

    Raises
    ------
    DecodeError
        A version other than 1, an impossible count, an empty name, an unknown type, or a field
        that does not fit.
    """
    cursor = section_cursor(data, format, base, spec)
    version = cursor.integer(4, "property version")
    if version != SECTION_VERSION:
        raise cursor.fault(Malformed, "property version", 0, f"is {version}, not 1")
    count = cursor.integer(4, "property count")
    room = (len(data) - cursor.at) // _MIN_PROPERTY_BYTES
    if count < 0:
        raise cursor.fault(Malformed, "property count", 4, f"is {count}")
    if count > room:
        problem = f"is {count}, {len(data) - cursor.at} bytes hold at most {room}"
        raise cursor.fault(LimitExceeded, "property count", 4, problem)
    entries: dict[str, Property] = {}
    for _ in range(count):
        start = cursor.at
        name = cursor.text("property name")
        if not name:
            # The shipped reader stops here in silence and loses the rest (errata 31).
            raise cursor.fault(Malformed, "property name", start, "is empty")
        entries.pop(name, None)
        entries[name] = decode_value(cursor, short_objects)
    return Properties(entries, data, short_objects)


def section_cursor(data: bytes, format: str, base: int, spec: str) -> Cursor:
    """Return a cursor at the beginning of a section; parameters as of `decode_properties`."""
    return Cursor(data, format, base, f"{spec}, property data")


def decode_value(cursor: Cursor, short_objects: bool = False) -> Property:
    """Decode the type and the value that stand behind a name."""
    start = cursor.at
    code = cursor.integer(2, "property type")
    kind = TYPES.get(code)
    if kind is None:
        raise cursor.fault(Malformed, "property type", start, f"is {code}, not 1 to 9")
    if kind == "string":
        return Property(kind, cursor.text("property value"))
    if kind == "object":
        start = cursor.at
        size = cursor.integer(2 if short_objects else 4, "object length", signed=not short_objects)
        if size < 0:
            raise cursor.fault(Malformed, "object length", start, f"is {size}")
        return Property(kind, cursor.take(size, "property value"))
    number = _NUMBERS[kind]
    return Property(kind, number.unpack(cursor.take(number.size, "property value"))[0])


def encode_properties(entries: Mapping[str, Property], short_objects: bool = False) -> bytes:
    """Encode properties as a marshalled section.

    Raises
    ------
    EncodeError
        An unknown type, a value its type cannot hold, an empty name, text over 65535 bytes, or with
        `short_objects` an OBJECT over 65535 bytes.
    """
    parts = [struct.pack(">ii", SECTION_VERSION, len(entries))]
    for name, (kind, value) in entries.items():
        if not name:
            raise EncodeError("property name", name, "a name has at least one character")
        if kind not in _CODES:
            raise EncodeError(f"type of property {name}", kind, f"one of {', '.join(_CODES)}")
        parts += (_text("property name", name, name), _CODE_BYTES[kind])
        if kind == "object":
            parts.append(_object(name, value, short_objects))
        else:
            parts.append((_string if kind == "string" else _number)(name, kind, value))
    return b"".join(parts)


def _text(field: str, name: str, text: str) -> bytes:
    data = java.encode_modified(text)
    if len(data) > 0xFFFF:
        problem = f"{len(data)} bytes of modified UTF-8, 65535 at most"
        raise EncodeError(f"{field} {name}", text, problem)
    return _TEXT_LENGTH.pack(len(data)) + data


def _string(name: str, kind: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise EncodeError(f"property {name}", value, "a string property holds text")
    return _text("property", name, value)


def _object(name: str, value: object, short_objects: bool) -> bytes:
    if not isinstance(value, bytes):
        raise EncodeError(f"property {name}", value, "an object property holds bytes")
    try:
        return struct.pack(">H" if short_objects else ">i", len(value)) + value
    except struct.error:
        problem = f"{len(value)} bytes are more than its length can tell"
        raise EncodeError(f"property {name}", value, problem) from None


def _number(name: str, kind: str, value: Any) -> bytes:
    try:
        if (kind == "boolean") != isinstance(value, bool):
            raise TypeError
        if isinstance(value, float) and math.isnan(value):
            # The shipped writer sends one NaN only: 7FC00000 and 7FF8000000000000.
            return _NUMBERS[kind].pack(math.nan)
        return _NUMBERS[kind].pack(value)
    except (struct.error, OverflowError, TypeError):
        raise EncodeError(f"property {name}", value, f"does not fit type {kind}") from None


def property_text(kind: str, value: Any) -> str:
    """Return a value in the JMS string conversion; an object as base64 of its bytes."""
    match kind:
        case "string":
            return str(value)
        case "boolean":
            return "true" if value else "false"
        case "float":
            return java.float_text(value)
        case "double":
            return java.double_text(value)
        case "object":
            return base64.b64encode(value).decode("ascii")
        case _:
            return str(int(value))


def property_value(name: str, kind: str, value: Any) -> Property:
    """Return the property that a row's type and value describe; see `typed_value`."""
    return Property(kind, typed_value(name, kind, value))


def typed_value(name: str, kind: str, value: Any) -> Any:
    """Return the value of the property that a row's type and value describe.

    Takes a value as rows have it in JSON (numbers, text, ``"NaN"``) or as columns have it
    (text in the JMS string conversion). Bytes stand for an object.

    Raises
    ------
    EncodeError
        A type that is none of the nine, or text that is no value of it.
    """
    if kind not in _CODES:
        raise EncodeError(f"type of property {name}", kind, f"one of {', '.join(_CODES)}")
    convert: Callable[[Any], Any] = _READERS.get(kind, _whole)
    try:
        return convert(value)
    except (ValueError, TypeError, KeyError, OverflowError, binascii.Error):
        raise EncodeError(f"property {name}", value, f"not a value of type {kind}") from None


def _whole(value: Any) -> int:
    if isinstance(value, str):
        return int(value)
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _truth(value: Any) -> bool:
    return value if isinstance(value, bool) else {"true": True, "false": False}[value]


def _float(value: Any) -> float:
    if not isinstance(value, str | int | float):
        raise TypeError
    return float(value)


def _float32(value: Any) -> float:
    """Round as the wire does: text in columns has the digits that tell floats apart, no more."""
    number: float = _NUMBERS["float"].unpack(_NUMBERS["float"].pack(_float(value)))[0]
    return number


def _plain_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _object_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else base64.b64decode(value, validate=True)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "boolean": _truth,
    "float": _float32,
    "double": _float,
    "string": _plain_text,
    "object": _object_bytes,
}


def typed_properties(properties: Mapping[str, Any] | None) -> Properties:
    """Return the properties of a packet or a row as `Properties`.

    A row that came back from JSON or from columns has ``{type, value}`` in the place of a pair.

    Raises
    ------
    EncodeError
        An entry without a type and a value, or with a value that is not of its type.
    """
    if isinstance(properties, Properties):
        return properties
    return Properties(
        {name: _typed_property(name, entry) for name, entry in (properties or {}).items()}
    )


def raw_section(properties: Properties, write: Callable[[Properties], bytes]) -> Row:
    """Return a row's `raw_properties`: the section, if the values in columns do not give it back.

    That is if `write` gives them other bytes, or if columns spell a lone surrogate out.
    """
    section = properties.section
    with suppress(EncodeError):
        if write(properties) == section and not (b"\xed" in section and _spelled_out(properties)):
            return {}
    return {"raw_properties": section}


def _spelled_out(properties: Properties) -> bool:
    """Tell whether columns show some text otherwise than it is."""
    texts = (text for name, (_, value) in properties.items() for text in (name, value))
    return any(isinstance(text, str) and java.storable(text) != text for text in texts)


def section_if_said(
    said: Properties, section: bytes | None, read: Callable[[bytes], Properties]
) -> Properties:
    """Return what `read` makes of a section if it is what a row says, else `said`.

    The values of a row of columns are text, in which lone surrogates are spelled out.

    Raises
    ------
    EncodeError
        A section that is not bytes.
    """
    if section is not None:
        if not isinstance(section, bytes):
            raise EncodeError("raw_properties", section, "a section is bytes")
        with suppress(DecodeError):
            found = read(section)
            if _shown(found) == _shown(said):
                return found
    return said


def _shown(properties: Properties) -> dict[str, tuple[str, str]]:
    return {
        java.storable(name): (kind, java.storable(property_text(kind, value)))
        for name, (kind, value) in properties.items()
    }


def _typed_property(name: str, entry: Any) -> Property:
    if isinstance(entry, Property):
        return entry
    if not isinstance(entry, Mapping) or not {"type", "value"} <= entry.keys():
        raise EncodeError(f"property {name}", entry, "a property has a type and a value")
    return property_value(name, entry["type"], entry["value"])
