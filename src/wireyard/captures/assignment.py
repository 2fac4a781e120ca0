"""Which format each stream of a capture has.

The first that decides: what the caller said of a port, the first bytes of either direction, what
another connection of the capture shows of an endpoint (a client that opened one in a format, before
or after, or a port mapper's answer), the port that servers of a format usually have. The header of
a proxy before all that is no part of the streams. What is inside TLS and WebSocket is decided so
too; TLS itself, and HTTP, are of no format on any port.

What is shown of an endpoint does not depend on the order of connections: where clients opened it in
two formats, that shows none, nor do two answers of port mappers that differ. So many readers of one
capture, of whom each reads some of the connections, can find out together.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from typing import Final, NamedTuple

from wireyard.captures.carriers import Carriers, first_bytes
from wireyard.captures.flows import Endpoint
from wireyard.captures.inner import Carrier
from wireyard.captures.portmapper import (
    MAX_ANSWER_BYTES,
    PortMapper,
    decode_answer,
    is_answer,
)
from wireyard.captures.proxies import behind_proxy
from wireyard.captures.stream import Stream
from wireyard.captures.tls_keys import KeyLog
from wireyard.errors import DecodeError, UsageError
from wireyard.formats import Format, get_format, names, sniff
from wireyard.formats.base import FIRST_PACKETS, View
from wireyard.streams.framer import OK, Framer

__all__ = [
    "PORT_MAPPER_PORT",
    "Assigned",
    "CapturedConnection",
    "DecodeAs",
    "EndpointEvidence",
    "assign_formats",
    "captured_connections",
    "count_proxies",
    "decide_format",
    "describe_proxies",
    "parse_decode_as",
    "proxies_of",
]

PORT_MAPPER_PORT: Final = 7676
"""Where the port mapper listens whose answers are believed about other ports."""

_DECODE_AS: Final = re.compile(r"(tcp|udp)\.port *== *(\d{1,5}) *, *(\S+)")
_MOST_PORT: Final = 0xFFFF
_PREFIX_BYTES: Final = 1 << 18
"""Of each direction of a connection, the bytes that its first packets are looked for in."""


@dataclass(frozen=True, slots=True)
class DecodeAs:
    """What a caller says of a port: whatever has it on either side is of the format."""

    transport: str
    port: int
    format: Format


class Assigned(NamedTuple):
    """A stream and what it is."""

    stream: Stream
    format: Format | None
    """None if nothing shows it."""
    context: int
    """Context of the stream's first frame."""
    port_mapper: PortMapper | None
    """What the server said, if it is the connection to a port mapper."""
    captured: Stream
    """The stream of TCP or UDP that carries it; the stream itself, mostly."""
    carriers: tuple[Carrier, ...] = ()
    """The protocols that carry it, the outermost first."""
    by_endpoint: bool = False
    """Whether what is known of its endpoints decided: neither a rule nor its connection's bytes."""

    @property
    def closed(self) -> bool:
        """Whether nobody can see what those carry."""
        return bool(self.carriers) and self.stream is self.captured


def parse_decode_as(text: str) -> DecodeAs:
    """Return ``tcp.port==1884,mqtt`` as a value.

    Raises
    ------
    UsageError
        Anything else, or an unknown format.
    """
    match = _DECODE_AS.fullmatch(text.strip())
    if match is None or int(match[2]) > _MOST_PORT:
        raise UsageError(f"'{text}' is no decode-as such as tcp.port==1884,mqtt")
    return DecodeAs(match[1], int(match[2]), get_format(match[3]))


