"""Properties in rows: values as text and from text, and sections that values do not determine."""

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

__all__ = [
    "property_text",
    "property_value",
    "raw_section",
    "section_if_said",
    "typed_properties",
    "typed_value",
]

_FLOAT = struct.Struct(">f")


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
    """Round as the wire does: text in columns has the digits that distinguish floats, no more."""
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


def _typed_property(name: str, entry: Any) -> Property:
    if isinstance(entry, Property):
        return plain_property(f"property {name}", entry)
    if not isinstance(entry, Mapping) or not {"type", "value"} <= entry.keys():
        raise EncodeError(f"property {name}", entry, "a property has a type and a value")
    return property_value(name, entry["type"], entry["value"])


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
    """Return whether columns show some text otherwise than it is."""
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
