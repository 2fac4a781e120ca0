"""Streams inside TLS or WebSocket: plain bytes, each run with the frame that completed its carrier.

A TLS record or a WebSocket frame can only be read as a whole. So the frame of the bytes in it is
the one that completed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from wireyard.captures.connections.stream import Content, Runs, Stream
from wireyard.captures.files.places import Places

__all__ = ["NO_KEY", "Carrier", "Part", "Unreadable", "inner_stream"]


@dataclass(frozen=True, slots=True)
class Carrier:
    """A protocol that carries the streams of a connection, with facts from its handshake."""

    name: str
    """``tls``, ``websocket``, ``http``, or ``openmq-http`` for the tunnel of Open MQ."""
    version: str | None = None
    """Version of TLS or HTTP, such as ``1.3``."""
    server_name: str | None = None
    """Name of the server in the client's request: SNI in TLS, Host in HTTP."""
    protocol: str | None = None
    """The protocol that the server chose by ALPN or Sec-WebSocket-Protocol; if its answer is
    encrypted or missing, the client's offers, with commas between them."""
    target: str | None = None
    """Method and target of the HTTP request."""
    alert: int | None = None
    """Number of the fatal TLS alert that ended the connection."""
    rejected_bytes: int = 0
    """Bytes of early data that the server rejected: records of TLS that no application got."""
    problem: str | None = None
    """The reason why some or all of the bytes that it carries were not read."""

    @property
    def is_locked(self) -> bool:
        """Whether a key log would open it."""
        return self.problem is not None and NO_KEY in self.problem

    def __str__(self) -> str:
        title = f"{_TITLES[self.name]} {self.version or ''}".rstrip()
        parts = (
            (" to ", self.server_name),
            (" for ", self.protocol),
            (", ", self.target),
            (", ended by alert ", self.alert),
        )
        text = title + "".join(f"{word}{value}" for word, value in parts if value is not None)
        if not self.rejected_bytes:
            return text
        return f"{text}, without {self.rejected_bytes:,} bytes of early data that it rejected"


NO_KEY: Final = "which is in no key log"
"""The end of the problem of TLS whose secrets are missing."""
_TITLES = {"tls": "TLS", "websocket": "WebSocket", "http": "HTTP", "openmq-http": "Open MQ's HTTP"}


class Unreadable(Exception):
    """The reason why a direction cannot be read further; the text continues a position's name."""


class Part(NamedTuple):
    """Plain bytes, and the range ``[start, stop)`` of the outer stream that carried them."""

    start: int
    stop: int
    data: bytes


def inner_stream(outer: Stream, parts: Sequence[Part]) -> Stream:
    """Return the stream of the bytes inside another one, with the same name and endpoints."""
    starts = np.array([part.start for part in parts], np.int64)
    stops = np.array([part.stop for part in parts], np.int64)
    lengths = np.array([len(part.data) for part in parts], np.int64)
    frames, times_ns = outer.completed(starts, stops)
    records = frames - 1
    places = Places()
    places.append(np.frombuffer(b"".join(part.data for part in parts), np.uint8))
    offsets = np.cumsum(lengths) - lengths
    content = outer.content
    packets = dict(content.fragments)
    edges = outer.runs.offsets
    spread = np.flatnonzero(edges.searchsorted(starts, "right") < edges.searchsorted(stops))
    for at in spread.tolist():
        record = int(records[at])
        others = outer.packets_of(starts[at : at + 1], stops[at : at + 1])
        packets[record] = sorted({*others.tolist(), *packets.get(record, [record])})
    return replace(
        outer,
        size=int(lengths.sum()),
        runs=Runs(offsets, lengths, offsets, records),
        times_ns=times_ns,
        content=Content(places, content.records, content.times_ns, packets),
    )
