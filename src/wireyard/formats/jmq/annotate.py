"""Every byte of a packet with its meaning, for people.

The annotations of a packet touch: each begins where the one before it stops. Bytes that cannot be
read are one annotation, which says why. Text from the wire is shown with its control characters
escaped, and passwords not at all.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from wireyard.errors import DecodeError
from wireyard.formats.base import Annotation, Row, View
from wireyard.formats.jmq.address import address_text
from wireyard.formats.jmq.body import body_text, iso_text
from wireyard.formats.jmq.items import ItemSpan, item_value, walk_items
from wireyard.formats.jmq.layout import (
    COLUMNS,
    HEADER_BYTES,
    HEADERS,
    ITEMS,
    MAGIC,
    PACKET_TYPES,
    SPEC,
    VERSIONS,
)
from wireyard.formats.jmq.message import SECRET_BODIES
from wireyard.formats.jmq.packet import read_properties, read_row
from wireyard.formats.properties import (
    TYPES,
    Cursor,
    Properties,
    decode_value,
    property_text,
)

__all__ = ["annotate"]

MAX_SHOWN = 200
"""Characters of one value; an inspector's line, not the way to take a body out."""

_LIST = f"{SPEC}, variable header"
_PROPERTIES = f"{SPEC}, property data"
_BODY = f"{SPEC}, message data"
_HISTORY = f"{SPEC}, history, 3.0.1"
_PREFIX_FIELDS = 4
_LENGTHS = {"string": 2, "object": 4}
"""Bytes of the length in front of a property value; the others have their type's."""
_UNITS = {column.name: column.unit for column in COLUMNS}
_CODES = {name: code for code, name in TYPES.items()}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def annotate(view: View) -> list[Annotation]:
    """Return what each byte of one whole packet means, in order and without gaps.

    Limits
    ------
    A value is cut after `MAX_SHOWN` characters, and says so.
    """
    row, error = read_row(view)
    marks = _Marks()
    _mark_header(marks, view, row)
    if "body_size" in row:
        _mark_items(marks, view, row["property_offset"])
        _mark_properties(marks, view, row)
        _mark_body(marks, len(view), row)
    elif error:
        marks.unreadable(len(view), error)
    return marks.made


class _Marks:
    """Annotations from left to right; only a fault may stand where there are no bytes."""

    def __init__(self) -> None:
        self.made: list[Annotation] = []
        self.at = 0

    def to(self, stop: int, field: str, value: str, spec: str) -> None:
        """Annotate the bytes from the last annotation to `stop`."""
        if stop > self.at:
            self.made.append(Annotation(self.at, stop, field, value, spec))
            self.at = stop

    def unreadable(self, stop: int, error: DecodeError) -> None:
        """Annotate the bytes up to `stop`, if there are any, with why they cannot be read."""
        self.made.append(Annotation(self.at, stop, "not readable", str(error), error.spec))
        self.at = stop


def _mark_header(marks: _Marks, view: View, row: Row) -> None:
    """Annotate the fields that are there, as far as the version is known to have them."""
    layout = HEADERS.get(row.get("version", 0))
    fields = layout.fields if layout else HEADERS[VERSIONS[-1]].fields[:_PREFIX_FIELDS]
    for field in fields if "version" in row else fields[:1]:
        if field.stop > len(view):
            break
        data = bytes(view[field.offset : field.stop])
        signed = field.kind.startswith("i")
        value = data if field.kind == "bytes" else int.from_bytes(data, "big", signed=signed)
        shown = _header_text(field.name, field.unit, value, row)
        marks.to(field.stop, field.name, shown, field.spec)


def _header_text(name: str, unit: str | None, value: Any, row: Row) -> str:
    match name:
        case "magic":
            return f"{value}" if value == MAGIC else f"{value}, not {MAGIC}"
        case "packet_type":
            return f"{value} ({PACKET_TYPES.get(value, 'unknown')})"
        case "source_ip":
            return address_text(value)
        case "bit_flags" if "flags" in row:
            return f"{value:#06x} ({row['flags'] or 'none'})"
        case "expiration" if value == 0:
            return "0 (never)"
        case _:
            return _number_text(value, unit)


