"""Annotations of every byte of a row, for display.

They are contiguous: each begins where the one before it stops. Of a packet that breaks a rule, all
messages before the fault are annotated, and then the unreadable bytes with the error.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from wireyard.errors import DecodeError
from wireyard.formats.base import Annotation, View
from wireyard.formats.marks import Marks, bytes_text, number_text, shown
from wireyard.formats.rmp.context import MessageContext
from wireyard.formats.rmp.layout import (
    FLAG_ORDER,
    FLAGS,
    LAYER_MASK,
    LAYERS,
    LIST_ORDER,
    PREFIX_BYTES,
    SPEC,
    TYPING,
)
from wireyard.formats.rmp.packet import read_row
from wireyard.formats.rmp.reading import framed_bytes, read_message

_TYPING = TYPING.fields[0]


def annotate(view: View, context: int = 0) -> list[Annotation]:
    """Return annotations of all bytes of a row, in order and without gaps.

    A value is cut after ``marks.MAX_SHOWN`` characters, with a note.
    """
    marks = Marks()
    state = MessageContext.of(context)
    _, error = read_row(view, context)
    if state.framed and not state.ordinal and len(view) >= PREFIX_BYTES:
        size = framed_bytes(view, 0) - PREFIX_BYTES
        marks.to(PREFIX_BYTES, "packet length", bytes_text(size), SPEC)
    while marks.at < len(view) and _mark_message(marks, view, state.list_order):
        pass
    if error is not None:
        marks.unreadable(len(view), error)
    return marks.annotations


def _mark_message(marks: Marks, view: View, list_order: bool) -> bool:
    """Annotate the readable part of the next message; return whether that is all of it."""
    values: dict[str, Any] = {}
    with suppress(DecodeError):  # `annotate` shows the error
        read_message(view, marks.at, len(view), list_order, values)
    word = values.get("typing", 0)
    if "layer" in values:
        marks.to(marks.at + TYPING.size, _TYPING.name, _typing_text(word), _TYPING.spec)
    for part in LIST_ORDER if list_order else FLAG_ORDER:
        for field in part.layout.fields:
            if "layer" in values and word & FLAGS[part.flag] and field.name in values:
                value = values[field.name]
                text = value if isinstance(value, str) else number_text(value, field.unit)
                marks.to(marks.at + field.width, field.name, text, field.spec)
    if "data" in values:
        data = values["data"]
        text = f"{bytes_text(len(data))}: {shown(data.hex())}"
        marks.to(marks.at + len(data), "foreign data" if values["foreign"] else "data", text, SPEC)
    return "data" in values


def _typing_text(word: int) -> str:
    flags = [flag for flag, bit in FLAGS.items() if word & bit]
    layer = LAYERS.get(word & LAYER_MASK, "unknown")
    return f"{word:#06x} ({layer} layer; {', '.join(flags) or 'no flags'})"
