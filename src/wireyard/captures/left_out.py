"""Counts of the streams of a capture that are in no row; those of its parts can be added up.

All notes about such streams are made from these counts alone. So they are the same whether one
reader has the whole capture or many have a part each. Examples are the first by frame number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Final, NamedTuple

from wireyard.captures.connections.stream import Stream
from wireyard.captures.detection.assignment import Assigned, count_proxies
from wireyard.captures.records import Placed
from wireyard.captures.repairs import NO_REPAIRS, Repairs, first_of

_SHOWN: Final = 3
_MOST_PORTS: Final = 256
"""Server ports that are kept, the most frequent ones."""
_MOST_PROBLEMS: Final = 64
_NO_FRAME: Final = 1 << 62
"""The frame of a stream without captured bytes."""


class ServerPort(NamedTuple):
    """A server port of connections of unknown format."""

    protocol: str
    port: int
    connections: int
    frame: int
    """First frame of the first of these connections."""


class ProxyHeaders(NamedTuple):
    """Number of connections with a proxy header of this kind and size in bytes."""

    name: str
    size: int
    connections: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The streams of a capture, or of a part of it, that are in no row, or not completely."""

    streams: int = 0
    """Number of streams of unknown format."""
    size: int = 0
    """Their bytes."""
    names: Sequence[Placed] = ()
    """Names of the first of them."""
    ports: Sequence[ServerPort] = ()
    """Their server ports, but for requests to proxies that were refused."""
    closed: int = 0
    """Number of streams in TLS or WebSocket that were not opened, or not to the end."""
    closed_bytes: int = 0
    carriers: Sequence[Placed] = ()
    """The first of their carriers, one more than is shown."""
    reasons: Sequence[Placed] = ()
    """The reason why the first of them was not opened."""
    locked: bool = False
    """Whether a key log would open some of them."""
    problems: int = 0
    """Number of carriers of streams of known format that were not read completely."""
    reported: Sequence[Placed] = ()
    """The first of these problems."""
    proxies: Sequence[ProxyHeaders] = ()
    repairs: Repairs = NO_REPAIRS

    @classmethod
    def of(
        cls,
        unknown: Sequence[Assigned],
        problems: Iterable[Placed],
        proxies: Mapping[tuple[str, int], int],
        repairs: Repairs,
        *,
        keyed: bool,
    ) -> LeftOut:
        """Count the streams that are left out.

        `unknown` are the streams of unknown format, except answers of port mappers. `problems` are
        the reasons, each once, why bytes inside TLS or WebSocket were not read, for streams of
        known format. `proxies` are as for `count_proxies`. `keyed` shows whether there are key
        logs.
        """
        plain = [each.stream for each in unknown if not each.closed and each.stream.size]
        # A TLS connection that failed in its handshake carries no bytes that could be left out.
        carried = [
            each
            for each in unknown
            if any(carrier.problem for carrier in each.carriers)
            or (each.closed and each.carriers[-1].name != "tls")
        ]
        reported = [*problems]
        return cls(
            len(plain),
            sum(stream.size for stream in plain),
            first_of((Placed(_frame(stream), stream.name) for stream in plain), _SHOWN),
            _most_common(
                _server_ports(
                    each.stream
                    for each in unknown
                    if not (each.closed or each.is_refused) and each.stream.size
                )
            ),
            len(carried),
            sum(each.captured.size for each in carried),
            first_of(
                _distinct(
                    Placed(_frame(each.captured), " in ".join(map(str, each.carriers[::-1])))
                    for each in carried
                ),
                _SHOWN + 1,
            ),
            first_of(
                (
                    Placed(_frame(each.captured), carrier.problem)
                    for each in carried
                    for carrier in each.carriers
                    if carrier.problem
                ),
                1,
            ),
            not keyed and any(each.closed and each.carriers[-1].is_locked for each in carried),
            len(reported),
            first_of(reported, _MOST_PROBLEMS),
            [ProxyHeaders(*header, count) for header, count in proxies.items()],
            repairs,
        )

    @classmethod
    def total(cls, parts: Sequence[LeftOut]) -> LeftOut:
        """Add up the counts of the parts of a capture."""
        every = chain.from_iterable
        headers: Counter[tuple[str, int]] = Counter()
        for name, size, count in every(each.proxies for each in parts):
            headers[name, size] += count
        return cls(
            sum(each.streams for each in parts),
            sum(each.size for each in parts),
            first_of(every(each.names for each in parts), _SHOWN),
            _most_common(every(each.ports for each in parts)),
            sum(each.closed for each in parts),
            sum(each.closed_bytes for each in parts),
            first_of(_distinct(every(each.carriers for each in parts)), _SHOWN + 1),
            first_of(every(each.reasons for each in parts), 1),
            any(each.locked for each in parts),
            sum(each.problems for each in parts),
            first_of(_distinct(every(each.reported for each in parts)), _MOST_PROBLEMS),
            [ProxyHeaders(*header, count) for header, count in headers.items()],
            Repairs.total([each.repairs for each in parts]),
        )

    def lines(self) -> list[str]:
        """Return the notes for a run."""
        closed = self.describe_closed() if self.has_closed else ()
        return [*self.notes, *closed, *filter(None, [self.unread])]

    @property
    def has_closed(self) -> bool:
        """Whether streams were not opened; those of plain HTTP, which no option opens, are none."""
        is_http = len(self.carriers) <= _SHOWN and all(
            each.text.startswith("HTTP") for each in self.carriers
        )
        return self.closed > 0 and not is_http

    @property
    def notes(self) -> list[str]:
        """The notes that are about no loss: proxy headers, and repairs."""
        return [*filter(None, [self.headers]), *self.repairs.lines()]

    @property
    def headers(self) -> str | None:
        """The note about proxy headers; None if there are none."""
        return count_proxies({(name, size): count for name, size, count in self.proxies})

    def describe_closed(self) -> Iterator[str]:
        """Yield the notes about streams in TLS or WebSocket that were not opened."""
        if not self.closed:
            return
        reason = f" ({self.reasons[0].text})" if self.reasons else ""
        count, are = _counted(self.closed, self.closed_bytes), "is" if self.closed == 1 else "are"
        yield f"{count}, {are} {_listed(self.carriers)}{reason}"
        if self.locked:
            yield "a key log opens TLS: --keylog FILE"

    @property
    def unknown(self) -> str:
        """The streams of unknown format, in parentheses, and an option to try; empty if none.

        No option reads what a proxy refused.
        """
        if not self.streams:
            return ""
        shown = _listed(self.names, more=self.streams > _SHOWN)
        hint = f"; {self._suggest_decode_as()}" if self.ports else ""
        return f" ({shown}): unknown format{hint}"

    @property
    def unread(self) -> str | None:
        """The note about bytes that are in no row, with reasons; None if there are none."""
        texts = [each.text for each in self.reported]
        if self.streams:
            texts.insert(0, _counted(self.streams, self.size) + self.unknown)
        if (more := self.problems - len(self.reported)) > 0:
            texts.append(f"{more} more such problems")
        return "; ".join(texts) or None

    def _suggest_decode_as(self) -> str:
        """Return the option that decodes the streams of the most frequent server port."""
        protocol, port, *_ = self.ports[0]
        format = "mqtt" if protocol == "tcp" else "rmp"
        return f"to decode it as {format.upper()}: --decode-as {protocol}.port=={port},{format}"


