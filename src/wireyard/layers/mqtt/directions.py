"""Rows of streams as the order of a capture, streams as pairs, and which of the two is whose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from wireyard.formats.base import Row
from wireyard.formats.mqtt.layout import BROKER_TYPES, CLIENT_TYPES, CONNACK, CONNECT
from wireyard.layers.endpoints import connection_of, endpoints_of
from wireyard.layers.mqtt.properties import properties_of

__all__ = ["TELLING", "Side", "Stream", "in_order", "known_streams", "sides_of"]

Stream = tuple[str, str]
"""Source and name."""


class Side(NamedTuple):
    """One of the two streams of a connection."""

    by_client: bool
    alone: bool
    """Whether nothing was seen of the other."""
    key: tuple[str, str, str]
    """What state follows: source, server, and the client id or what stands for it."""


_TELLS: Final = dict.fromkeys(CLIENT_TYPES, True) | dict.fromkeys(BROKER_TYPES, False)
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


def sides_of(rows: Iterable[Row]) -> dict[Stream, Side]:
    """Return for each stream, by source and name, which side of a connection it is.

    A CONNECT decides; without one the first packet that one side alone sends does, on either
    stream. Where none is, a stream counts as a client's, so that its messages count as sent. The
    client id is that of the first CONNECT, unless the broker assigns one; a connection on which
    neither was seen stands for itself.

    Parameters
    ----------
    rows
        Packets; of each stream the one that decides is enough.
    """
    told: dict[Stream, bool] = {}
    first: dict[Stream, Row] = {}
    names: dict[Stream, str] = {}
    for row in rows:
        stream = row["source"], row["stream"]
        if stream not in first:
            first[stream] = row
        kind = row.get("packet_type")
        tells = _TELLS.get(kind or 0)
        if tells is None:
            continue
        if stream not in told or kind == CONNECT:
            told[stream] = tells
        if kind in (CONNECT, CONNACK) and stream not in names and (name := _client_id(row)):
            names[stream] = name
    by_connection: dict[tuple[str, ...], list[Stream]] = {}
    for stream, row in first.items():
        by_connection.setdefault(connection_of(row), []).append(stream)
    sides = {}
    for connection, pair in by_connection.items():
        by_client = {
            one: told[one] if one in told else not told.get(other, False)
            for one, other in zip(pair, pair[::-1], strict=True)
        }
        one = min(pair)
        server = endpoints_of(first[one])[by_client[one]]
        # A broker's name for its client counts for more than the client's own.
        found = [names[one] for one in sorted(pair, key=by_client.__getitem__) if one in names]
        key = connection[0], server, found[0] if found else "#".join(connection[1:])
        for one in pair:
            sides[one] = Side(by_client[one], len(pair) == 1, key)
    return sides


def known_streams(sides: Mapping[Stream, Side], told: Iterable[Row] | None = None) -> Iterator[Row]:
    """Yield what is known of all streams, a row each, before their packets are followed.

    Parameters
    ----------
    told
        What the captures show of streams: ``source, stream, begun, ended, ended_frame, ended_ns``.
        If it is None, `begun` is null in all rows: nobody knows whether a stream went on.
    """
    by_name = {(row["source"], row["stream"]): row for row in told or ()}
    for name, side in sides.items():
        source, stream = name
        row = by_name.get(name, {"source": source, "stream": stream, "begun": None, "ended": None})
        begun = None if told is None else bool(row["begun"])
        yield {**row, "begun": begun, "by_client": side.by_client, "alone": side.alone}


def _client_id(row: Row) -> str | None:
    """Return the client id that a CONNECT has or a CONNACK assigns."""
    if row["packet_type"] == CONNECT:
        return row.get("client_id")
    name: str | None = None
    if not row.get("return_code"):
        name = properties_of(row.get("properties")).get("assigned_client_identifier")
    return name
