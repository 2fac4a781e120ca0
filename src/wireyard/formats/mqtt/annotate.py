"""Annotations of every byte of a control packet, for display.

They are made of the fields that the scalar reader marked, so they agree with the row. Text from the
wire is shown with its control characters escaped; secrets are not shown.
"""

from __future__ import annotations

from wireyard.errors import DecodeError
from wireyard.formats.base import Annotation, View
from wireyard.formats.marks import shown
from wireyard.formats.mqtt.cursor import Mark
from wireyard.formats.mqtt.framing import next_context
from wireyard.formats.mqtt.layout import SPECS, VERSION_BITS
from wireyard.formats.mqtt.packet import read_packet, type_name

__all__ = ["annotate"]

_SECRET = ("password", "authentication_data")
_FIRST = "packet type and flags"


def annotate(view: View, context: int = 0) -> list[Annotation]:
    """Return annotations of all bytes of one whole packet, in order and without gaps.

    The annotation of a field that breaks a rule names the rule.
    """
    _, cursor = read_packet(view, context, traced=True)
    marks, faults = cursor.marks, cursor.faults
    version = next_context(view, context) & VERSION_BITS
    spec = SPECS[version]
    annotations = [
        Annotation(
            mark.start, mark.stop, mark.field, _text(mark, version) + _faults(mark, faults), spec
        )
        for mark in marks
    ]
    end = marks[-1].stop if marks else 0
    if end < len(view) or not marks:
        error = faults[-1] if faults else None
        text, place = (str(error), error.spec) if error else ("", spec)
        annotations.append(Annotation(end, len(view), "not readable", text, place))
    return annotations


def _faults(mark: Mark, faults: list[DecodeError]) -> str:
    """Return the faults of a field in brackets, to follow its value."""
    own = [error for error in faults if mark.start <= error.offset < mark.stop]
    return "".join(f" ({error.problem}: {error.code})" for error in own)


def _text(mark: Mark, version: int) -> str:
    value = mark.value
    if mark.field == _FIRST and isinstance(value, int):
        name = type_name(value >> 4, version) or "no type"
        return f"{value >> 4} ({name}), flags {value & 15:04b}"
    if mark.field in _SECRET and isinstance(value, bytes):
        return f"{len(value)} bytes, not shown"
    if isinstance(value, bytes):
        return shown(_readable(value))
    return str(value)


def _readable(value: bytes) -> str:
    """Return bytes as text if they are UTF-8, else in hexadecimal."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()
