"""Building the annotations of a packet from left to right, for the inspectors of several formats.

Text from the wire is shown with its control characters escaped, and cut after `MAX_SHOWN`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from wireyard.errors import DecodeError
from wireyard.formats.base import Annotation, Format, Row, View
from wireyard.formats.cursor import Cursor
from wireyard.formats.plain_values import time_text
from wireyard.formats.properties import TYPES, decode_properties, decode_value, section_cursor
from wireyard.formats.property_rows import property_text
from wireyard.layout import Field

MAX_SHOWN = 200
"""Most characters of a value in an annotation, which is one line."""

_CODES = {name: code for code, name in TYPES.items()}


def masked(format: Format, data: bytes, context: int) -> bytes:
    """Return one packet, or its beginning, with asterisks for the bytes that may be secret."""
    shown = bytearray(data)
    for mark in format.annotate(data, context):
        if mark.hidden:
            shown[mark.start : mark.stop] = b"*" * (mark.stop - mark.start)
    return bytes(shown)


class Marks:
    """Annotations from left to right; only that of an error may be of no bytes."""

    def __init__(self) -> None:
        self.annotations: list[Annotation] = []
        self.at = 0

    def to(self, stop: int, field: str, value: str, spec: str) -> None:
        """Annotate the bytes from the last annotation to `stop`."""
        if stop > self.at:
            self.annotations.append(Annotation(self.at, stop, field, value, spec))
            self.at = stop

    def hide(self, stop: int, field: str, spec: str, what: str = "not shown") -> None:
        """Annotate the bytes up to `stop` without their value, because they may be secret."""
        if stop > self.at:
            text = f"{bytes_text(stop - self.at)}, {what}"
            self.annotations.append(Annotation(self.at, stop, field, text, spec, hidden=True))
            self.at = stop

    def unreadable(self, stop: int, error: DecodeError) -> None:
        """Annotate the bytes up to `stop`, possibly none, with the error that stops the reading."""
        self.annotations.append(
            Annotation(self.at, stop, "not readable", str(error), error.spec, hidden=True)
        )
        self.at = stop


def mark_marshalled(
    marks: Marks, section: bytes, start: int, format: str, spec: str, short_objects: bool
) -> None:
    """Annotate a marshalled property section at `start` of its packet.

    `format` and `spec`, the format's name and its document, are for errors and annotations;
    `short_objects` is as in `decode_properties`.
    """
    stop = start + len(section)
    cursor = section_cursor(section, format, start, spec)
    fault: DecodeError | None = None
    try:
        decode_properties(section, format, start, spec, short_objects)
    except DecodeError as error:
        fault = error
    with suppress(DecodeError):  # the same error as `fault`
        for field in ("property version", "property count"):
            number = cursor.integer(4, field)
            marks.to(start + cursor.at, field, str(number), cursor.spec)
        for _ in range(number):
            if fault and fault.offset <= marks.at:
                break
            _mark_property(marks, cursor, short_objects)
    if fault:
        marks.unreadable(stop, fault)
    marks.to(stop, "after the properties", f"{bytes_text(stop - marks.at)}, ignored", cursor.spec)


def _mark_property(marks: Marks, cursor: Cursor, short_objects: bool) -> None:
    start, spec = cursor.base, cursor.spec
    value_at = start + cursor.at + 2
    name = cursor.text("property name")
    type_at = start + cursor.at
    marks.to(value_at, "property name length", bytes_text(type_at - value_at), spec)
    marks.to(type_at, "property name", shown(name), spec)
    kind, value = decode_value(cursor, short_objects)
    stop = start + cursor.at
    marks.to(type_at + 2, "property type", f"{_CODES[kind]} ({kind})", spec)
    value_at = marks.at
    if kind == "string":
        value_at += 2
    elif isinstance(value, bytes):
        value_at = stop - len(value)
    marks.to(value_at, "property value length", bytes_text(stop - value_at), spec)
    marks.to(stop, shown(name) or "(empty name)", shown(property_text(kind, value)), spec)


def shown(text: str) -> str:
    """Return text for one line of a terminal, with control characters escaped."""
    cut = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text[:MAX_SHOWN]
    )
    return cut if len(text) <= MAX_SHOWN else f"{cut}.. ({len(text) - MAX_SHOWN} more characters)"


def bytes_text(count: int) -> str:
    """Return a number of bytes in words."""
    return f"{count} byte{'s' * (count != 1)}"


def number_text(value: int, unit: str | None) -> str:
    """Return a number with its unit; a time in ms since epoch as ISO 8601 too."""
    if unit == "bytes":
        return bytes_text(value)
    if unit == "ms since epoch":
        return f"{value} ({time_text(value) or 'out of the calendar'})"
    return str(value)


def mark_header(
    marks: Marks, view: View, fields: Iterable[Field], text: Callable[[Field, Any], str]
) -> None:
    """Annotate the fields of a header that are in the view; `text` shows the value of each."""
    for field in fields:
        if field.stop > len(view):
            break
        data = bytes(view[field.offset : field.stop])
        signed = field.kind.startswith("i")
        value = data if field.kind == "bytes" else int.from_bytes(data, "big", signed=signed)
        marks.to(field.stop, field.name, text(field, value), field.spec)


def header_text(field: Field, value: int, row: Row) -> str:
    """Return the value of a header field as text, with the names that its row has."""
    match field.name:
        case "packet_type":
            return f"{value} ({row.get('packet_type_name') or 'unknown'})"
        case "bit_flags" if "flags" in row:
            return f"{value:#0{2 + 2 * field.width}x} ({row['flags'] or 'none'})"
        case _:
            return number_text(value, field.unit)
