"""Text for people: what is escaped, payloads as text where they are text, times, sizes, counts."""

from __future__ import annotations

import codecs
import re
from datetime import UTC, datetime
from typing import Final

PAYLOADS: Final = ("payload", "will_payload", "body", "data")
"""The columns of bytes that are payloads of messages."""
CONTROL: Final = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
"""Characters by which bytes count as binary: all controls except tab and line breaks."""
_CONTROL: Final = re.compile(CONTROL)
_Decoder: Final = codecs.getincrementaldecoder("utf-8")
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_SPANS: Final = (
    (86_400 * 10**9, "d"), (3600 * 10**9, "h"), (60 * 10**9, "min"), (10**9, "s"), (10**6, "ms"),
    (10**3, "µs"), (1, "ns"),
)  # fmt: skip


def printable(text: str) -> str:
    """Return text from the wire, or a name, with unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def clipped(text: str, most: int) -> str:
    """Shorten text to `most` characters; more is kept of the end, where names differ."""
    text = printable(text)
    if len(text) <= most:
        return text
    head = most // 3
    return f"{text[:head]}…{text[len(text) - (most - head - 1) :]}"


def cut_note(count: int) -> str:
    """Return the note behind a payload of which `count` bytes were cut."""
    return f"...[{count} byte{'s' * (count != 1)} cut]"


def payload_text(data: bytes, most_bytes: int | None = None, *, is_whole: bool = True) -> str:
    """Return a payload as text if it is printable UTF-8, else as ``0x`` and hexadecimal.

    It is cut after `most_bytes`, text before a character that would be split. If it is not whole,
    `data` is the beginning of a payload, and a character that it splits is left out.
    """
    stop = len(data) if most_bytes is None else min(most_bytes, len(data))
    whole = stop
    while whole and whole > stop - 4 and data[whole : whole + 1] and data[whole] & 0xC0 == 0x80:
        whole -= 1
    try:
        text = _Decoder().decode(data[:whole], final=is_whole)
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


def count_text(number: int, noun: str) -> str:
    """Return a count with its noun, as in ``1 file`` and ``2,048 files``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def bytes_text(size: float) -> str:
    """Return a number of bytes in three digits and a unit of powers of ten."""
    place = 0
    while abs(size) >= 999.5 and place < len(_UNITS) - 1:
        size /= 1000
        place += 1
    digits = 0 if place == 0 or size >= 99.5 else 1
    return f"{size:,.{digits}f} {_UNITS[place]}"


def span_text(time_ns: float) -> str:
    """Return a length of time in three digits and a unit."""
    for width, unit in _SPANS:
        if time_ns >= width:
            value = time_ns / width
            return f"{value:.{0 if value >= 99.5 else 1}f}".removesuffix(".0") + f" {unit}"
    return "0"
