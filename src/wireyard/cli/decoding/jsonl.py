"""Rows as JSON Lines and back, exact to the bit.

Bytes are lowercase hex. Numbers that JSON cannot represent are ``"NaN"``, ``"Infinity"`` and
``"-Infinity"``. Missing values are null.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import IO, Any

from wireyard.errors import EncodeError
from wireyard.formats.base import Row
from wireyard.layout import Column

__all__ = ["UNSAFE", "JsonArray", "json_line", "json_text", "json_value", "row_of"]

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
UNSAFE = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Characters, as in a regular expression, that are line ends for some readers, control characters
for some terminals, or set the direction of text, so that it looks like another one."""
_UNSAFE = re.compile(f"[{UNSAFE}]")


def _properties(properties: Mapping[str, tuple[str, Any]]) -> Row:
    return {
        name: {"type": kind, "value": json_value(value)}
        for name, (kind, value) in properties.items()
    }


def _items(items: Sequence[Row]) -> list[Row]:
    return [{"type": item["type"], "value": item["value"].hex()} for item in items]


def json_line(row: Row, columns: Sequence[Column]) -> bytes:
    """Return a row as one line with the given columns in order; missing values are null."""
    values: Row = {}
    for column in columns:
        value = row.get(column.name)
        write = _WRITERS.get(column.kind)
        values[column.name] = value if value is None or write is None else write(value)
    # The error handler sees only lone surrogates, which Java text may contain. Its escapes are the
    # same as JSON's.
    return json_text(values).encode("utf-8", "backslashreplace") + b"\n"


def json_text(value: Any) -> str:
    """Return a JSON value as text on one line, with control characters escaped."""
    text = _JSON.encode(value)
    if text.isascii() and "\x7f" not in text:
        return text
    return _UNSAFE.sub(lambda at: f"\\u{ord(at[0]):04x}", text)


class JsonArray:
    """A file that converts JSON Lines to one JSON array in another file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._between = b"[\n"

    def write(self, lines: bytes | memoryview) -> None:
        """Write complete lines."""
        text = bytes(lines)
        if text:
            self._file.write(self._between + text[:-1].replace(b"\n", b",\n"))
            self._between = b",\n"

    def close(self) -> None:
        """End the array; the other file stays open."""
        self._file.write(b"\n]\n" if self._between == b",\n" else b"[]\n")


def json_value(value: Any) -> Any:
    """Convert a value to JSON; a map with keys that are no text becomes a list of pairs."""
    match value:
        case bytes():
            return value.hex()
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case list() | tuple():
            return [json_value(item) for item in value]
        case Mapping() if all(isinstance(key, str) for key in value):
            return {key: json_value(item) for key, item in value.items()}
        case Mapping():
            return [[json_value(key), json_value(item)] for key, item in value.items()]
        case datetime():
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case _:
            return value


_WRITERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "binary": bytes.hex,
        "items": _items,
        "properties": _properties,
        "name_values": json_value,
    }
)
"""Conversions of column values to JSON, by kind; values of other kinds stay as they are."""


# --- reading --------------------------------------------------------------------------------


def _bytes_of(name: str, text: Any) -> bytes:
    try:
        return bytes.fromhex(text)
    except (TypeError, ValueError):
        raise EncodeError(name, text, "bytes are written as hexadecimal") from None


def _items_of(name: str, items: Any) -> list[Row]:
    if not isinstance(items, list):
        raise EncodeError(name, items, "a list of {type, value} is needed")
    return [_item_of(item) for item in items]


def _item_of(item: Any) -> Row:
    match item:
        case {"type": int(code), "value": str(text)}:
            return {"type": code, "value": _bytes_of(f"item {code}", text)}
    raise EncodeError("item", item, "a number as type and a value in hexadecimal are needed")


def _properties_of(name: str, properties: Any) -> Row:
    if not isinstance(properties, dict):
        raise EncodeError(name, properties, "an object of {type, value} is needed")
    return {key: _property_of(key, entry) for key, entry in properties.items()}


def _property_of(name: str, entry: Any) -> Row:
    match entry:
        case {"type": "object", "value": value}:
            return {"type": "object", "value": _bytes_of(f"property {name}", value)}
        case {"type": str(kind), "value": str() | int() | float() as value}:
            return {"type": kind, "value": value}
    raise EncodeError(f"property {name}", entry, "a type and a value are needed")


def _list_of(name: str, values: Any) -> list[Any]:
    if not isinstance(values, list):
        raise EncodeError(name, values, "a list is needed")
    return values


def _checked(kind: type, words: str) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if type(value) is not kind:
            raise EncodeError(name, value, f"{words} is needed")
        return value

    return check


_READERS: Mapping[str, Callable[[str, Any], Any]] = MappingProxyType(
    {
        "binary": _bytes_of,
        "items": _items_of,
        "properties": _properties_of,
        "bool": _checked(bool, "true or false"),
        "int32": _checked(int, "an integer"),
        "int64": _checked(int, "an integer"),
        "offset": _checked(int, "an integer"),
        "string": _checked(str, "text"),
        "int32s": _list_of,
        "filters": _list_of,
        "name_values": _list_of,
    }
)


def row_of(values: Mapping[str, Any], columns: Mapping[str, Column]) -> Row:
    """Return the row in a JSON object.

    Parameters
    ----------
    values
        The object.
    columns
        The columns of the row, by their names in the object.

    Raises
    ------
    EncodeError
        A name is no column, or a value does not have its column's kind.
    """
    row: Row = {}
    for name, value in values.items():
        if name not in columns:
            raise EncodeError("column", name, f"there are {', '.join(columns)}")
        column = columns[name]
        read = _READERS.get(column.kind)
        row[column.name] = value if value is None or read is None else read(name, value)
    return row
