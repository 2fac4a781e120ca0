"""The marshalled property section of JMQ 3.0.1 and GPacket.

``i32 version = 1``, ``i32 count``, then per property a name (u16 length, modified UTF-8), an i16
type and the value. No padding. The specification gives OBJECT a short length; every shipped class
writes and reads 32 bits, and pads the value with the slack of its buffer (errata 1). Both are read,
because a serialized object shows by its first bytes where it begins; `short_objects` chooses the
length to write (errata 41).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from wireyard import java
from wireyard.errors import EncodeError, LimitExceeded, Malformed
from wireyard.formats.base import Dialect
from wireyard.formats.cursor import Cursor

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
            1, "OBJECT properties are written with lengths of 16 bits, as specified"
        )
    }
)
"""The dialect that writes `short_objects`; its context is 1, that of the plain format 0."""
SECTION_VERSION = 1
_CODES = MappingProxyType({name: code for code, name in TYPES.items()})
_CODE_BYTES = MappingProxyType({name: struct.pack(">h", code) for code, name in TYPES.items()})
_TEXT_LENGTH = struct.Struct(">H")
_NUMBERS = MappingProxyType(
    {name: struct.Struct(">" + code) for name, code in zip(TYPES.values(), "?bhiqfd", strict=False)}
)
_SERIALIZED = b"\xac\xed"
"""The first bytes of every serialized Java object."""
_INTEGERS = range(-(2**31), 2**31)
_LONGS = range(-(2**63), 2**63)
_MIN_PROPERTY_BYTES = 5
"""Smallest property: name length 2, type 2, one byte. It bounds the count."""


PlainValue = bool | int | float | str | bytes
"""A property value whose wire type follows from its Python type."""


class Property(NamedTuple):
    """One property: the name of its wire type, and its value."""

    type: str
    value: PlainValue


PlainProperties = Mapping[str, PlainValue | Property]
"""Properties by name, as a caller may write them."""


class Properties(Mapping[str, Property]):
    """Properties in wire order, read only.

    Of a repeated name, the last one counts. `section` has the bytes that they were decoded from, if
    any; an encoder writes these bytes unchanged. `short_objects` is true if they were decoded in
    the dialect with this name.
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
    """Return entries with NaN as text, so that packets of the same bytes compare equal."""
    return {
        name: (kind, "NaN" if isinstance(value, float) and math.isnan(value) else value)
        for name, (kind, value) in entries.items()
    }


