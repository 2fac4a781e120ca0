"""Assign a format to each stream of a capture.

The first of these that shows a format decides: a rule of the caller for a port; the first bytes of
either direction; another connection of the capture with the same endpoint (one that a client opened
in a format, earlier or later, or the answer of a port mapper); the usual server port of a format; a
packet with a magic in the first bytes of a direction whose beginning was not captured. A proxy
header is removed before. The streams inside TLS and WebSocket are assigned in the same way;
TLS itself, and HTTP, have no format on any port.

The evidence on an endpoint does not depend on the order of connections. If clients opened it in two
formats, or two answers of port mappers differ, it shows none. So several readers of one capture,
each with some of its connections, can combine their evidence.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from typing import Final, NamedTuple

from wireyard.captures.carriers.inner import Carrier, Outer
from wireyard.captures.carriers.opening import Carriers, first_bytes
from wireyard.captures.carriers.proxies import behind_proxy, is_refused
from wireyard.captures.connections.flows import Endpoint
from wireyard.captures.connections.stream import Stream
from wireyard.errors import DecodeError, UsageError
from wireyard.formats import Format, get_format, names, sniff, sniff_inside
from wireyard.formats.base import FIRST_PACKETS, View
from wireyard.formats.port_mapper import (
    MAX_ANSWER_BYTES,
    PortMapper,
    decode_answer,
    is_answer,
)
from wireyard.streams.framer import OK, Framer

HEAD_BYTES: Final = 72
"""First bytes that show a format for certain: the longest header, that of JMQ packets."""
PORT_MAPPER_PORT: Final = 7676
"""Port of the port mappers whose answers are used as evidence on other ports."""

_DECODE_AS: Final = re.compile(r"(tcp|udp)\.port *== *(\d{1,5}) *, *(\S+)")
_MOST_PORT: Final = 0xFFFF
LEAST_BYTES: Final = 2
"""Size of the smallest packet of any format; there may be many streams of fewer bytes."""
_PREFIX_BYTES: Final = 1 << 18
"""Bytes of each direction of a connection that are searched for its first packets."""


@dataclass(frozen=True, slots=True)
class DecodeAs:
    """A caller's rule for a port: connections with it on either side have this format."""

    transport: str
    port: int
    format: Format


class Assigned(NamedTuple):
    """A stream and its format."""

    stream: Stream
    format: Format | None
    """None if it is unknown."""
    context: int
    """Context of the stream's first frame."""
    port_mapper: PortMapper | None
    """The server's answer, if it is a connection to a port mapper."""
    captured: Stream
    """The TCP or UDP stream that carries it; `stream` itself without carriers."""
    carriers: tuple[Carrier, ...] = ()
    """The protocols that carry it, the outermost first."""
    by_endpoint: bool = False
    """Whether the format comes from its endpoints, not from a rule or its connection's bytes."""
    is_refused: bool = False
    """Whether its connection is a request to a proxy that the proxy refused."""

    @property
    def closed(self) -> bool:
        """Whether the content of its carriers could not be read."""
        return bool(self.carriers) and self.stream is self.captured


def parse_decode_as(text: str) -> DecodeAs:
    """Parse a rule such as ``tcp.port==1884,mqtt``.

    `UsageError` is raised if the text is no such rule, or if the format is unknown.
    """
    match = _DECODE_AS.fullmatch(text.strip())
    if match is None or int(match[2]) > _MOST_PORT:
        raise UsageError(f"'{text}' is no decode-as such as tcp.port==1884,mqtt")
    return DecodeAs(match[1], int(match[2]), get_format(match[3]))


class EndpointEvidence:
    """Evidence from the connections of a capture on the formats of endpoints."""

    def __init__(self) -> None:
        self._opened: defaultdict[Endpoint, set[str]] = defaultdict(set)
        self._services: defaultdict[Endpoint, set[str | None]] = defaultdict(set)

    @property
    def opened(self) -> set[tuple[Endpoint, str]]:
        """The endpoints that clients opened connections to, with the formats of these."""
        return {(end, format) for end, formats in self._opened.items() for format in formats}

    def add(self, connection: CapturedConnection) -> None:
        """Add the evidence of a connection."""
        self.add_opened(connection.opened().items())
        self.add_services(connection.services())

    def add_opened(self, opened: Iterable[tuple[Endpoint, str]]) -> None:
        """Add endpoints that clients opened connections to, each with a format."""
        for end, format in opened:
            self._opened[end].add(format)

    def add_services(self, services: Mapping[Endpoint, str | None]) -> None:
        """Add endpoints from a port mapper's answer; None for a format that we do not read."""
        for end, format in services.items():
            self._services[end].add(format)

    def formats(self) -> dict[Endpoint, str | None]:
        """Return the endpoints of known format; connections count more than port mappers."""
        agreed = {end: each for end, (each, *more) in self._services.items() if not more}
        return agreed | {end: each for end, (each, *more) in self._opened.items() if not more}


