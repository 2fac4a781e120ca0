"""The conversations of a capture: endpoints, format, packets, bytes and times.

A conversation is a TCP connection, or all datagrams between two UDP endpoints. Conversations of
known formats are counted in columns, the others one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from wireyard.arrays import Bools, Ints
from wireyard.captures.bundled import BundledStreams, bundle_streams
from wireyard.captures.carriers.inner import Carrier
from wireyard.captures.clients import Clients
from wireyard.captures.connections.stream import BufferPool
from wireyard.captures.connections.table import ENDINGS, StreamTable
from wireyard.captures.detection.assignment import Assigned
from wireyard.captures.detection.plain import Known
from wireyard.captures.detection.stream_formats import StreamFormats
from wireyard.captures.directed import CapturedStream
from wireyard.captures.inputs import Readable
from wireyard.captures.read import Capture
from wireyard.captures.records import NO_TIME
from wireyard.formats import Format, get_format, names
from wireyard.streams.blocks import UNKNOWN, Block, DirectedStream
from wireyard.streams.framer import Framer
from wireyard.streams.scan import load_fast_path

_PORT_MAPPER: Final = "portmapper"
"""The format of a conversation with a broker's port mapper; it has no packets."""
_TLS_PORTS: Final = (8883, 8884)
"""Ports of brokers for MQTT in TLS: the one that IANA assigned, and the one that mosquitto's test
server has for clients with certificates."""
_AT_ONCE: Final = 1 << 12
"""Conversations that are created together."""


class Conversation(NamedTuple):
    """The two directions of a connection.

    `client` is the side that sent the first packet; if the capture does not show who opened the
    connection, it is the side without the usual port of a broker, if only one side has such a port.
    """

    client: str
    server: str
    transport: str
    format: str | None
    """The format of its streams; if that is unknown, their carrier: ``tls``, ``http``."""
    carriers: Sequence[Carrier]
    """The carriers of its streams, the outermost first."""
    packets_sent: int | None
    packets_received: int | None
    bytes_sent: int
    bytes_received: int
    gaps: int
    gap_bytes: int
    first_ns: int | None
    last_ns: int | None
    ended: str | None
    client_id: str | None
    """The id with which the client logged in."""


class _Counts(NamedTuple):
    """Counts of conversations as columns; `UNKNOWN` for missing values."""

    packets_sent: Ints
    packets_received: Ints
    bytes_sent: Ints
    bytes_received: Ints
    gaps: Ints
    gap_bytes: Ints
    first_ns: Ints
    last_ns: Ints


