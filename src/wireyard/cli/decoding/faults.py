"""Faults: counts of the rows of a stream that are no well-formed packets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from wireyard.streams.framer import GAP, GARBAGE, MALFORMED, OK, TAIL

__all__ = ["UNCONVERTED", "UNOPENED", "Faults", "StreamFaults"]

UNOPENED = "unopened"
"""A well-formed packet whose body cannot be decoded as the packet declares."""

UNCONVERTED = "unconverted"
"""A well-formed packet that is not a converted packet of the other format."""

_MOST_STREAMS: Final = 256
"""Streams whose faults are listed; those of further ones are added up."""
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


class StreamFaults:
    """Faults by stream: a line for each of the first streams with any, and one for all others."""

    def __init__(self) -> None:
        self._streams: dict[str, Faults] = {}
        self._others = Faults()
        self._more, self._last = 0, ""

    def __getitem__(self, stream: str) -> Faults:
        """Return the faults of a stream; the rows of a stream follow each other."""
        if stream in self._streams:
            return self._streams[stream]
        if len(self._streams) < _MOST_STREAMS:
            return self._streams.setdefault(stream, Faults())
        self._more += stream != self._last
        self._last = stream
        return self._others

    def lines(self, source: str, *, captured: bool) -> Iterator[str]:
        """Yield the notes on the streams of a source, with their names if it is a capture."""
        for stream, faults in self._streams.items():
            if faults:
                yield f"{source}{f' {stream}' if captured else ''}: {faults.text()}"
        if self._more:
            several = "s" if self._more > 1 else ""
            yield f"{source}: {self._more} more stream{several}: {self._others.text()}"
