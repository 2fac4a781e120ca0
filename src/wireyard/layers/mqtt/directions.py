"""Rows of streams as the order of a capture, streams as pairs, and which of the two is whose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from wireyard.formats.mqtt.layout import (
    CONNACK,
    CONNECT,
    PINGREQ,
    PINGRESP,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
)
from wireyard.layers.endpoints import endpoint

__all__ = ["TELLING", "Side", "connection_of", "endpoints_of", "in_order", "sides_of"]

Row = Mapping[str, Any]
Stream = tuple[str, str]


class Side(NamedTuple):
    """One of the two streams of a connection."""

    by_client: bool
    alone: bool
    """Whether nothing was seen of the other."""


_TELLS: Final = {
    **dict.fromkeys((CONNECT, SUBSCRIBE, UNSUBSCRIBE, PINGREQ), True),
    **dict.fromkeys((CONNACK, SUBACK, UNSUBACK, PINGRESP), False),
}
"""The packet types that one side alone sends: whether it is the client."""
TELLING: Final = tuple(_TELLS)
"""Those types."""


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Return rows that come stream by stream in the order of time.

    A receiver reads a stream in order, so what was complete early waits for what is before it. A
    gap has no time, and stands behind the row before it.
    """
    latest: dict[Stream, tuple[int, int]] = {}
    moments = []
    for place, row in enumerate(rows):
        stream = row["source"], row["stream"]
        moment = latest.get(stream, (0, 0))
        if row.get("captured_ns") is not None:
            moment = latest[stream] = max(moment, (row["captured_ns"], row["frame"]))
        moments.append((*moment, place, row))
    moments.sort(key=lambda one: one[:3])
    return [one[3] for one in moments]


def endpoints_of(row: Row) -> tuple[str, str]:
    """Return source and destination of a packet as ``address:port``; a raw stream is its own."""
    if row.get("src_addr") is None:
        return row["stream"], ""
    return endpoint(row["src_addr"], row["src_port"]), endpoint(row["dst_addr"], row["dst_port"])


def connection_of(row: Row) -> tuple[str, ...]:
    """Return what the two streams of a connection have in common.

    The same endpoints may be used again; the ordinal behind ``#`` in the names tells which time.
    """
    if row.get("src_addr") is None:
        return row["source"], row["stream"]
    _, _, ordinal = row["stream"].partition("#")
    return row["source"], *sorted(endpoints_of(row)), ordinal


def sides_of(rows: Iterable[Row]) -> dict[Stream, Side]:
    """Return for each stream, by source and name, which side of a connection it is.

    A CONNECT decides; without one the first packet that one side alone sends does, on either
    stream. Where none is, a stream counts as a client's, so that its messages count as sent.
    """
    told: dict[Stream, bool] = {}
    connections: dict[Stream, tuple[str, ...]] = {}
    for row in rows:
        stream = row["source"], row["stream"]
        if stream not in connections:
            connections[stream] = connection_of(row)
        tells = _TELLS.get(row.get("packet_type") or 0)
        if tells is not None and (stream not in told or row["packet_type"] == CONNECT):
            told[stream] = tells
    by_connection: dict[tuple[str, ...], list[Stream]] = {}
    for stream, connection in connections.items():
        by_connection.setdefault(connection, []).append(stream)
    sides = {}
    for pair in by_connection.values():
        for one, other in zip(pair, pair[::-1], strict=True):
            by_client = told[one] if one in told else not told.get(other, False)
            sides[one] = Side(by_client, len(pair) == 1)
    return sides
