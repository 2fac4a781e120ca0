"""Captures of made-up JMS conversations."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import wireyard
from tests.captures.make import ACK, FIN, SYN, Packet, ethernet, ipv4, pcap, tcp
from tests.layers.jmq.make import MS, Talk
from wireyard import jmq
from wireyard.formats.base import Row

__all__ = ["write_capture"]

_BEGAN_NS = 1_700_000_000_000_000_000
_SAME = (
    "version", "source_ip", "source_port", "timestamp", "sequence", "consumer_id", "bit_flags",
    "packet_type", "transaction_id", "producer_id", "delivery_count", "destination", "reply_to",
    "correlation_id", "expiration", "delivery_time", "priority",
)  # fmt: skip


def write_capture(
    path: Path, *talks: Talk, ended: Collection[Talk] = (), last_ms: int = 0, lost: str = ""
) -> Path:
    """Write conversations as a capture, each packet in a segment of its own.

    Parameters
    ----------
    ended
        Those whose client sends a FIN at `last_ms`.
    lost
        A stream whose segments are left out; those of rows with the status "gap" are, too.
    """
    records: list[tuple[int, bytes]] = []
    for talk in talks:
        first = talk.rows[0]["captured_ns"] // MS
        said = [(first, True, b"", SYN, "ok"), (first, False, b"", SYN | ACK, "ok")]
        for row in talk.rows:
            up = row["stream"] == talk.stream(True)
            said.append((row["captured_ns"] // MS, up, _encoded(row), ACK, row["status"]))
        if talk in ended:
            said.append((last_ms, True, b"", FIN | ACK, "ok"))
        at = {True: 99, False: 99}
        for ms, up, data, flags, status in said:
            (mine, src), (theirs, dst) = (talk.client, talk.broker)[:: 1 if up else -1]
            segment = tcp(src, dst, at[up], data, flags, at[not up])
            at[up] += len(data) + bool(flags & (SYN | FIN))
            if talk.stream(up) != lost and status != "gap":
                frame = ethernet(ipv4(segment, 6, mine, theirs))
                records.append((_BEGAN_NS + ms * MS, frame))
    records.sort(key=lambda record: record[0])
    path.write_bytes(pcap([Packet(data, ns) for ns, data in records]))
    return path


def _encoded(row: Row) -> bytes:
    fields = {name: row[name] for name in _SAME if row.get(name) is not None}
    properties = dict(row["properties"] or {})
    return wireyard.encode(jmq.Packet(**fields, properties=properties, body=row["body"] or b""))
