"""Properties in rows: conversion of values to and from text, and the raw section of a row."""

from __future__ import annotations

import base64
import binascii
import operator
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from wireyard import java
from wireyard.errors import DecodeError, EncodeError
from wireyard.formats.base import Row
from wireyard.formats.properties import TYPES, Properties, Property, plain_property

_FLOAT = struct.Struct(">f")


def property_text(kind: str, value: Any) -> str:
    """Return a value as text by the JMS string conversion; an object as base64 of its bytes."""
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
    """Return the property of a row's type and value; see `typed_value`."""
    return Property(kind, typed_value(name, kind, value))


def typed_value(name: str, kind: str, value: Any) -> Any:
    """Convert a property value of a row to the Python type of its wire type.

    Accepts values of JSON rows (numbers, text, ``"NaN"``) and of columns (text of the JMS string
    conversion). Bytes are the value of an object. An EncodeError is raised for a type that is none
    of the nine, or a value that does not belong to it.
    """
    if kind not in TYPES.values():
        raise EncodeError(f"type of property {name}", kind, f"one of {', '.join(TYPES.values())}")
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
    """Return a number rounded to 32 bits: text in columns has only as many digits as that needs."""
    number: float = _FLOAT.unpack(_FLOAT.pack(_float(value)))[0]
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

    A row from JSON or from columns has ``{type, value}`` instead of a pair. An EncodeError is
    raised for an entry without a type or a value, or with a value that does not belong to its type.
    """
    if isinstance(properties, Properties):
        return properties
    return Properties(
        {name: _typed_property(name, entry) for name, entry in (properties or {}).items()}
    )


def _typed_property(name: str, entry: Any) -> Property:
    if isinstance(entry, Property):
        return plain_property(f"property {name}", entry)
    if not isinstance(entry, Mapping) or not {"type", "value"} <= entry.keys():
        raise EncodeError(f"property {name}", entry, "a property has a type and a value")
    return property_value(name, entry["type"], entry["value"])


def raw_section(properties: Properties, write: Callable[[Properties], bytes]) -> Row:
    """Return the `raw_properties` of a row: the section, if its values do not determine it.

    They do not if `write` encodes them to other bytes, or if columns escape a lone surrogate.
    """
    section = properties.section
    with suppress(EncodeError):
        if write(properties) == section and not (b"\xed" in section and _has_escapes(properties)):
            return {}
    return {"raw_properties": section}


def _has_escapes(properties: Properties) -> bool:
    """Return whether columns escape a lone surrogate in some text."""
    texts = (text for name, (_, value) in properties.items() for text in (name, value))
    return any(isinstance(text, str) and java.storable(text) != text for text in texts)


def matching_section(
    from_row: Properties, section: bytes | None, read: Callable[[bytes], Properties]
) -> Properties:
    """Return the properties that `read` decodes from a section if they equal the row's, else those.

    They are compared as columns show them: as text, with lone surrogates escaped. A section that is
    not bytes raises an EncodeError.
    """
    if section is not None:
        if not isinstance(section, bytes):
            raise EncodeError("raw_properties", section, "a section is bytes")
        with suppress(DecodeError):
            decoded = read(section)
            if _shown(decoded) == _shown(from_row):
                return decoded
    return from_row


def _shown(properties: Properties) -> dict[str, tuple[str, str]]:
    return {
        java.storable(name): (kind, java.storable(property_text(kind, value)))
        for name, (kind, value) in properties.items()
    }