def describe_proxies(assigned: Iterable[Assigned]) -> str | None:
    """Return one line about the proxy headers that were removed; None if there are none."""
    return count_proxies(proxies_of(assigned))


def proxies_of(assigned: Iterable[Assigned]) -> Counter[tuple[str, int]]:
    """Count the proxy headers that were removed, by name and size."""
    return Counter(each.captured.proxy for each in assigned if each.captured.proxy is not None)


def count_proxies(headers: Mapping[tuple[str, int], int]) -> str | None:
    """Return the line of `describe_proxies` for counts of headers by name and size."""
    if not headers:
        return None
    counts: Counter[str] = Counter()
    for (name, _), count in headers.items():
        counts[name] += count
    shown = ", ".join(f"{count} of {name}" for name, count in sorted(counts.items()))
    size = sum(size * count for (_, size), count in headers.items())
    return f"headers of proxies, {size} bytes in no row: {shown}"


def captured_connections(
    streams: Sequence[Stream], carriers: Carriers
) -> Iterator[CapturedConnection]:
    """Yield connections; the streams of each have to follow each other."""
    for _, both in groupby(streams, key=lambda stream: stream.connection):
        captured = list(both)
        heads = [first_bytes(stream) for stream in captured]
        directions = behind_proxy(captured, heads)
        if directions is not captured:
            heads = [first_bytes(stream) for stream in directions]
        yield CapturedConnection(directions, heads, carriers)


class CapturedConnection:
    """A connection with one direction or both; the side that sent the first packet comes first."""

    def __init__(
        self, captured: Sequence[Stream], heads: Sequence[bytes], carriers: Carriers
    ) -> None:
        self._captured = captured
        self._carriers, inside = carriers.open(captured, heads)
        self._closed = inside is None
        self._directions = directions = captured if inside is None else inside
        self.heads = [first_bytes(one) for one in directions] if self._carriers else heads
        """The first bytes of each direction."""
        answers = map(_port_mapper, directions, self.heads)
        self._port_mapper = next(filter(None, answers), None)

    def services(self) -> Mapping[Endpoint, str | None]:
        """Return the endpoints in the answer of a port mapper, and their formats."""
        if self._port_mapper is None:
            return {}
        heads = zip(self._directions, self.heads, strict=True)
        brokers = {stream.src for stream, head in heads if is_answer(head)}
        return {
            Endpoint(broker.address, service.port): service.format
            for broker in brokers
            # If several readers share a capture, all of them read this port, but no other.
            if broker.port == PORT_MAPPER_PORT
            for service in self._port_mapper.services
            if service.port
        }

    def opened(self) -> Mapping[Endpoint, str]:
        """Return the endpoint that a client opened this connection to, with its format."""
        format = self.sniffed
        if format is None or self._directions[0].protocol != "tcp":
            return {}
        pairs = zip(self._directions, self.heads, strict=True)
        return {stream.dst: format.name for stream, head in pairs if format.evidence.opens(head)}

    def needs_services(self, rules: Sequence[DecodeAs]) -> bool:
        """Return whether `assigned` depends on the formats of endpoints."""
        return self._by_endpoint(rules)

    def assigned(
        self,
        rules: Sequence[DecodeAs],
        services: Mapping[Endpoint, str | None],
        named: Format | None,
    ) -> list[Assigned]:
        """Return each direction with its format."""
        by_endpoint, directions = self._by_endpoint(rules), self._directions
        find = _by_service if self._is_cut else _by_port
        if by_endpoint:
            format = find(self._ends, services)
            if format is None and not self._is_cut:
                format = self._format_inside()
        else:
            format = self._format(rules, named)
        format = _as_named(format, named)
        contexts = [0, 0]
        if format is not None and self._is_cut:
            directions = [Outer(stream).inner_stream() for stream in directions]
            contexts = [format.context] * 2
        elif format is not None:
            contexts = self._contexts(format)
        return [
            Assigned(
                stream,
                format,
                context,
                self._port_mapper,
                captured,
                self._carriers,
                by_endpoint,
                format is None and self._is_refused,
            )
            for stream, captured, context in zip(directions, self._captured, contexts, strict=False)
        ]

    @property
    def _is_cut(self) -> bool:
        """Whether it is TLS whose handshake was not captured whole.

        It carried what other connections to its endpoint carry; nothing of it can be read.
        """
        return (
            self._closed
            and self._carriers[-1].name == "tls"
            and any(len(stream.gaps) for stream in self._captured)
        )

    @property
    def _ends(self) -> tuple[Endpoint, Endpoint]:
        first = self._directions[0]
        return first.src, first.dst

    def _rule(self, rules: Sequence[DecodeAs]) -> DecodeAs | None:
        """Return the first rule that is for the connection."""
        return _first_rule(rules, self._directions[0].protocol, self._ends)

    def _by_endpoint(self, rules: Sequence[DecodeAs]) -> bool:
        """Return whether neither a rule nor bytes that can be read show the format."""
        return self._is_cut or (
            not self._closed
            and self._directions[0].protocol == "tcp"
            and self._port_mapper is None
            and self.sniffed is None
            and self._rule(rules) is None
        )

    def _format(self, rules: Sequence[DecodeAs], named: Format | None) -> Format | None:
        """Return the format that a rule or bytes of the connection show."""
        if self._closed:
            return None
        rule = self._rule(rules)
        if rule is not None:
            return rule.format
        if self._directions[0].protocol == "tcp":
            return self.sniffed if self._port_mapper is None else None
        return named if named is not None and named.evidence.in_datagrams else None

    @cached_property
    def sniffed(self) -> Format | None:
        """The format that the first bytes of either direction show."""
        found = (sniff(head) for head in self.heads if head)
        return next(filter(None, found), None)

    def _format_inside(self) -> Format | None:
        """Return the format of packets behind the rest of one that began before the capture."""
        for stream in self._directions:
            if len(stream.pieces) and (stream.pieces[0][0] or not stream.begun):
                start, stop = stream.pieces[0].tolist()
                data = stream.read(start, min(stop, start + _PREFIX_BYTES)).data
                if found := sniff_inside(data):
                    return found
        return None

    @property
    def _is_refused(self) -> bool:
        """Whether it is a request to a proxy that the proxy refused."""
        if len(self.heads) < 2:
            return False
        one, other = self.heads
        return is_refused(one, other) or is_refused(other, one)

    def _contexts(self, format: Format) -> list[int]:
        """Return the contexts of the directions' first frames.

        The first packet of one direction may show the context of the other, if its bytes are
        certain to be a packet: the beginning of the direction was captured, or they open a
        connection. If neither does, the first packets of both directions are searched.
        """
        contexts = [format.context] * 2
        opening = [*map(format.evidence.opens, self.heads)]
        if len(self._directions) == 2:
            for at, other in ((0, 1), (1, 0)):
                if opening[other] or (self._directions[other].begun and self.heads[other]):
                    contexts[at] = format.contexts.answer(self.heads[other], format.context)
        if contexts == [format.context] * 2 and not any(opening):
            packets = chain.from_iterable(_first_packets(one, format) for one in self._directions)
            return [format.evidence.find_context(packets, format.context)] * 2
        return contexts


