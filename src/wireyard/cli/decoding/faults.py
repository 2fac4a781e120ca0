"""Faults: counts of the rows of a stream that are no well-formed packets."""

from __future__ import annotations

from typing import Any

from wireyard.streams.framer import GAP, GARBAGE, MALFORMED, OK, TAIL

__all__ = ["UNCONVERTED", "UNOPENED", "Faults"]

UNOPENED = "unopened"
"""A well-formed packet whose body cannot be decoded as the packet declares."""

UNCONVERTED = "unconverted"
"""A well-formed packet that is not a converted packet of the other format."""

_TEXTS = {
    MALFORMED: "{count} malformed packet{s}, {bytes} byte{bs}",
    GARBAGE: "{count} run{s} of bytes that belong to no packet, {bytes} byte{bs}",
    TAIL: "cut short inside a packet, {bytes} byte{bs} of it",
    GAP: "{count} gap{s} in the capture, {bytes} byte{bs}",
    UNCONVERTED: "{count} packet{s} that cannot be converted, {bytes} byte{bs}",
    UNOPENED: "{count} packet{s} whose body cannot be opened, {bytes} byte{bs}",
}


class Faults:
    """Counts of the rows of one stream that are no well-formed packets."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._bytes: dict[str, int] = {}
        self._first: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, status: str, offset: int, length: int, error: dict[str, Any] | None) -> None:
        """Count a row, unless it is a well-formed packet."""
        if status == OK:
            return
        self._counts[status] = self._counts.get(status, 0) + 1
        self._bytes[status] = self._bytes.get(status, 0) + length
        why = f": {error['message']}" if error else ""
        self._first.setdefault(status, f"at offset {offset}{why}")

    def text(self) -> str:
        """Return one line with the counts, and the first offset of each kind."""
        known = [status for status in _TEXTS if status in self._counts]
        others = [status for status in self._counts if status not in _TEXTS]
        return "; ".join(self._one(status) for status in (*known, *others))

    def _one(self, status: str) -> str:
        count, size = self._counts[status], self._bytes[status]
        text = _TEXTS.get(status, f"{{count}} {status}{{s}}, {{bytes}} byte{{bs}}")
        shown = text.format(count=count, bytes=size, s="s" * (count != 1), bs="s" * (size != 1))
        return f"{shown}, {'first ' if count > 1 else ''}{self._first[status]}"
