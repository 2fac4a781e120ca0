"""Every byte of a control packet with its meaning, for people.

The annotations are the fields as the reader took them, so they cannot say anything else than the
row does. Text from the wire is shown with its control characters escaped, secrets not at all.
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
    """Return what each byte of one whole packet means, in order and without gaps.

    A field that breaks a rule says which.
    """
    _, cursor = read_packet(view, context, traced=True)
    marks, faults = cursor.marks, cursor.faults
    version = next_context(view, context) & VERSION_BITS
    spec = SPECS[version]
    made = [
        Annotation(
            mark.start, mark.stop, mark.field, _text(mark, version) + _broken(mark, faults), spec
        )
        for mark in marks
    ]
    read = marks[-1].stop if marks else 0
    if read < len(view) or not marks:
        why = faults[-1] if faults else None
        text = str(why) if why else ""
        made.append(Annotation(read, len(view), "not readable", text, why.spec if why else spec))
    return made


def _broken(mark: Mark, faults: list[DecodeError]) -> str:
    """Return what is wrong with a field, in brackets behind its value."""
    found = [error for error in faults if mark.start <= error.offset < mark.stop]
    return "".join(f" ({error.problem}: {error.code})" for error in found)


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
    """Return bytes as text if they are text, else in hexadecimal."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()
