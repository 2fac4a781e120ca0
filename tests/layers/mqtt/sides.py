"""The sides of streams, decided from the rows of packets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from wireyard.formats.base import Row
from wireyard.formats.mqtt.layout import BROKER_TYPES, CLIENT_TYPES, CONNECT
from wireyard.layers.mqtt.directions import (
    BROKER_CODES,
    CLIENT_CODES,
    NAMING,
    NOT_SHOWN,
    OK,
    Evidence,
    Side,
    Stream,
    client_id_of,
    decide_sides,
    shown_streams,
    stream_rows,
)
from wireyard.layers.records import GAP

__all__ = ["known_streams", "sides_of"]


def sides_of(rows: Iterable[Row], streams: Iterable[Row] = ()) -> dict[Stream, Side]:
    """Decide the side of each stream of a connection, by source and name.

    Parameters
    ----------
    rows
        Packets, those of a stream in order.
    streams
        The beginnings of streams, as captured: ``source, stream, opened, begun``.
    """
    return decide_sides(_evidence_of(rows, streams))


def _evidence_of(rows: Iterable[Row], streams: Iterable[Row]) -> Iterator[Evidence]:
    """Yield the evidence of each stream."""
    shown = shown_streams(streams)
    first: dict[Stream, Row] = {}
    counts: dict[Stream, tuple[int, int, int]] = {}
    names: dict[Stream, str | None] = {}
    gaps: Counter[Stream] = Counter()
    times_ns: dict[Stream, tuple[int, int]] = {}
    for row in rows:
        stream = row["source"], row["stream"]
        if stream not in first:
            first[stream] = row
            counts[stream] = 0, 0, 0
        gaps[stream] += row.get("status") == GAP
        if (ns := row.get("captured_ns")) is not None:
            first_ns, last_ns = times_ns.get(stream, (ns, ns))
            times_ns[stream] = min(first_ns, ns), max(last_ns, ns)
        kind = row.get("packet_type")
        from_client = _sent_by_client(kind, row)
        if from_client is None:
            continue
        connects, of_client, of_broker = counts[stream]
        connects += kind == CONNECT
        counts[stream] = connects, of_client + from_client, of_broker + (not from_client)
        if kind in NAMING and stream not in names:
            names[stream] = client_id_of(row)
    for stream, row in first.items():
        src = row.get("src_addr"), row.get("src_port")
        dst = row.get("dst_addr"), row.get("dst_port")
        seen = shown.get(stream, NOT_SHOWN)[:2]
        span_ns: tuple[int | None, int | None] = times_ns.get(stream, (None, None))
        yield Evidence(
            *stream,
            *src,
            *dst,
            *seen,
            *counts[stream],
            client_id=names.get(stream),
            gaps=gaps[stream],
            first_ns=span_ns[0],
            last_ns=span_ns[1],
        )


def _sent_by_client(kind: int | None, row: Row) -> bool | None:
    """Return whether only clients send such a packet, None if both sides do."""
    if kind in CLIENT_TYPES:
        return True
    if kind in BROKER_TYPES:
        return False
    if kind is None or row.get("status") != OK:
        return None
    code = row.get("return_code") or 0
    if code in CLIENT_CODES.get(kind, ()):
        return True
    return False if code in BROKER_CODES.get(kind, ()) else None


def known_streams(
    sides: Mapping[Stream, Side], streams: Iterable[Row] | None = None
) -> Iterator[Row]:
    """Yield the context of each stream as a row: the input of the first stage before packets.

    Parameters
    ----------
    streams
        The beginning and end of each stream, as captured: ``source, stream, begun, ended,
        ended_frame, ended_ns``. If it is None, beginnings and ends are unknown, and `begun` is
        null in all rows.
    """
    return stream_rows(sides, None if streams is None else shown_streams(streams))