def _first_packets(stream: Stream, format: Format) -> Iterator[View]:
    """Yield the complete packets in the first captured bytes of a stream, up to a gap."""
    pieces = stream.pieces
    if stream.protocol != "tcp" or not len(pieces):
        return
    start, stop = pieces[0].tolist()
    if stop - start < LEAST_BYTES:
        return
    at_end = stop - start <= _PREFIX_BYTES
    data = stream.read(start, min(stop, start + _PREFIX_BYTES)).data
    framer = Framer(format)
    framer.segment_starts = stream.runs.offsets
    if not stream.begun:
        framer.presume_packet(start)
    if start:
        framer.skip_gap(start)
    for _ in range(FIRST_PACKETS):
        frame = framer.next_frame(data[framer.position - start :], at_end)
        if frame is None:
            return
        if frame.status == OK:
            yield data[frame.start - start : frame.stop - start]


def decide_format(
    ends: Sequence[Endpoint],
    rules: Sequence[DecodeAs],
    services: Mapping[Endpoint, str | None],
    named: Format | None,
) -> Format | None:
    """Return the format of a TCP connection whose bytes show none; None if it is unknown.

    A rule decides, or else evidence on its endpoints, or else the usual port of a format. `ends`
    are source and destination of the first stream, and `services` the formats of endpoints, as in
    `EndpointEvidence.formats`.
    """
    rule = _first_rule(rules, "tcp", ends)
    return _as_named(_by_port(ends, services) if rule is None else rule.format, named)


def _first_rule(
    rules: Sequence[DecodeAs], protocol: str, ends: Sequence[Endpoint]
) -> DecodeAs | None:
    ports = {end.port for end in ends}
    return next((one for one in rules if one.transport == protocol and one.port in ports), None)


def _as_named(format: Format | None, named: Format | None) -> Format | None:
    """Return the format in the dialect that the caller named, if it is a dialect of this format."""
    if named is not None and named.dialect and format is not None and format.name == named.name:
        return named
    return format


def _by_service(ends: Sequence[Endpoint], services: Mapping[Endpoint, str | None]) -> Format | None:
    service = next((services[end] for end in ends if end in services), None)
    return get_format(service) if service else None


def _by_port(ends: Sequence[Endpoint], services: Mapping[Endpoint, str | None]) -> Format | None:
    if any(end in services for end in ends):
        return _by_service(ends, services)
    ports = {end.port for end in ends}
    return next(
        (one for one in map(get_format, names()) if not ports.isdisjoint(one.evidence.ports)), None
    )


def _port_mapper(stream: Stream, head: bytes) -> PortMapper | None:
    if stream.protocol != "tcp" or len(head) > MAX_ANSWER_BYTES or not is_answer(head):
        return None
    try:
        return decode_answer(head)
    except DecodeError:
        return None
