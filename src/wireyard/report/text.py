"""Formatting of values for people; text from the wire is escaped."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from typing import Final

__all__ = [
    "bytes_text",
    "clipped",
    "count_text",
    "moment_text",
    "payload_text",
    "rate_text",
    "span_text",
]

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_SPANS: Final = (
    (86_400 * 10**9, "d"), (3600 * 10**9, "h"), (60 * 10**9, "min"), (10**9, "s"), (10**6, "ms"),
    (10**3, "µs"), (1, "ns"),
)  # fmt: skip
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Categories of characters that are invisible or change others: controls, direction marks, ..."""


def shown(text: str) -> str:
    """Return text with its invisible characters escaped."""
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _UNSEEN else char
        for char in text
    )


def clipped(text: str, most: int) -> str:
    """Shorten text to `most` characters; more is kept of the end, where names differ."""
    text = shown(text)
    if len(text) <= most:
        return text
    head = most // 3
    return f"{text[:head]}…{text[len(text) - (most - head - 1) :]}"


def count_text(number: float) -> str:
    """Return a number with commas."""
    return f"{number:,}"


def rate_text(count: int, span_ns: int) -> str:
    """Return how many there were a second; empty if no time passed."""
    if not span_ns:
        return ""
    rate = count * 1e9 / span_ns
    return f"{rate:,.{0 if rate >= 99.5 else 1 if rate >= 0.95 else 3}f}/s"


def bytes_text(size: float) -> str:
    """Return a number of bytes in three digits and a unit of powers of ten."""
    place = 0
    while abs(size) >= 999.5 and place < len(_UNITS) - 1:
        size /= 1000
        place += 1
    digits = 0 if place == 0 or size >= 99.5 else 1
    return f"{size:,.{digits}f} {_UNITS[place]}"


def span_text(ns: float) -> str:
    """Return a length of time in three digits and a unit."""
    for width, unit in _SPANS:
        if ns >= width:
            value = ns / width
            return f"{value:.{0 if value >= 99.5 else 1}f}".removesuffix(".0") + f" {unit}"
    return "0"


def moment_text(ns: int) -> str:
    """Return nanoseconds since 1970 as ISO 8601 in UTC, with milliseconds."""
    seconds, rest = divmod(ns, 10**9)
    try:
        found = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{ns} ns"  # a capture may have any year
    return f"{found:%Y-%m-%dT%H:%M:%S}.{rest // 10**6:03d}Z"


def payload_text(data: bytes) -> str:
    """Return bytes as text if they are printable UTF-8, else in hexadecimal."""
    try:
        # The last character may be truncated.
        text = data.decode("utf-8") if len(data) < 4 else _without_cut(data)
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return (
        shown(text)
        if all(char.isprintable() or char in "\t\n\r" for char in text)
        else f"0x{data.hex()}"
    )


def _without_cut(data: bytes) -> str:
    for less in range(4):
        try:
            return data[: len(data) - less].decode("utf-8")
        except UnicodeDecodeError as error:
            if less == 3 or error.end < len(data) - less:
                raise
    raise AssertionError