class Conversations:
    """The conversations of a capture as columns, in the order of their first packets.

    All columns have the shape (e). `formats` are those of the streams of the capture.
    """

    def __init__(self, capture: Capture, formats: StreamFormats) -> None:
        self._table = table = capture.table
        begins = np.diff(table.connections, prepend=-1) != 0
        self._firsts = np.flatnonzero(begins)
        """Index in the table of each conversation's client stream."""
        count = len(self._firsts)
        self._columns = np.full((len(_Counts._fields), count), UNKNOWN)
        self.counts = _Counts(*self._columns)
        self._ended = np.zeros(count, np.uint8)
        self._formats: list[str | None] = [None] * count
        self._clients = Clients.of(_known_streams(formats, table))
        self._carriers: dict[int, Sequence[Carrier]] = {}
        self._is_turned = self._by_ports()
        """Whether the server sent the first packet of each conversation."""
        self._add_known(formats.known)
        numbers = (np.cumsum(begins) - 1)[[*formats.apart]].tolist()
        each = zip(numbers, formats.apart.values(), strict=True)
        for number, sides in groupby(each, key=itemgetter(0)):
            self._add(number, [side for _, side in sides])

    def __len__(self) -> int:
        return len(self._firsts)

    def order(self, by: str) -> Ints:
        """Return the numbers of all conversations, the largest first.

        They are ordered by ``bytes`` or ``packets`` of both directions, or by ``time`` from the
        first packet to the last.
        """
        counts = self.counts
        match by:
            case "bytes":
                sizes = counts.bytes_sent + counts.bytes_received
            case "packets":
                sizes = np.maximum(counts.packets_sent, 0) + np.maximum(counts.packets_received, 0)
            case _:
                sizes = counts.last_ns - counts.first_ns
        return np.argsort(-sizes, kind="stable")

    def rows(self, order: Ints | None = None) -> Iterator[Conversation]:
        """Yield conversations, creating a few thousand at a time.

        `order` has their numbers, from 0 on; all of them in order if None.
        """
        for start in range(0, len(self), _AT_ONCE):
            batch = np.arange(start, min(start + _AT_ONCE, len(self)))
            yield from self._rows(batch if order is None else order[batch])

    def _rows(self, numbers: Ints) -> Iterator[Conversation]:
        table, own = self._table, numbers.tolist()
        indexes = self._firsts[numbers]
        ways, ordinals = table.ways[indexes], table.ordinals[indexes]
        names = table.flows.names(table.conversations[indexes], ways, ordinals).to_pylist()
        pairs = zip(*table.endpoint_names(indexes), strict=True)
        turned = self._is_turned[numbers]
        ends = [
            pair[::-1] if is_turned else pair for pair, is_turned in zip(pairs, turned, strict=True)
        ]
        values = self._columns[:, numbers]
        for sent in (0, 2):  # then received
            values[sent : sent + 2, turned] = values[sent : sent + 2, turned][::-1]
        counts = [
            [None if count == UNKNOWN else count for count in column.tolist()] for column in values
        ]
        columns = (
            [client for client, _ in ends],
            [server for _, server in ends],
            [table.found[protocol].protocol for protocol in table.protocols[indexes].tolist()],
            [self._formats[number] for number in own],
            [self._carriers.get(number, ()) for number in own],
            *counts,
            [ENDINGS[kind] for kind in self._ended[numbers].tolist()],
            [self._clients.ids.get(name) for name in names],
        )
        return map(Conversation._make, zip(*columns, strict=True))

    def _by_ports(self) -> Bools:
        """Return whether the server sent the first packet, by the ports where no SYN was captured.

        Shapes: (e).
        """
        table, firsts = self._table, self._firsts
        ports = [
            *_TLS_PORTS,
            *chain.from_iterable(get_format(name).evidence.ports for name in names()),
        ]
        conversations, ways = table.conversations[firsts], table.ways[firsts]
        is_ours, is_theirs = (
            np.isin(table.flows.ports(conversations, end), ports) for end in (ways, ways ^ 1)
        )
        turned: Bools = is_ours & ~is_theirs
        for number, each in enumerate(table.found):
            own = table.protocols[firsts] == number
            sides = table.sides[firsts[own]]
            shows = each.opened[sides] | each.opened[sides ^ 1]
            turned[own] &= (each.protocol == "tcp") & ~shows
        return turned

    def _add_known(self, known: Known) -> None:
        """Add the conversations of streams as the table has them, which have no carrier."""
        table, counts = self._table, self.counts
        own = np.flatnonzero(known.is_known[self._firsts])
        client = self._firsts[own]
        both = np.append(np.diff(table.connections) == 0, [False])[client]
        server = client + both  # the client's stream again if there is no other
        packets = _known_packets(known, table)
        first_ns, last_ns = table.spans_ns
        ended = table.endings.kinds
        counts.packets_sent[own] = packets[client]
        counts.packets_received[own] = np.where(both, packets[server], 0)
        counts.bytes_sent[own] = table.sizes[client]
        counts.bytes_received[own] = np.where(both, table.sizes[server], 0)
        for of_conversations, of_streams in (
            (counts.gaps, table.gap_counts),
            (counts.gap_bytes, table.gap_bytes),
        ):
            received = np.where(both, of_streams[server], 0)
            of_conversations[own] = of_streams[client] + received
        ours, theirs = first_ns[client], first_ns[server]
        earlier = np.minimum(ours, theirs)  # `NO_TIME` is the least integer
        counts.first_ns[own] = np.where(earlier == NO_TIME, np.maximum(ours, theirs), earlier)
        counts.last_ns[own] = np.maximum(last_ns[client], last_ns[server])
        self._ended[own] = np.where(ended[client], ended[client], ended[server])
        for number, index in zip(own.tolist(), client.tolist(), strict=True):
            self._formats[number] = known.format_at(index).name

    def _add(self, number: int, sides: Sequence[Assigned]) -> None:
        """Add a conversation by its directions, one or both."""
        first, back = sides[0], sides[1] if len(sides) > 1 else None
        directions = [side.captured for side in sides]
        format, carriers = first.format, first.carriers
        gaps = [gap for one in directions for gap in one.gaps.tolist()]
        spans = [span for one in directions if (span := one.span_ns) is not None]
        self._columns[:, number] = (
            UNKNOWN if format is None else _packets(first, format),
            UNKNOWN if format is None else _packets(back, format) if back else 0,
            first.captured.size,
            back.captured.size if back else 0,
            len(gaps),
            sum(stop - start for start, stop in gaps),
            min((span[0] for span in spans), default=NO_TIME),
            max((span[1] for span in spans), default=NO_TIME),
        )
        ended = next((one.ended for one in directions if one.ended), None)
        self._ended[number] = ENDINGS.index(ended)
        name = format.name if format else carriers[-1].name if carriers else None
        self._formats[number] = name or (_PORT_MAPPER if first.port_mapper else None)
        if carriers:
            self._carriers[number] = carriers


