"""Text for people: payloads as text where they are text, and times."""

from __future__ import annotations

import re
from datetime import UTC, datetime

__all__ = ["CONTROL", "PAYLOADS", "cut_note", "moment", "payload_text"]

PAYLOADS = ("payload", "will_payload", "body", "data")
"""The columns of bytes that are payloads of messages."""
CONTROL = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
"""Characters by which bytes count as binary: all controls except tab and line breaks."""
_CONTROL = re.compile(CONTROL)


def cut_note(count: int) -> str:
    """Return the note behind a payload of which `count` bytes were cut."""
    return f"...[{count} byte{'s' * (count != 1)} cut]"


def payload_text(data: bytes, most_bytes: int | None = None) -> str:
    """Return a payload as text if it is printable UTF-8, else as ``0x`` and hexadecimal.

    It is cut after `most_bytes`, text before a character that would be split.
    """
    stop = len(data) if most_bytes is None else min(most_bytes, len(data))
    whole = stop
    while whole and whole > stop - 4 and data[whole : whole + 1] and data[whole] & 0xC0 == 0x80:
        whole -= 1
    try:
        text = data[:whole].decode()
    except UnicodeDecodeError:
        text = "\0"
    if _CONTROL.search(text):
        text, whole = f"0x{data[:stop].hex()}", stop
    return text + cut_note(len(data) - whole) if whole < len(data) else text


def moment(time_ns: int, digits: int = 9) -> str:
    """Return nanoseconds since 1970 as ISO 8601 in UTC, with `digits` of the second's fraction."""
    seconds, fraction = divmod(time_ns, 1_000_000_000)
    try:
        found = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_ns)  # a capture may have any year
    return f"{found:%Y-%m-%dT%H:%M:%S}.{fraction:09d}"[: 20 + digits] + "Z"
