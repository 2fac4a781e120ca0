"""Annotations of every byte of a packet, for display.

They are contiguous: each begins where the one before it stops. Bytes that cannot be read are one
annotation with the error. Text from the wire is shown with its control characters escaped. Bytes
that may be secret are hidden.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from wireyard.errors import DecodeError
from wireyard.formats.base import Annotation, Row, View
from wireyard.formats.jmq.body import body_text
from wireyard.formats.jmq.items import ItemSpan, item_value, walk_items
from wireyard.formats.jmq.layout import (
    COLUMNS,
    HEADER_BYTES,
    HEADERS,
    ITEMS,
    MAGIC,
    SECRET_BODIES,
    SPEC,
    VERSIONS,
)
from wireyard.formats.jmq.packet import read_row
from wireyard.formats.jmq.reading import read_properties
from wireyard.formats.jmq.secrets import login_user
from wireyard.formats.jmq.trailer import STAMP_BYTES
from wireyard.formats.marks import (
    Marks,
    bytes_text,
    header_text,
    mark_header,
    mark_marshalled,
    number_text,
    shown,
)
from wireyard.formats.message_id import address_text
from wireyard.formats.property_rows import property_text
from wireyard.layout import Field

_LIST = f"{SPEC}, variable header"
_BODY = f"{SPEC}, message data"
_HISTORY = f"{SPEC}, history, 3.0.1"
_PREFIX_FIELDS = 4
_UNITS = {column.name: column.unit for column in COLUMNS}


def annotate(view: View, context: int = 0) -> list[Annotation]:
    """Return annotations of all bytes of one whole packet, in order and without gaps.

    A value is cut after ``wireyard.formats.marks.MAX_SHOWN`` characters, with a note.
    """
    row, error = read_row(view, context)
    marks = Marks()
    _mark_header(marks, view, row)
    is_login = row.get("packet_type") in SECRET_BODIES
    if is_login and (error or "raw_header" in row or "raw_properties" in row):
        marks.hide(len(view), "not readable", SPEC)
    elif "body_size" in row:
        _mark_items(marks, view, row["property_offset"])
        _mark_properties(marks, view, row, context == 1)
        if error and error.offset >= marks.at:  # the size of the message, or its time stamps
            marks.unreadable(len(view), error)
            return marks.annotations
        _mark_body(marks, marks.at + row["body_size"], row)
        for stamp in row.get("timestamps") or ():
            text = shown(f"whence {stamp['name']}: {stamp['value']}")
            marks.to(marks.at + STAMP_BYTES, "time stamp", text, f"{SPEC}, open issue 2")
    elif error:
        marks.unreadable(len(view), error)
    return marks.annotations


def _mark_header(marks: Marks, view: View, row: Row) -> None:
    """Annotate the available fields of the header; of an unknown version, those of any version."""
    layout = HEADERS.get(row.get("version", 0))
    fields = layout.fields if layout else HEADERS[VERSIONS[-1]].fields[:_PREFIX_FIELDS]
    mark_header(marks, view, fields if "version" in row else fields[:1], partial(_text, row))


def _text(row: Row, field: Field, value: Any) -> str:
    match field.name:
        case "magic":
            return f"{value}" if value == MAGIC else f"{value}, not {MAGIC}"
        case "source_ip":
            return address_text(value)
        case "expiration" if value == 0:
            return "0 (never)"
        case _:
            return header_text(field, value, row)


def _mark_items(marks: Marks, view: View, stop: int) -> None:
    try:
        for span in walk_items(view, HEADER_BYTES, stop):
            _mark_item(marks, view, span)
    except DecodeError as error:
        marks.unreadable(stop, error)
    marks.to(stop, "padding", bytes_text(stop - marks.at), _LIST)


def _mark_item(marks: Marks, view: View, span: ItemSpan) -> None:
    item = ITEMS.get(span.code)
    if span.code == 0:
        marks.to(span.stop, "list end", "0", _LIST)
        return
    name, spec = (item.name, item.spec) if item else (f"item {span.code}", _LIST)
    marks.to(span.start + 2, "item type", f"{span.code} ({item.name if item else 'unknown'})", spec)
    marks.to(span.value, "item length", bytes_text(span.stop - span.value), spec)
    try:
        value = item_value(view, span)
    except DecodeError as error:
        marks.unreadable(span.stop, error)
        return
    if isinstance(value, int):
        text = number_text(value, _UNITS[name])
    else:
        text = shown(value.hex() if isinstance(value, bytes) else value)
    marks.to(span.stop, name, text, spec)


def _mark_properties(marks: Marks, view: View, row: Row, short_objects: bool) -> None:
    start = row["property_offset"]
    section = bytes(view[start : start + row["property_size"]])
    if not section:
        return
    if row["version"] == 301:
        mark_marshalled(marks, section, start, "jmq", SPEC, short_objects)
        return
    # Before 3.0.1 the section is one serialized object, so it is one annotation.
    stop = start + len(section)
    try:
        properties = read_properties(row["version"], section, start)
    except DecodeError as error:
        marks.unreadable(stop, error)
        return
    text = ", ".join(f"{name} = {property_text(*entry)}" for name, entry in properties.items())
    marks.to(stop, "properties", shown(text) or "none", _HISTORY)


def _mark_body(marks: Marks, stop: int, row: Row) -> None:
    size = bytes_text(row["body_size"])
    if row["packet_type"] in SECRET_BODIES:
        user = login_user(row)
        what = "password not shown" if user is None else f"password not shown: user {shown(user)}"
        marks.hide(stop, "body", _BODY, what)
        return
    try:
        text = shown(body_text(row) or "")
    except DecodeError as error:
        text = str(error)
    marks.to(stop, "body", f"{size}: {text}", _BODY)
