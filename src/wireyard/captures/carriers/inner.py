"""Streams inside TLS or WebSocket: plain bytes, each run with the frame that completed its carrier.

A TLS record or a WebSocket frame can only be read as a whole. So the frame of the bytes in it is
the one that completed it, and one with bytes that were not captured is a gap of the stream inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import attrgetter
from typing import ClassVar, Final, NamedTuple

import numpy as np

from wireyard.captures.connections.stream import Content, Runs, Stream
from wireyard.captures.files.places import Places
from wireyard.formats import sniff


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


_FIRST_PARTS: Final = 64
"""Parts in which the first packet of a client is looked for."""


class Unreadable(Exception):
    """The reason why a direction cannot be read further; the text continues a position's name."""


class Budget:
    """How much of something may still be done for all streams of a capture together."""

    def __init__(self, left: int) -> None:
        self.left = left


class Part(NamedTuple):
    """Plain bytes, and the range ``[start, stop)`` of the outer stream that carried them."""

    start: int
    stop: int
    data: bytes | None
    """None if the range cannot be read: some of it was not captured, or does not decrypt."""


class Outer:
    """One direction that carries a stream: its captured pieces, and what was found inside."""

    _FIRST_BYTES: ClassVar = 1 << 16
    _GROWTH: ClassVar = 4
    """Bytes that are loaded at first, and the factor by which they grow."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.at = 0
        """Where the next record or frame begins."""
        self.lost_from: int | None = None
        """Where the bytes begin that are not read, until something behind them was."""
        self._parts: list[Part] = []
        self._pieces = stream.pieces.tolist()
        self._piece = 0
        self._base, self._data = 0, memoryview(b"")
        if self._pieces and self._pieces[0][0]:
            self._pieces.insert(0, [0, 0])

    @property
    def has_data(self) -> bool:
        """Whether bytes of the stream inside were found."""
        return any(part.data is not None for part in self._parts)

    @property
    def piece(self) -> tuple[int, int]:
        """The range of the piece in which it reads."""
        start, stop = self._pieces[self._piece] if self._pieces else (0, 0)
        return start, stop

    def view(self, size: int) -> memoryview:
        """Return the bytes of the piece from `at` on, at least `size` if it has so many."""
        start, stop = self.piece
        if self._base < start:
            self._base, self._data = start, memoryview(b"")
        loaded = self._base + len(self._data)
        if loaded < min(self.at + size, stop):
            more = max(
                self._GROWTH * len(self._data), self._FIRST_BYTES, self.at - self._base + size
            )
            self._data = self.stream.read(self._base, min(self._base + more, stop)).data
        return self._data[self.at - self._base :]

    def seek(self, start: int) -> bool:
        """Go to the next bytes of the piece that may be a record or frame, from `start` on."""
        raise NotImplementedError

    def resume(self, stop: int | None) -> int:
        """Go on behind a gap, at the next record or frame; return the size of all gaps before it.

        `stop` is the end of the one that the gap interrupts; None if that is not known.
        `Unreadable` is raised if there is no next one.
        """
        lost = 0
        while self._piece + 1 < len(self._pieces):
            if self.lost_from is None:
                self.lost_from = self.at
            before = self.piece[1]
            self._piece += 1
            self.at = self.piece[0]
            lost += self.at - before
            if stop is not None and stop >= self.at:
                if stop <= self.piece[1]:
                    self.at = stop
                    return lost
            elif self.seek(self.at):
                return lost
        whole = self.lost_from is None and self.piece[1] == self.stream.size
        raise Unreadable("is not complete" if whole else "was not captured whole")

    def add(self, start: int, stop: int, data: bytes) -> None:
        """Add plain bytes, and before them the gap of what was not read."""
        if self.lost_from is not None:
            self._parts.append(Part(self.lost_from, start, None))
            self.lost_from = None
        self._parts.append(Part(start, stop, data))

    def inner_stream(self) -> Stream:
        """Return the stream inside, with the same name and endpoints; what is not read is a gap.

        A gap counts as many bytes as were not read, since it is not known what they carried.
        """
        parts, end = self._parts, self.at if self.lost_from is None else self.lost_from
        if end < self.stream.size:
            parts = [*parts, Part(end, self.stream.size, None)]
        if parts and parts[0].data is None and _opens(parts[1 : 1 + _FIRST_PARTS]):
            parts = parts[1:]  # what carries a stream also has bytes before it: a handshake
        return _inner_stream(self.stream, parts)


def _opens(parts: Iterable[Part]) -> bool:
    """Return whether no bytes precede these: a client opens a connection with them."""
    data = b"".join(part.data or b"" for part in takewhile(attrgetter("data"), parts))
    format = sniff(data)
    return format is not None and format.evidence.opens(data)


def _inner_stream(outer: Stream, carried: Sequence[Part]) -> Stream:
    sizes = [part.stop - part.start if part.data is None else len(part.data) for part in carried]
    is_read = np.array([part.data is not None for part in carried], np.bool_)
    parts = [part for part in carried if part.data is not None]
    stops_inside = np.cumsum(np.array(sizes, np.int64))
    starts = np.array([part.start for part in parts], np.int64)
    stops = np.array([part.stop for part in parts], np.int64)
    lengths = np.array(sizes, np.int64)[is_read]
    frames, times_ns = outer.completed(starts, stops)
    records = frames - 1
    places = Places()
    places.append(np.frombuffer(b"".join(part.data or b"" for part in parts), np.uint8))
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
        size=sum(sizes),
        is_carried=True,
        runs=Runs(stops_inside[is_read] - lengths, lengths, np.cumsum(lengths) - lengths, records),
        times_ns=times_ns,
        content=Content(places, content.records, content.times_ns, packets),
    )
