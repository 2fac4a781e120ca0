"""Annotations of every byte of a control packet, for display.

They are made of the fields that the scalar reader marked, so they agree with the row. Text from the
wire is shown with its control characters escaped; secrets are not shown.
"""

from __future__ import annotations

from collections.abc import Collection

from wireyard.errors import DecodeError
from wireyard.formats.base import Annotation, Row, View
from wireyard.formats.marks import shown
from wireyard.formats.mqtt.cursor import Mark
from wireyard.formats.mqtt.framing import next_context
from wireyard.formats.mqtt.layout import PROTOCOLS, SPECS, VERSION_BITS
from wireyard.formats.mqtt.packet import read_packet, type_name
from wireyard.formats.mqtt.secrets import SECRET_TYPES, is_exact

_SECRET = ("password", "authentication_data")
_FIRST = "packet type and flags"
_UNREAD = "not readable"
_HEADER_BYTES = 4
"""Bytes that are shown of a packet that cannot be read to its end: it may be a part of another."""
_HEADS = (
    _FIRST,
    "Remaining Length",
    "protocol level",
    "connect flags",
    "keep alive",
    "connect acknowledge flags",
    "return code",
    "reason code",
)
"""Fields before the first text, which are shown of every packet."""


def annotate(view: View, context: int = 0) -> list[Annotation]:
    """Return annotations of all bytes of one whole packet, in order and without gaps.

    The annotation of a field that breaks a rule names the rule. Bytes that may be secret are
    hidden.
    """
    values, cursor = read_packet(view, context, traced=True)
    marks, faults = cursor.marks, cursor.faults
    version = next_context(view, context) & VERSION_BITS
    spec, heads = SPECS[version], _shown_fields(values, faults)
    end = marks[-1].stop if marks else 0
    is_read = end == len(view) and all(mark.value != _UNREAD for mark in marks)
    annotations = []
    for mark in marks:
        if heads is None:
            hidden = not is_read and mark.stop > _HEADER_BYTES
        else:
            hidden = mark.field not in heads
        hidden |= mark.field in _SECRET or mark.value == _UNREAD
        size = mark.stop - mark.start
        text = f"{size} bytes, not shown" if hidden else _text(mark, version)
        text += _faults(mark, faults)
        annotations.append(Annotation(mark.start, mark.stop, mark.field, text, spec, hidden))
    if end < len(view) or not marks:
        error = faults[-1] if faults else None
        text, place = (str(error), error.spec) if error else ("", spec)
        annotations.append(Annotation(end, len(view), _UNREAD, text, place, hidden=True))
    return annotations


def _shown_fields(values: Row, faults: list[DecodeError]) -> Collection[str] | None:
    """Return the only fields that may be shown, None for all."""
    verdict = {"verdict": faults[0].code if faults else None}
    if values.get("packet_type") not in SECRET_TYPES or is_exact({**values, **verdict}):
        return None
    if values.get("protocol_name") in PROTOCOLS.values():
        return (*_HEADS, "protocol name", "protocol name length")
    return _HEADS


def _faults(mark: Mark, faults: list[DecodeError]) -> str:
    """Return the faults of a field in brackets, to follow its value."""
    own = [error for error in faults if mark.start <= error.offset < mark.stop]
    return "".join(f" ({error.problem}: {error.code})" for error in own)


def _text(mark: Mark, version: int) -> str:
    value = mark.value
    if mark.field == _FIRST and isinstance(value, int):
        name = type_name(value >> 4, version) or "no type"
        return f"{value >> 4} ({name}), flags {value & 15:04b}"
    if isinstance(value, bytes):
        return shown(_readable(value))
    return str(value)


def _readable(value: bytes) -> str:
    """Return bytes as text if they are UTF-8, else in hexadecimal."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()