def _table_streams(
    known: Known, table: StreamTable
) -> Iterator[tuple[int, Format, BundledStreams | CapturedStream]]:
    """Yield the streams of known formats with their first indexes, small ones together."""
    pool, none = BufferPool(), np.empty(0, np.int64)
    for number, format in enumerate(known.formats):
        rows = np.flatnonzero(known.numbers == number)
        size = int(table.sizes[rows].sum())
        for index, opened in bundle_streams("", table, known, rows, none, pool, size):
            yield index, format, opened


def _known_streams(formats: StreamFormats, table: StreamTable) -> Iterator[Readable]:
    """Yield the streams of known formats, those inside others too."""
    for _, format, opened in _table_streams(formats.known, table):
        yield Readable(format, opened)
    for each in formats.apart.values():
        if each.format is not None and each.stream.size:
            opened = CapturedStream("", each.stream, each.context, each.stream.size)
            yield Readable(each.format, opened)


def _known_packets(known: Known, table: StreamTable) -> Ints:
    """Return the number of packets of each stream of known format; 0 for all other streams."""
    packets = np.zeros(len(table), np.int64)
    for index, format, opened in _table_streams(known, table):
        fast = load_fast_path(format, opened.bytes_ahead)
        read = partial(_blocks, format, fast)
        if isinstance(opened, BundledStreams):
            packets[opened.rows] = opened.packet_counts(fast, format.framing.max_packet_bytes, read)
        else:
            packets[index] = _count(read(opened))
    return packets


def _packets(side: Assigned, format: Format) -> int:
    """Return the number of packets of a stream."""
    opened = CapturedStream("", side.stream, side.context, side.stream.size)
    return _count(_blocks(format, load_fast_path(format, side.stream.size), opened))


def _blocks(format: Format, fast: Any, opened: DirectedStream) -> Iterator[Block]:
    framer = Framer(format, context=opened.context)
    return opened.blocks(framer, None if fast is None else fast.scan_frames)


def _count(blocks: Iterable[Block]) -> int:
    return sum(block.packet_count for block in blocks)
