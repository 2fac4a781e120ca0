"""Many small streams of a capture read together: copied, framed and timed in one call each.

A connection is taken here only if its first bytes surely show a format and nothing is missing of
it. A stream that then turns out to be more than whole packets is read by itself, as all others are:
that is the reference, and gives the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wireyard.arena import pooled
from wireyard.captures.connections import ENDINGS, StreamTable
from wireyard.captures.directed import CapturedStream
from wireyard.captures.flows import Endpoint
from wireyard.captures.merge_kernels import complete_rows
from wireyard.captures.records import NO_TIME
from wireyard.captures.stream import RUN_BYTES, Stream
from wireyard.captures.tcp_kernels import NONE
from wireyard.captures.tray import Tray
from wireyard.formats import Format, get_format
from wireyard.schema import as_array, repeat_texts
from wireyard.streams.blocks import Block, DirectedStream, FrameScanner, StreamBundle
from wireyard.streams.framer import Framer
from wireyard.streams.window import WINDOW_BYTES, even_bytes

__all__ = ["LEAST_STREAMS", "BundledStreams", "Plain", "find_plain"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

LEAST_STREAMS = 64
"""Of fewer streams each is read by itself before the kernels for many are loaded."""
_FORMAT: Final = "mqtt"
"""The format of which a capture may have thousands of connections."""
_HEAD_BYTES: Final = 32
_MOST_BYTES: Final = WINDOW_BYTES // 4
"""A larger stream takes long enough to be read by itself, and leaves no room beside it."""


@dataclass(frozen=True)
class Plain:
    """The streams of a table that can be read together, and how.

    Shapes: all (t); the contexts of streams that are not there mean nothing.
    """

    format: Format
    there: Flags
    firsts: Ints
    """The context of the first packet."""
    followings: Ints
    """The context of the packets behind a CONNECT, and of a server's stream of all."""
    clients: Flags
    """Whether a stream is that of a client that opens the connection."""

    def opened(self, table: StreamTable) -> dict[Endpoint, str]:
        """Return the endpoints that clients opened connections to, and in which format."""
        rows = np.flatnonzero(self.there & self.clients)
        servers = table.flows.unlike(table.conversations[rows], table.ways[rows] ^ 1)
        return dict.fromkeys(servers, self.format.name)

    def readables(
        self, name: str, table: StreamTable, others: Ints, tray: Tray, bytes_ahead: int
    ) -> list[tuple[int, BundledStreams | CapturedStream]]:
        """Return the streams that are there, each run of small ones together, and their places.

        Parameters
        ----------
        others
            The places in the table, ascending, of streams that have to keep theirs between these.
        tray, bytes_ahead
            Those of `CapturedStream`.
        """
        rows = np.flatnonzero(self.there)
        found = table.found[int(table.protocols[rows[0]])] if len(rows) else None
        sizes = table.sizes[rows]
        if found is not None:
            sizes = np.maximum(sizes, RUN_BYTES * np.diff(found.run_bounds)[table.sides[rows]])
        large = sizes > _MOST_BYTES
        window = even_bytes(int(sizes.sum()))
        window_of = np.cumsum(sizes) // window + np.cumsum(large)
        between = np.searchsorted(others, rows)
        apart = np.diff(window_of) + np.diff(between) != 0
        apart |= large[1:] | large[:-1]
        bounds = [0, *(np.flatnonzero(apart) + 1).tolist(), len(rows)]
        readables: list[tuple[int, BundledStreams | CapturedStream]] = []
        for start, stop in pairwise(bounds):
            if start < stop:
                some = rows[start:stop]
                bundle = BundledStreams(name, table, self, some, bytes_ahead, tray)
                opened = bundle.streams()[0] if large[start] else bundle
                readables.append((int(some[0]), opened))
        return readables