def assign_formats(
    streams: Sequence[Stream],
    rules: Sequence[DecodeAs] = (),
    named: Format | None = None,
    guides: Sequence[Stream] = (),
    keys: KeyLog | None = None,
    evidence: EndpointEvidence | None = None,
) -> list[Assigned]:
    """Return the format of each stream, in the order of the streams.

    Parameters
    ----------
    named
        The format the caller wants to see. Its dialect counts for its streams, and if nothing
        on the wire ever shows it, the streams of its transport that nothing else is known of are
        taken for it.
    guides
        Streams whose format is not asked for, and which may show that of others.
    keys
        The secrets of connections of TLS; without one they stay closed.
    evidence
        What other streams show of endpoints, to which is added what these do.
    """
    carriers = Carriers(KeyLog() if keys is None else keys)
    found = [*captured_connections(streams, carriers)]
    evidence = EndpointEvidence() if evidence is None else evidence
    for one in (*found, *captured_connections(guides, carriers)):
        evidence.add_opened(one.opened().items())
        evidence.add_services(one.services())
    services = evidence.formats()
    return [each for one in found for each in one.assigned(rules, services, named)]


class EndpointEvidence:
    """What the connections of a capture show of the formats of endpoints."""

    def __init__(self) -> None:
        self._opened: defaultdict[Endpoint, set[str]] = defaultdict(set)
        self._services: defaultdict[Endpoint, set[str | None]] = defaultdict(set)

    @property
    def opened(self) -> set[tuple[Endpoint, str]]:
        """The endpoints that clients opened connections to, each with the formats of those."""
        return {(end, format) for end, formats in self._opened.items() for format in formats}

    def add_opened(self, opened: Iterable[tuple[Endpoint, str]]) -> None:
        """Add endpoints that clients opened, each with a format."""
        for end, format in opened:
            self._opened[end].add(format)

    def add_services(self, services: Mapping[Endpoint, str | None]) -> None:
        """Add endpoints that a port mapper names, with None for what is none of our formats."""
        for end, format in services.items():
            self._services[end].add(format)

    def formats(self) -> dict[Endpoint, str | None]:
        """Return the endpoints whose format is shown; what clients opened counts for more."""
        agreed = {end: each for end, (each, *more) in self._services.items() if not more}
        return agreed | {end: each for end, (each, *more) in self._opened.items() if not more}


def describe_proxies(assigned: Sequence[Assigned]) -> str | None:
    """Return one line about headers of proxies that are no part of streams, None without one."""
    return count_proxies(proxies_of(assigned))


def proxies_of(assigned: Iterable[Assigned]) -> Counter[tuple[str, int]]:
    """Return how often headers of proxies of each name and size came before streams."""
    return Counter(each.captured.proxy for each in assigned if each.captured.proxy is not None)


def count_proxies(headers: Mapping[tuple[str, int], int]) -> str | None:
    """Return that line for names and sizes of headers, and how often each came."""
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
    """Yield the connections of streams that are in order."""
    for _, both in groupby(streams, key=lambda stream: stream.connection):
        captured = list(both)
        heads = [first_bytes(stream) for stream in captured]
        directions = behind_proxy(captured, heads)
        if directions is not captured:
            heads = [first_bytes(stream) for stream in directions]
        yield CapturedConnection(directions, heads, carriers)


