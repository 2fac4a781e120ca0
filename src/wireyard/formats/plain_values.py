"""Bodies and payloads as plain Python values, and those as text.

Plain values are ``None bool int float str bytes Decimal datetime list dict``. An object of an
unknown class is ``{"class": name, "data": its own serialization stream}``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from wireyard import java
from wireyard.formats.base import Row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SIMPLE: Final = (str, int, type(None))
"""Types of values that stay as they are, tested first: most values have one of them."""
_CONTAINERS: Final = (list, tuple, dict, java.Opaque, Mapping)


def text_of(column: str) -> Callable[[Row], str | None]:
    """Return a view of a bytes column as text; bytes that are not UTF-8 are backslash-escaped."""

    def show(row: Row) -> str | None:
        data: bytes | None = row.get(column)
        return None if data is None else data.decode("utf-8", "backslashreplace")

    return show


def plain_objects(data: bytes) -> list[Any]:
    """Return the objects of a serialization stream as plain values.

    A JavaError is raised if the bytes are no stream, or have no plain form.
    """
    # As one collection, so that an object in several elements is counted and converted once.
    whole = java.JavaCollection("stream", "list", java.read_objects(data), 0)
    objects: list[Any] = _Converter(lambda leaf: leaf, dict).convert(java.plain(whole))
    return objects


def value_text(value: Any) -> str | None:
    """Return a plain value as text: text as it is, bytes as hex, all else as JSON; None is None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    return json.dumps(json_value(value), ensure_ascii=False)


def json_value(value: Any) -> Any:
    """Return a plain value in the types of JSON.

    Bytes become hex, times ISO 8601; decimals, NaN and infinities text; a map with keys that are no
    text a list of pairs.
    """
    return _Converter(_json_leaf, _json_map).convert(value)


def iso_text(when: datetime) -> str:
    """Return a time as ISO 8601 with milliseconds, the resolution of Java, or all that it has."""
    unit = "microseconds" if when.microsecond % 1000 else "milliseconds"
    return when.isoformat(timespec=unit).replace("+00:00", "Z")


def time_text(milliseconds: int) -> str | None:
    """Return a time in ms since epoch as ISO 8601, None if it is outside years 1 to 9999."""
    try:
        return iso_text(_EPOCH + timedelta(milliseconds=milliseconds))
    except OverflowError:
        return None


class _Converter:
    """Rebuilds plain values with converted leaves; a shared object is converted once."""

    def __init__(
        self, leaf: Callable[[Any], Any], mapping: Callable[[list[tuple[Any, Any]]], Any]
    ) -> None:
        self.leaf = leaf
        self.mapping = mapping
        self.done: dict[int, Any] = {}

    def convert(self, value: Any) -> Any:
        if isinstance(value, _SIMPLE):
            return value
        if not isinstance(value, _CONTAINERS):
            return self.leaf(value)
        if id(value) not in self.done:
            self.done[id(value)] = self.container(value)
        return self.done[id(value)]

    def container(self, value: Any) -> Any:
        if isinstance(value, java.Opaque):
            return {"class": value.class_name, "data": value.data}
        if isinstance(value, Mapping):
            return self.mapping([(key, self.convert(item)) for key, item in value.items()])
        return [self.convert(item) for item in value]


def _json_leaf(value: Any) -> Any:
    match value:
        case bytes():
            return value.hex()
        case Decimal():
            return str(value)
        case datetime():
            return iso_text(value)
        case date():
            return value.isoformat()
        case float() if not math.isfinite(value):
            return java.double_text(value)
        case _:
            return value


def _json_map(entries: list[tuple[Any, Any]]) -> Any:
    if all(isinstance(key, str) for key, _ in entries):
        return dict(entries)
    return [(_json_leaf(key), value) for key, value in entries]