def _counted(streams: int, size: int) -> str:
    return f"{streams} stream{'s' * (streams != 1)}, {size} bytes"


def problems_of(assigned: Iterable[Assigned]) -> list[Placed]:
    """Return the problems of the carriers of streams of known format, each once."""
    return [
        *_distinct(
            Placed(_frame(each.captured), carrier.problem)
            for each in assigned
            if each.format is not None
            for carrier in each.carriers
            if carrier.problem
        )
    ]


def _frame(stream: Stream) -> int:
    records = stream.runs.records
    return int(records[0]) if len(records) else _NO_FRAME


def _distinct(placed: Iterable[Placed]) -> Iterator[Placed]:
    """Yield each text once, with its first frame."""
    frames: dict[str, int] = {}
    for frame, text in placed:
        frames[text] = min(frame, frames.get(text, frame))
    return (Placed(frame, text) for text, frame in frames.items())


def _listed(placed: Sequence[Placed], *, more: bool = False) -> str:
    shown = ", ".join(each.text for each in placed[:_SHOWN])
    return f"{shown}, .." if more or len(placed) > _SHOWN else shown


def _server_ports(streams: Iterable[Stream]) -> Iterator[ServerPort]:
    for _, both in groupby(streams, key=lambda stream: stream.connection):
        directions = list(both)
        frame = min(map(_frame, directions))
        yield ServerPort(directions[0].protocol, _server_port(directions), 1, frame)


def _server_port(directions: Sequence[Stream]) -> int:
    """Return the server's port: that of the side connected to, or the lower port if unknown."""
    first = directions[0]
    if first.begun and len(directions) > 1:
        return first.dst.port
    return min(first.src.port, first.dst.port)


def _most_common(ports: Iterable[ServerPort]) -> list[ServerPort]:
    """Return each port once, with its counts added up: TCP before UDP, then the most frequent."""
    totals: dict[tuple[str, int], ServerPort] = {}
    for port in ports:
        key = port.protocol, port.port
        total = totals.get(key, port._replace(connections=0))
        frame = min(total.frame, port.frame)
        totals[key] = ServerPort(*key, total.connections + port.connections, frame)
    order = sorted(totals.values(), key=lambda each: (each.protocol, -each.connections, each.frame))
    return order[:_MOST_PORTS]
