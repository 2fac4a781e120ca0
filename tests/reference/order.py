"""Rows of packets in the order of time."""

from __future__ import annotations

from collections.abc import Iterable

from wireyard.formats.base import Row

__all__ = ["in_order"]


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Merge the rows of all streams, which come stream by stream, into the order of time.

    A receiver reads a stream in order, so a packet counts from when all before it have arrived. A
    gap has no time and follows the row before it.
    """
    latest: dict[tuple[str, str], tuple[int, int]] = {}
    positions = []
    for place, row in enumerate(rows):
        stream = row["source"], row["stream"]
        position = latest.get(stream, (0, 0))
        if row.get("captured_ns") is not None:
            position = latest[stream] = max(position, (row["captured_ns"], row["frame"]))
        positions.append((*position, place, row))
    positions.sort(key=lambda position: position[:3])
    return [row for *_, row in positions]
