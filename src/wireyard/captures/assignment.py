"""Which format each stream of a capture has.

The first that knows decides: what the caller said of a port, the first bytes of either direction,
what a port mapper in the capture says of a port, the port that servers of a format usually have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from wireyard.captures.flows import Endpoint
from wireyard.captures.portmapper import (
    MAX_ANSWER_BYTES,
    PortMapper,
    decode_answer,
    is_answer,
)
from wireyard.captures.stream import Stream
from wireyard.errors import DecodeError, UsageError
from wireyard.formats import Format, get_format, names, sniff

__all__ = ["PORT_MAPPER_PORT", "Assigned", "DecodeAs", "assign_formats", "parse_decode_as"]

PORT_MAPPER_PORT: Final = 7676
"""Where the port mapper listens whose answers are believed about other ports."""

_SNIFFED_BYTES: Final = 1 << 16
_DECODE_AS: Final = re.compile(r"(tcp|udp)\.port *== *(\d{1,5}) *, *(\S+)")
_MOST_PORT: Final = 0xFFFF


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
    """None if nothing tells."""
    context: int
    """Context of the stream's first frame."""
    port_mapper: PortMapper | None
    """What the server said, if it is the connection to a port mapper."""


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
) -> list[Assigned]:
    """Tell the format of each stream, in the order of the streams.

    Parameters
    ----------
    named
        The format the caller wants to see. Its dialect counts for its streams, and if nothing
        on the wire ever tells it, the streams of its transport that nothing else is known of are
        taken for it.
    guides
        Streams whose format nobody asks for, and which may tell of that of others.
    """
    found, others = _connections(streams), _connections(guides)
    services: dict[Endpoint, str | None] = {}
    for one in (*found, *others):
        services |= one.services()
    return [each for one in found for each in one.assigned(rules, services, named)]


def _connections(streams: Sequence[Stream]) -> list[_Connection]:
    return [_Connection(list(both)) for _, both in groupby(streams, key=lambda s: s.connection)]


class _Connection:
    """The directions of a connection, the one that spoke first before the other."""

    def __init__(self, directions: Sequence[Stream]) -> None:
        self._directions = directions
        self._heads = [_head(stream) for stream in directions]
        answers = map(_port_mapper, directions, self._heads)
        self._port_mapper = next(filter(None, answers), None)

    def services(self) -> Mapping[Endpoint, str | None]:
        """Return the endpoints of the broker whose port mapper this is, and their formats."""
        if self._port_mapper is None:
            return {}
        brokers = {stream.src for stream in self._directions if is_answer(_head(stream))}
        return {
            Endpoint(broker.address, service.port): service.format
            for broker in brokers
            # Where a capture is shared among readers, all of them have this port and no other.
            if broker.port == PORT_MAPPER_PORT
            for service in self._port_mapper.services
            if service.port
        }

    def assigned(
        self,
        rules: Sequence[DecodeAs],
        services: Mapping[Endpoint, str | None],
        named: Format | None,
    ) -> list[Assigned]:
        """Return what each direction is."""
        format = self._format(rules, services, named)
        if named is not None and named.dialect and format is not None and format.name == named.name:
            format = named
        contexts = [0 if format is None else self._context(format, at) for at in (0, 1)]
        return [
            Assigned(stream, format, context, self._port_mapper)
            for stream, context in zip(self._directions, contexts, strict=False)
        ]

    def _format(
        self,
        rules: Sequence[DecodeAs],
        services: Mapping[Endpoint, str | None],
        named: Format | None,
    ) -> Format | None:
        first = self._directions[0]
        ends = (first.src, first.dst)
        ports = {end.port for end in ends}
        for rule in rules:
            if rule.transport == first.protocol and rule.port in ports:
                return rule.format
        if first.protocol == "tcp":
            if self._port_mapper is not None:
                return None
            return self._sniffed() or _by_port(ends, services)
        return named if named is not None and named.in_datagrams else None

    def _sniffed(self) -> Format | None:
        found = (sniff(head) for head in self._heads if head)
        return next(filter(None, found), None)

    def _context(self, format: Format, at: int) -> int:
        """Return the context of a direction's first frame, which the other may have decided."""
        if len(self._heads) < 2 or not self._heads[1 - at]:
            return format.context
        return format.answer_context(self._heads[1 - at], format.context)


def _by_port(ends: Sequence[Endpoint], services: Mapping[Endpoint, str | None]) -> Format | None:
    for end in ends:
        if end in services:
            return get_format(service) if (service := services[end]) else None
    ports = {end.port for end in ends}
    return next((one for one in map(get_format, names()) if not ports.isdisjoint(one.ports)), None)


def _head(stream: Stream) -> bytes:
    """Return the first bytes of a stream, none if the capture does not have them."""
    pieces = stream.pieces
    if not len(pieces) or pieces[0][0]:
        return b""
    return stream.read(0, min(int(pieces[0][1]), _SNIFFED_BYTES)).tobytes()


def _port_mapper(stream: Stream, head: bytes) -> PortMapper | None:
    if stream.protocol != "tcp" or len(head) > MAX_ANSWER_BYTES or not is_answer(head):
        return None
    try:
        return decode_answer(head)
    except DecodeError:
        return None