def find_plain(table: StreamTable) -> Plain | None:
    """Return the streams of connections that begin as those of the format do, and have no gap.

    None if there are few streams.
    """
    if len(table) < LEAST_STREAMS:
        return None
    tcp = next((at for at, one in enumerate(table.found) if one.protocol == "tcp"), None)
    if tcp is None:
        return None
    found, sides = table.found[tcp], table.sides
    runs = found.runs
    of_tcp = table.protocols == tcp
    if not of_tcp.any():
        return None
    sides = np.where(of_tcp, sides, 0)
    first_runs, stop_runs = found.run_bounds[sides], found.run_bounds[sides + 1]
    sizes = found.sizes[sides]
    whole = of_tcp & (first_runs < stop_runs)
    whole &= found.brought()[sides] == sizes
    rows = np.flatnonzero(whole)
    if len(rows) < LEAST_STREAMS:
        return None
    heads = first_runs[rows]
    lengths = np.minimum(runs.lengths[heads], _HEAD_BYTES)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    data = np.empty(int(bounds[-1]), np.uint8)
    table.content.places.copy(runs.starts[heads], lengths, data)
    format = get_format(_FORMAT)
    kinds_found, contexts_found = import_module(format.fast_path).sniff_heads(data, bounds)
    kinds, contexts = np.zeros(len(table), np.uint8), np.zeros(len(table), np.int64)
    kinds[rows], contexts[rows] = kinds_found, contexts_found
    # Each connection has one stream or two, side by side.
    alone = np.ones(len(table), np.bool_)
    pairs = np.flatnonzero(table.connections[1:] == table.connections[:-1])
    alone[pairs] = alone[pairs + 1] = False
    there = alone & (kinds == 1)
    begun = found.begun[sides]
    firsts, followings = np.zeros(len(table), np.int64), contexts.copy()
    for ours, theirs in ((pairs, pairs + 1), (pairs + 1, pairs)):
        both = (kinds[ours] == 1) & (kinds[theirs] == 2)
        client, server = ours[both], theirs[both]
        there[client] = there[server] = True
        # The bytes of a CONNACK prove nothing where they may be inside a packet.
        firsts[client] = np.where(begun[server], contexts[server], 0)
        firsts[server] = followings[server] = contexts[client]
    return Plain(format, there, firsts, followings, kinds == 1)