def decode_properties(
    data: bytes, format: str, base: int, spec: str, short_objects: bool = False
) -> Properties:
    """Decode one marshalled property section.

    Bytes after the last property are kept and ignored. For errors, `format` is the format's name,
    `base` the section's offset in its packet, and `spec` its document. The length of an OBJECT
    whose bytes show no serialized object has 16 bits with `short_objects`, else 32. A DecodeError
    is raised for a version other than 1, an impossible count, an unknown type, or a field that does
    not fit.
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
        name = cursor.text("property name")  # an empty one is a name too (errata 31)
        entries.pop(name, None)
        entries[name] = decode_value(cursor, short_objects)
    return Properties(entries, data, short_objects)


def section_cursor(data: bytes, format: str, base: int, spec: str) -> Cursor:
    """Return a cursor at the start of a section; parameters as in `decode_properties`."""
    return Cursor(data, format, base, f"{spec}, property data")


def decode_value(cursor: Cursor, short_objects: bool = False) -> Property:
    """Decode the type and the value after a name."""
    start = cursor.at
    code = cursor.integer(2, "property type")
    kind = TYPES.get(code)
    if kind is None:
        raise cursor.fault(Malformed, "property type", start, f"is {code}, not 1 to 9")
    if kind == "string":
        return Property(kind, cursor.text("property value"))
    if kind == "object":
        start = cursor.at
        width = object_length_bytes(cursor.data[start : start + 6], short_objects)
        size = cursor.integer(width, "object length", signed=width == 4)
        if size < 0:
            raise cursor.fault(Malformed, "object length", start, f"is {size}")
        return Property(kind, cursor.take(size, "property value"))
    number = _NUMBERS[kind]
    return Property(kind, number.unpack(cursor.take(number.size, "property value"))[0])


def object_length_bytes(head: bytes, short_objects: bool) -> int:
    """Return the bytes of the length at the start of an OBJECT, given its first six (errata 41)."""
    if head[4:6] == _SERIALIZED:
        return 4
    if head[2:4] == _SERIALIZED and head[:2] > b"\0\1":
        return 2
    return 2 if short_objects else 4


def encode_properties(entries: Mapping[str, Property], short_objects: bool = False) -> bytes:
    """Encode properties as a marshalled section.

    An EncodeError is raised for an unknown type, a value its type cannot hold, text over 65535
    bytes, or with `short_objects` an OBJECT over 65535 bytes.
    """
    parts = [struct.pack(">ii", SECTION_VERSION, len(entries))]
    for name, (kind, value) in entries.items():
        if kind not in _CODES:
            raise EncodeError(f"type of property {name}", kind, f"one of {', '.join(_CODES)}")
        field = f"property {name}"
        parts += (_text(f"property name {name}", name), _CODE_BYTES[kind])
        if kind == "string":
            parts.append(_string(field, value))
        elif kind == "object":
            parts.append(_object(field, value, short_objects))
        else:
            parts.append(_number(field, kind, value))
    return b"".join(parts)


def _text(field: str, text: str) -> bytes:
    data = java.encode_modified(text)
    if len(data) > 0xFFFF:
        raise EncodeError(field, text, f"{len(data)} bytes of modified UTF-8, 65535 at most")
    return _TEXT_LENGTH.pack(len(data)) + data


def _string(field: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise EncodeError(field, value, "a string property holds text")
    return _text(field, value)


def _object(field: str, value: object, short_objects: bool) -> bytes:
    if not isinstance(value, bytes):
        raise EncodeError(field, value, "an object property holds bytes")
    try:
        return struct.pack(">H" if short_objects else ">i", len(value)) + value
    except struct.error:
        problem = f"{len(value)} bytes are more than its length field can hold"
        raise EncodeError(field, value, problem) from None


def _number(field: str, kind: str, value: Any) -> bytes:
    try:
        if (kind == "boolean") != isinstance(value, bool):
            raise TypeError
        if isinstance(value, float) and math.isnan(value):
            # The shipped writer sends only these NaNs: 7FC00000 and 7FF8000000000000.
            return _NUMBERS[kind].pack(math.nan)
        return _NUMBERS[kind].pack(value)
    except (struct.error, OverflowError, TypeError):
        raise EncodeError(field, value, f"does not fit type {kind}") from None


def plain_properties(field: str, given: Any) -> Properties | None:
    """Return the properties of a mapping from names to plain values; None stays None.

    An EncodeError is raised for no mapping, a name that is no text, or a value that
    `plain_property` rejects.
    """
    if given is None or (isinstance(given, Properties) and given.section is not None):
        return given
    if not isinstance(given, Mapping):
        raise EncodeError(field, given, "a mapping from names to values is needed")
    entries = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise EncodeError("property name", name, "a name is text")
        entries[_as_read(name)] = plain_property(f"property {name}", value)
    return Properties(entries)


def plain_property(field: str, value: Any) -> Property:
    """Return the property of a plain value.

    The type follows from the value: boolean, integer (long beyond 32 bits), double, string, and
    object for bytes. A pair, such as `Property`, has the type explicitly; its value is converted as
    encoding and decoding would, so a float is rounded to 32 bits. An EncodeError is raised for a
    value of no such type, an unknown type, or a value that its type cannot hold.
    """
    match value:
        case bool():
            return Property("boolean", value)
        case int() if value in _LONGS:
            return Property("integer" if value in _INTEGERS else "long", int(value))
        case float():
            return Property("double", float(value))
        case str():
            return Property("string", _as_read(value))
        case bytes():
            return Property("object", bytes(value))
        case (str(kind), exact):
            return _exact_property(field, kind, exact)
    raise EncodeError(field, value, "a boolean, a number of 64 bits, text, bytes or a Property")


def _exact_property(field: str, kind: str, value: Any) -> Property:
    if kind not in _CODES:
        raise EncodeError(f"type of {field}", kind, f"one of {', '.join(_CODES)}")
    if kind in _NUMBERS:
        return Property(kind, _NUMBERS[kind].unpack(_number(field, kind, value))[0])
    if not isinstance(value, str if kind == "string" else bytes):
        raise EncodeError(field, value, f"does not fit type {kind}")
    return Property(kind, _as_read(value) if isinstance(value, str) else value)


def _as_read(text: str) -> str:
    """Return text as it would be decoded: two halves of a surrogate pair become one character."""
    return text if text.isascii() else java.decode_text(java.encode_modified(text))
