"""Annotations of every byte of a packet, for display.

They are contiguous: each begins where the one before it stops. Bytes that cannot be read are one
annotation with the error.
"""

from __future__ import annotations

from wireyard.errors import DecodeError
from wireyard.formats.base import Annotation, Row, View
from wireyard.formats.gpacket.layout import (
    HEADER_BYTES,
    LINK_HEADER,
    LINK_SPEC,
    PREFIX_BYTES,
    SPEC,
)
from wireyard.formats.gpacket.packet import header_of, read_row
from wireyard.formats.gpacket.payload import payload_text
from wireyard.formats.gpacket.secrets import SECRET_TYPES, redact
from wireyard.formats.marks import (
    Marks,
    bytes_text,
    header_text,
    mark_header,
    mark_marshalled,
    shown,
)
from wireyard.layout import Layout


def annotate(view: View, context: int = 0) -> list[Annotation]:
    """Return annotations of all bytes of one whole packet, in order and without gaps.

    Bytes that may be secret are hidden. A value is cut after ``wireyard.formats.marks.MAX_SHOWN``
    characters, with a note.
    """
    row, error = read_row(view, context)
    layout = header_of(bytes(view[:PREFIX_BYTES]))
    marks = Marks()
    if layout is not None:
        _mark_header(marks, view, layout, row)
    if layout is not None and "payload_size" in row:
        changed = redact(row)
        if layout is not LINK_HEADER:
            hidden = row["packet_type"] in SECRET_TYPES and (
                error is not None
                or "raw_properties" in row
                or changed.get("properties") is not row.get("properties")
            )
            _mark_properties(marks, view, row["property_size"], bool(context), hidden)
        _mark_payload(marks, len(view), row, changed.get("payload") is not row.get("payload"))
    elif error:
        marks.unreadable(len(view), error)
    return marks.annotations


def _mark_header(marks: Marks, view: View, layout: Layout, row: Row) -> None:
    """Annotate the available fields of the header; of an unknown version, those of the prefix."""
    fields = (each for each in layout.fields if each.name in row or each.offset < PREFIX_BYTES)
    mark_header(marks, view, fields, lambda field, value: header_text(field, value, row))


def _mark_properties(
    marks: Marks, view: View, size: int, short_objects: bool, hidden: bool
) -> None:
    if size and hidden:
        marks.hide(HEADER_BYTES + size, "properties", SPEC)
    elif size:
        section = bytes(view[HEADER_BYTES : HEADER_BYTES + size])
        mark_marshalled(marks, section, HEADER_BYTES, "gpacket", SPEC, short_objects)


def _mark_payload(marks: Marks, stop: int, row: Row, hidden: bool) -> None:
    spec = LINK_SPEC if "format" in row else f"{SPEC}, payload"
    if hidden:
        marks.hide(stop, "payload", spec)
        return
    try:
        text = shown(payload_text(row) or "")
    except DecodeError as error:
        text = str(error)
    marks.to(stop, "payload", f"{bytes_text(row['payload_size'])}: {text}", spec)