def _number_text(value: int, unit: str | None) -> str:
    if unit == "bytes":
        return _bytes_text(value)
    if unit == "ms since epoch":
        try:
            return f"{value} ({iso_text(_EPOCH + timedelta(milliseconds=value))})"
        except OverflowError:
            return f"{value} (out of the calendar)"
    return str(value)


def _mark_items(marks: _Marks, view: View, stop: int) -> None:
    try:
        for span in walk_items(view, HEADER_BYTES, stop):
            _mark_item(marks, view, span)
    except DecodeError as error:
        marks.unreadable(stop, error)
    marks.to(stop, "padding", _bytes_text(stop - marks.at), _LIST)


def _mark_item(marks: _Marks, view: View, span: ItemSpan) -> None:
    item = ITEMS.get(span.code)
    if span.code == 0:
        marks.to(span.stop, "list end", "0", _LIST)
        return
    name, spec = (item.name, item.spec) if item else (f"item {span.code}", _LIST)
    marks.to(span.start + 2, "item type", f"{span.code} ({item.name if item else 'unknown'})", spec)
    marks.to(span.value, "item length", _bytes_text(span.stop - span.value), spec)
    try:
        value = item_value(view, span)
    except DecodeError as error:
        marks.unreadable(span.stop, error)
        return
    if isinstance(value, int):
        shown = _number_text(value, _UNITS[name])
    else:
        shown = _shown(value.hex() if isinstance(value, bytes) else value)
    marks.to(span.stop, name, shown, spec)


def _mark_properties(marks: _Marks, view: View, row: Row) -> None:
    start = row["property_offset"]
    section = bytes(view[start : start + row["property_size"]])
    if not section:
        return
    stop = start + len(section)
    fault: DecodeError | None = None
    found: Properties | None = None
    try:
        found = read_properties(row["version"], section, start)
    except DecodeError as error:
        fault = error
    if row["version"] == 301:
        _mark_marshalled(marks, section, start, fault)
    elif found is not None:
        # Before 3.0.1 the section is one serialized object, whose parts refer to each other.
        text = ", ".join(f"{name} = {property_text(*entry)}" for name, entry in found.items())
        marks.to(stop, "properties", _shown(text), _HISTORY)
    if fault:
        marks.unreadable(stop, fault)
    marks.to(stop, "after the properties", f"{_bytes_text(stop - marks.at)}, ignored", _PROPERTIES)


def _mark_marshalled(marks: _Marks, section: bytes, start: int, fault: DecodeError | None) -> None:
    cursor = Cursor(section, "jmq", start, SPEC)
    with suppress(DecodeError):  # It would be the fault again.
        for field in ("property version", "property count"):
            number = cursor.integer(4, field)
            marks.to(start + cursor.at, field, str(number), _PROPERTIES)
        for _ in range(number):
            if fault and fault.offset <= marks.at:
                break
            _mark_property(marks, cursor, start)


def _mark_property(marks: _Marks, cursor: Cursor, start: int) -> None:
    value_at = start + cursor.at + 2
    name = cursor.text("property name")
    type_at = start + cursor.at
    marks.to(value_at, "property name length", _bytes_text(type_at - value_at), _PROPERTIES)
    marks.to(type_at, "property name", _shown(name), _PROPERTIES)
    kind, value = decode_value(cursor)
    stop = start + cursor.at
    marks.to(type_at + 2, "property type", f"{_CODES[kind]} ({kind})", _PROPERTIES)
    value_at = marks.at + _LENGTHS.get(kind, 0)
    marks.to(value_at, "property value length", _bytes_text(stop - value_at), _PROPERTIES)
    marks.to(stop, _shown(name), _shown(property_text(kind, value)), _PROPERTIES)


def _mark_body(marks: _Marks, stop: int, row: Row) -> None:
    size = _bytes_text(row["body_size"])
    try:
        text = _shown(body_text(row) or "")
    except DecodeError as error:
        text = str(error)
    hidden = ", password not shown" if row["packet_type"] in SECRET_BODIES else ""
    marks.to(stop, "body", f"{size}{hidden}: {text}", _BODY)


def _shown(text: str) -> str:
    """Return text for one line: nothing in it may move a terminal's cursor."""
    cut = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text[:MAX_SHOWN]
    )
    return cut if len(text) <= MAX_SHOWN else f"{cut}.. ({len(text) - MAX_SHOWN} more characters)"


def _bytes_text(count: int) -> str:
    return f"{count} byte{'s' * (count != 1)}"