class CapturedConnection:
    """The directions of a connection, the one that spoke first before the other."""

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
        """Return the endpoints of the broker whose port mapper this is, and their formats."""
        if self._port_mapper is None:
            return {}
        heads = zip(self._directions, self.heads, strict=True)
        brokers = {stream.src for stream, head in heads if is_answer(head)}
        return {
            Endpoint(broker.address, service.port): service.format
            for broker in brokers
            # Where a capture is shared among readers, all of them have this port and no other.
            if broker.port == PORT_MAPPER_PORT
            for service in self._port_mapper.services
            if service.port
        }

    def opened(self) -> Mapping[Endpoint, str]:
        """Return the endpoint that a client opened a connection to, and in which format."""
        format = self.sniffed
        if format is None or self._directions[0].protocol != "tcp":
            return {}
        pairs = zip(self._directions, self.heads, strict=True)
        return {stream.dst: format.name for stream, head in pairs if format.opens(head)}

    def assigned(
        self,
        rules: Sequence[DecodeAs],
        services: Mapping[Endpoint, str | None],
        named: Format | None,
    ) -> list[Assigned]:
        """Return what each direction is."""
        by_endpoint = self._by_endpoint(rules)
        format = _by_port(self._ends, services) if by_endpoint else self._format(rules, named)
        format = _as_named(format, named)
        contexts = [0, 0] if format is None else self._contexts(format)
        return [
            Assigned(
                stream, format, context, self._port_mapper, captured, self._carriers, by_endpoint
            )
            for stream, captured, context in zip(
                self._directions, self._captured, contexts, strict=False
            )
        ]

    @property
    def _ends(self) -> tuple[Endpoint, Endpoint]:
        first = self._directions[0]
        return first.src, first.dst

    def _rule(self, rules: Sequence[DecodeAs]) -> DecodeAs | None:
        """Return the first rule that is for the connection."""
        return _first_rule(rules, self._directions[0].protocol, self._ends)

    def _by_endpoint(self, rules: Sequence[DecodeAs]) -> bool:
        """Return whether neither a rule nor bytes of the connection decide its format."""
        return (
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
        return named if named is not None and named.in_datagrams else None

    @cached_property
    def sniffed(self) -> Format | None:
        """The format that the first bytes of either direction show."""
        found = (sniff(head) for head in self.heads if head)
        return next(filter(None, found), None)

    def _contexts(self, format: Format) -> list[int]:
        """Return the contexts of the directions' first frames.

        The other direction may decide one, by a first packet that surely is one: where the capture
        shows the direction's beginning, or what opens a connection. Where neither decides, the
        first packets of both do.
        """
        contexts = [format.context] * 2
        opening = [*map(format.opens, self.heads)]
        if len(self._directions) == 2:
            for at, other in ((0, 1), (1, 0)):
                if opening[other] or (self._directions[other].begun and self.heads[other]):
                    contexts[at] = format.answer_context(self.heads[other], format.context)
        if contexts == [format.context] * 2 and not any(opening):
            packets = chain.from_iterable(_first_packets(one, format) for one in self._directions)
            return [format.find_context(packets, format.context)] * 2
        return contexts


def _first_packets(stream: Stream, format: Format) -> Iterator[View]:
    """Yield whole packets from the first captured bytes of a stream, up to a gap."""
    pieces = stream.pieces
    if stream.protocol != "tcp" or not len(pieces):
        return
    start, stop = pieces[0].tolist()
    at_end = stop - start <= _PREFIX_BYTES
    data = stream.read(start, min(stop, start + _PREFIX_BYTES)).data
    framer = Framer(format)
    framer.segment_starts = stream.runs.offsets
    if start:
        framer.lose(start)
    elif not stream.begun:
        framer.presume()
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
    """Return the format of a connection of TCP of which no byte shows one, None if nothing does.

    Parameters
    ----------
    ends
        That of the stream that comes first, and the other.
    services
        What evidence shows of endpoints.
    """
    rule = _first_rule(rules, "tcp", ends)
    return _as_named(_by_port(ends, services) if rule is None else rule.format, named)


def _first_rule(
    rules: Sequence[DecodeAs], protocol: str, ends: Sequence[Endpoint]
) -> DecodeAs | None:
    ports = {end.port for end in ends}
    return next((one for one in rules if one.transport == protocol and one.port in ports), None)


def _as_named(format: Format | None, named: Format | None) -> Format | None:
    """Return the format in the dialect that the caller wants to see, if it is that format's."""
    if named is not None and named.dialect and format is not None and format.name == named.name:
        return named
    return format


def _by_port(ends: Sequence[Endpoint], services: Mapping[Endpoint, str | None]) -> Format | None:
    for end in ends:
        if end in services:
            return get_format(service) if (service := services[end]) else None
    ports = {end.port for end in ends}
    return next((one for one in map(get_format, names()) if not ports.isdisjoint(one.ports)), None)


def _port_mapper(stream: Stream, head: bytes) -> PortMapper | None:
    if stream.protocol != "tcp" or len(head) > MAX_ANSWER_BYTES or not is_answer(head):
        return None
    try:
        return decode_answer(head)
    except DecodeError:
        return None
