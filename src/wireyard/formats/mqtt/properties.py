"""The properties of 5.0 in wire order: decoding, conversion from plain Python values and from rows.

Values are integers, text, bytes, and for a user property a pair of texts. In columns they are
text: numbers in decimal, bytes in hexadecimal, a pair as a JSON array (``wireyard.schema``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wireyard.errors import DecodeError, EncodeError
from wireyard.formats.mqtt.cursor import Cursor
from wireyard.formats.mqtt.layout import AUTH, CONNECT, PROPERTIES, PROPERTIES_BY_NAME, PropertyType
from wireyard.formats.mqtt.topics import has_wildcard

Value = int | str | bytes | tuple[str, str] | None

SECRET_PROPERTY = "authentication_data"
"""The property whose value is secret."""

VALUE_KINDS = {
    known.name: known.kind if known.kind in ("text", "binary", "pair") else "number"
    for known in PROPERTIES.values()
}
"""Kind of each property's value, as `Texts.kinds` has it."""

_MAXIMA = {"byte": 0xFF, "two": 0xFFFF, "four": 0xFFFF_FFFF, "variable": 268_435_455}


class Property(NamedTuple):
    """One property: its name in the standard, and its value."""

    name: str
    value: Value


def read_properties(cursor: Cursor, packet_type: int, into: list[Property]) -> None:
    """Read Property Length and the properties of a packet type, or of a will, into a list.

    A property that cannot be read ends the list; the cursor advances by Property Length all the
    same. A Property Length that does not fit raises a DecodeError.
    """
    start = cursor.at
    size = cursor.variable("property length")
    if size > cursor.left:
        problem = f"is {size}, {cursor.left} bytes are left"
        cursor.fault("property_length", "property length", start, problem)
        raise cursor.faults[-1]
    stop, cursor.stop = cursor.stop, cursor.at + size
    seen: set[int] = set()
    try:
        while cursor.more(into, "property"):
            _read_property(cursor, packet_type, seen, into)
    except DecodeError as error:
        cursor.note(error)
        rest = cursor.skip(cursor.left, "properties")
        cursor.mark(rest, "properties", "not readable")
    cursor.stop = stop
    names = {PROPERTIES[code].name for code in seen}
    method_missing = "authentication_method" not in names
    if packet_type == CONNECT and "authentication_data" in names and method_missing:
        cursor.fault("auth_data_alone", "authentication_data", start, "has no method beside it")
    if packet_type == AUTH and method_missing:
        cursor.fault("auth_method_missing", "authentication_method", start, "is missing")


def _read_property(cursor: Cursor, packet_type: int, seen: set[int], into: list[Property]) -> None:
    start = cursor.at
    code = cursor.variable("property identifier")
    known = PROPERTIES.get(code)
    if known is None:
        cursor.fault("property_id", "property identifier", start, f"is {code}")
        raise cursor.faults[-1]
    if packet_type not in known.packets:
        cursor.fault("property_place", known.name, start, "may not stand in this packet")
    if code in seen and packet_type not in known.repeats:
        cursor.fault("property_twice", known.name, start, "is there twice", _section(known))
    seen.add(code)
    start = cursor.at
    value = _read_value(cursor, known)
    into.append(Property(known.name, value))
    _check_value(cursor, known, value, start)


def _read_value(cursor: Cursor, known: PropertyType) -> Value:
    match known.kind:
        case "byte":
            return cursor.byte(known.name)
        case "two":
            return cursor.word(known.name)
        case "four":
            return cursor.four(known.name)
        case "variable":
            return cursor.variable(known.name)
        case "binary":
            return cursor.binary(known.name)
        case "text":
            return cursor.text(known.name)
    key, value = cursor.text(f"{known.name} name"), cursor.text(known.name)
    return None if key is None or value is None else (key, value)