@dataclass(frozen=True)
class BundledStreams(StreamBundle):
    """Streams of one capture and format that follow each other and fit a window together."""

    name: str
    table: StreamTable = field(repr=False)
    plain: Plain = field(repr=False)
    rows: Ints
    """Which streams of the table."""
    bytes_ahead: int
    tray: Tray = field(repr=False)

    @property
    def stream(self) -> str:
        """The first of the streams."""
        return self.table.stream(int(self.rows[0])).name

    @property
    def context(self) -> int | None:
        """Nothing: each stream has its own."""
        return None

    @cached_property
    def size(self) -> int:
        """The bytes of all streams."""
        return int(self._sizes.sum())

    @property
    def constants(self) -> Mapping[str, str | int]:
        """Nothing: the streams are of several connections."""
        return {}

    def streams(self) -> list[CapturedStream]:
        """Return each stream by itself."""
        return [self._alone(row) for row in self.rows.tolist()]

    def names(self) -> list[str]:
        """Return the names of the streams."""
        names: list[str] = self._names().to_pylist()
        return names

    def pick(self, owners: Iterable[int]) -> list[CapturedStream]:
        """Return each of some streams by itself, by their places."""
        return [self._alone(int(self.rows[owner])) for owner in owners]

    def describe(self) -> pa.Table:
        """Return what the capture shows of the streams: their names and `CAPTURED_FACTS`."""
        table, rows, found = self.table, self.rows, self._found
        conversations, ways = table.conversations[rows], table.ways[rows]
        first_ns, last_ns = table.spans_ns[:, rows]
        closing = table.endings.records[rows]
        shows_end = closing != NONE
        closing = np.where(shows_end, closing, 0)
        ends = pa.array(np.array(table.endings.kinds[rows], np.int32))
        kinds = pa.array([ENDINGS[kind] for kind in range(len(ENDINGS))], pa.string())
        return pa.table(
            {
                "stream": self._names(),
                "transport": repeat_texts([found.protocol], [len(rows)]),
                "src_addr": table.flows.addresses(conversations, ways),
                "src_port": pa.array(table.flows.ports(conversations, ways), pa.int32()),
                "dst_addr": table.flows.addresses(conversations, ways ^ 1),
                "dst_port": pa.array(table.flows.ports(conversations, ways ^ 1), pa.int32()),
                "opened": pa.array(found.opened[self._sides].astype(np.bool_)),
                "begun": pa.array(found.begun[self._sides].astype(np.bool_)),
                "ended": kinds.take(ends),
                "ended_ns": pa.array(table.content.times_of(closing), mask=~shows_end),
                "ended_frame": pa.array(closing + 1, mask=~shows_end),
                "first_ns": pa.array(first_ns, mask=first_ns == NO_TIME),
                "last_ns": pa.array(last_ns, mask=last_ns == NO_TIME),
            }
        )

    def of_frame(self, frame: int) -> list[CapturedStream]:
        """Return each stream by itself that a captured frame, from 1 on, brought some bytes of."""
        wanted = self.table.content.completed_with(frame - 1)
        places = np.flatnonzero(np.isin(self._found.runs.records[self._runs], wanted))
        stops = np.cumsum(self._run_counts)
        return self.pick(np.unique(stops.searchsorted(places, "right")).tolist())

    def stream_at(self, owner: int) -> Stream:
        """Return the stream that has a place in the bundle."""
        return self.table.stream(int(self.rows[owner]))

    def payload_bytes(self) -> Iterator[tuple[str, int]]:
        """Yield the name of each stream, and how many bytes its segments brought."""
        yield from zip(self.names(), self._sizes.tolist(), strict=True)  # none has a gap

    def rows_by_stream(self, owners: Ints) -> Iterator[tuple[Stream, int]]:
        """Yield the streams of rows, and how many each has.

        Parameters
        ----------
        owners
            Those of a block.
        """
        bounds = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
        for first, behind in pairwise(bounds):
            yield self.stream_at(int(owners[first])), behind - first

    def parts(
        self,
        fast: Any,
        max_packet_bytes: int,
        read: Callable[[DirectedStream], Iterator[Block]],
    ) -> Iterator[tuple[DirectedStream, Block]]:
        """Yield the blocks of the streams in order, each with the streams it is of.

        Parameters
        ----------
        fast
            The compiled columns of the format; None to read each stream by itself.
        read
            Yields the blocks of a stream that is read by itself.
        """
        if fast is None:
            for opened in self.streams():
                yield from ((opened, block) for block in read(opened))
            return
        data, bounds, (starts, sizes, contexts), firsts = self._walk(fast, max_packet_bytes)
        counts = np.diff(firsts)
        odd = np.flatnonzero(counts == 0)
        begin = 0
        for stop in (*odd.tolist(), len(self.rows)):
            if begin < stop:
                rows = slice(int(firsts[begin]), int(firsts[stop]))
                owners = np.repeat(np.arange(begin, stop), counts[begin:stop])
                offsets = starts[rows] - bounds[owners]
                yield (
                    self,
                    Block(
                        data, len(data), starts[rows], offsets, sizes[rows], contexts[rows], {},
                        owners,
                    ),
                )  # fmt: skip
            if stop < len(self.rows):
                opened = self._alone(int(self.rows[stop]))
                yield from ((opened, block) for block in read(opened))
            begin = stop + 1

    def packet_counts(
        self, fast: Any, max_packet_bytes: int, read: Callable[[DirectedStream], Iterator[Block]]
    ) -> Ints:
        """Return how many framed packets each stream has; the parameters are those of `parts`."""
        counts = np.zeros(len(self.rows), np.int64)
        if fast is not None:
            counts = np.diff(self._walk(fast, max_packet_bytes)[3])
        for owner in np.flatnonzero(counts == 0).tolist():
            alone = self._alone(int(self.rows[owner]))
            counts[owner] = sum(block.packet_count for block in read(alone))
        return counts

    def _walk(self, fast: Any, max_packet_bytes: int) -> tuple[Bytes, Ints, Any, Ints]:
        """Return the bytes of the streams, where each begins, and the frames and first rows."""
        data, known = pooled(self.size, np.uint8), self._found.runs
        self.table.content.places.copy(known.starts[self._runs], known.lengths[self._runs], data)
        bounds = np.concatenate([[0], np.cumsum(self._sizes)])
        frames, firsts = fast.walk_streams(
            data,
            bounds,
            self.plain.firsts[self.rows],
            self.plain.followings[self.rows],
            self._found.begun[self._sides].view(np.uint8),
            max_packet_bytes,
        )
        return data, bounds, frames, firsts

    def blocks(
        self, framer: Framer, scanner: FrameScanner | None, limit: int | None = None
    ) -> Iterator[Block]:
        """Refuse: the blocks of several streams come as `parts`."""
        raise TypeError("streams that are read together have parts")

    def columns(self, block: Block) -> Mapping[str, Ints]:
        """Return when the rows of a block were captured."""
        assert block.owners is not None
        lengths = self._found.runs.lengths[self._runs]
        frames, times_ns = np.empty((2, len(block.places)), np.int64)
        complete_rows(
            block.places,
            block.places + block.lengths,
            np.cumsum(lengths) - lengths,
            self._found.runs.records[self._runs],
            self._times_ns[self._runs],
            frames,
            times_ns,
        )
        return {"captured_ns": times_ns, "frame": frames}

    def packets_of(self, block: Block) -> Ints:
        """Return the numbers, from 0 on, of the captured packets that rows came in, each once."""
        lengths = self._found.runs.lengths[self._runs]
        begins = np.cumsum(lengths) - lengths
        first = begins.searchsorted(block.places, "right") - 1
        last = begins.searchsorted(block.places + block.lengths)
        return self.table.content.packets_of(self._found.runs.records[self._runs], first, last)

    def given(self, name: str, block: Block) -> pa.Array:
        """Return a column whose value all rows of a stream have in common."""
        assert block.owners is not None
        flows, rows = self.table.flows, self.rows
        conversations, ways = self.table.conversations[rows], self.table.ways[rows]
        if name == "stream":
            values = self._names()
        elif name in ("src_addr", "dst_addr"):
            values = flows.addresses(conversations, ways ^ (name == "dst_addr"))
        else:
            ports = flows.ports(conversations, ways ^ (name == "dst_port"))
            return as_array(ports[block.owners].astype(np.int32))
        return values.take(as_array(block.owners))

    def close(self) -> None:
        """Do nothing: the capture is in memory."""

    def _names(self) -> pa.StringArray:
        table, rows = self.table, self.rows
        ways, ordinals = table.ways[rows], table.ordinals[rows]
        return table.flows.names(table.conversations[rows], ways, ordinals)

    def _alone(self, row: int) -> CapturedStream:
        context = int(self.plain.firsts[row])
        stream = self.table.stream(row)
        return CapturedStream(self.name, stream, context, self.bytes_ahead, self.tray)

    @property
    def _found(self) -> Any:
        return self.table.found[int(self.table.protocols[self.rows[0]])]

    @property
    def _times_ns(self) -> Ints:
        return self.table.times_ns[int(self.table.protocols[self.rows[0]])]

    @cached_property
    def _sides(self) -> Ints:
        return self.table.sides[self.rows]

    @cached_property
    def _sizes(self) -> Ints:
        sizes: Ints = self._found.sizes[self._sides]
        return sizes

    @property
    def _run_counts(self) -> Ints:
        """How many runs each stream has."""
        bounds: Ints = self._found.run_bounds
        return bounds[self._sides + 1] - bounds[self._sides]

    @cached_property
    def _runs(self) -> Ints:
        """The runs of the streams, one stream behind the other."""
        first, counts = self._found.run_bounds[self._sides], self._run_counts
        before = np.cumsum(counts) - counts
        runs: Ints = np.repeat(first - before, counts) + np.arange(int(counts.sum()))
        return runs