def _check_value(cursor: Cursor, known: PropertyType, value: Value, at: int) -> None:
    if isinstance(value, int) and not known.low <= value <= (
        value if known.high is None else known.high
    ):
        if known.name == "topic_alias":
            cursor.fault("topic_alias_0", known.name, at, "is 0")
        else:
            cursor.fault("property_value", known.name, at, f"is {value}", _section(known))
    if known.name == "response_topic" and isinstance(value, str) and has_wildcard(value):
        cursor.fault("response_topic_wildcard", known.name, at, "has a wildcard")


def _section(known: PropertyType) -> str:
    return f"MQTT 5.0, {known.spec}"


# --- plain Python values --------------------------------------------------------------------

PlainProperties = Mapping[str, Any] | Sequence[Property | tuple[str, Any]]
"""Values by name, or pairs of name and value in wire order."""


def plain_properties(field: str, given: Any) -> tuple[Property, ...]:
    """Return properties, given as pairs of name and value or as a mapping, in wire order.

    In a mapping the user properties are a mapping or a list of pairs, and several subscription
    identifiers are a list. `field` is the packet's field, for errors: an EncodeError is raised for
    anything else, or a name that the standard does not have. Values are checked when the packet is
    encoded.
    """
    if isinstance(given, Mapping):
        given = [(name, item) for name, value in given.items() for item in _values(name, value)]
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise EncodeError(field, given, "a mapping, or pairs of name and value, are needed")
    return tuple(_named(field, pair) for pair in given)


def _values(name: Any, value: Any) -> Sequence[Any]:
    """Return the values of a name in a mapping; only two properties may have more than one."""
    if name == "user_property" and isinstance(value, Mapping):
        return list(value.items())
    if name in ("user_property", "subscription_identifier") and isinstance(value, list):
        return value
    return [value]


def _named(field: str, pair: Any) -> Property:
    match pair:
        case (str(name), value) if name in PROPERTIES_BY_NAME:
            return Property(name, tuple(value) if isinstance(value, list) else value)
        case (str(name), _):
            raise EncodeError("property", name, "no name of the standard")
    raise EncodeError(field, pair, "a pair of name and value is needed")


# --- rows -----------------------------------------------------------------------------------


def property_rows(properties: Sequence[Property]) -> list[dict[str, Any]]:
    """Return properties as rows have them."""
    return [
        {"name": name, "value": list(value) if isinstance(value, tuple) else value}
        for name, value in properties
    ]


def properties_of(field: str, rows: Any) -> tuple[Property, ...] | None:
    """Return the properties of a row; their values may be those of rows or of columns.

    An EncodeError is raised for an unknown name, or a value that is not of the property's kind.
    """
    if rows is None:
        return None
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Sequence):
        raise EncodeError(field, rows, "a list of {name, value} is needed")
    return tuple(_property_of(row) for row in rows)


def _property_of(row: Any) -> Property:
    if isinstance(row, Property):
        return row
    if not isinstance(row, Mapping) or row.get("name") not in PROPERTIES_BY_NAME:
        raise EncodeError("property", row, "a name of the standard and a value are needed")
    name, value = row["name"], row.get("value")
    kind = PROPERTIES_BY_NAME[name].kind
    try:
        return Property(name, _value_of(kind, value))
    except (ValueError, TypeError):
        raise EncodeError(name, value, _NEEDED[kind]) from None


_NEEDED = {
    **{kind: f"an integer from 0 to {most}" for kind, most in _MAXIMA.items()},
    "text": "text is needed",
    "binary": "bytes, or their hexadecimal, are needed",
    "pair": "a pair of texts is needed",
}


def _value_of(kind: str, value: Any) -> Value:
    match kind, value:
        case "text", str():
            return value
        case "binary", bytes():
            return value
        case "binary", str():
            return bytes.fromhex(value)
        case "pair", str():
            return _value_of(kind, json.loads(value))
        case "pair", [str(key), str(text)]:
            return (key, text)
        case (("byte" | "two" | "four" | "variable"), int() | str()) if not isinstance(value, bool):
            number = int(value)
            if 0 <= number <= _MAXIMA[kind]:
                return number
    raise ValueError
