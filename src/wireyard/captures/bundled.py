"""Many small streams of a capture read together: copied, framed and timed in one call each.

A plain stream that does not consist of whole packets and gaps between them only is read by itself,
like all streams that are not plain. Of streams that are the same few bytes and no packet, only one
is. Reading it by itself is the reference: both give the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wireyard.arena import pooled
from wireyard.arrays import Ints
from wireyard.captures.bundle_rows import BundleRows, Pieces
from wireyard.captures.connections.merge_kernels import complete_rows
from wireyard.captures.connections.stream import RUN_BYTES, BufferPool
from wireyard.captures.connections.table import ENDINGS, StreamTable
from wireyard.captures.connections.tcp_kernels import NONE
from wireyard.captures.detection.plain import Known
from wireyard.captures.directed import CapturedStream, gaps_of
from wireyard.captures.records import NO_TIME
from wireyard.schema import as_array, repeat_texts
from wireyard.streams.blocks import UNKNOWN, Block, DirectedStream, FrameScanner, StreamBundle
from wireyard.streams.framer import TAIL, Frame, Framer
from wireyard.streams.window import WINDOW_BYTES, even_bytes

_MOST_BYTES: Final = WINDOW_BYTES // 4
"""A larger stream is read by itself: it would fill too much of a window, and is large enough."""

_MOST_TAIL_BYTES: Final = 16
"""The same bytes of more are rare: they would have a client's name."""
_TAIL_COST_BYTES: Final = 256
"""Part of a window for a stream that may be a tail, whose row is made by the scalar reader."""

LEAST_TOGETHER = 16
"""Fewer consecutive streams are read one by one, with those around them in one call."""


def bundle_streams(
    name: str,
    table: StreamTable,
    known: Known,
    rows: Ints,
    others: Ints,
    pool: BufferPool,
    bytes_ahead: int,
) -> list[tuple[int, BundledStreams | CapturedStream]]:
    """Bundle consecutive small streams of one format; return all with their first indexes.

    `rows` are the indexes in the table of the streams to read, whose formats are known, and
    `others` those of other streams, both ascending: no bundle has streams from both sides of one of
    the others. Large streams, and runs of fewer than `LEAST_TOGETHER`, are read by themselves.
    `pool` and `bytes_ahead` are as for `CapturedStream`.
    """
    if not len(rows):
        return []
    connections = table.found[int(table.protocols[rows[0]])]
    runs = np.diff(connections.run_bounds)[table.sides[rows]]
    sizes = np.maximum(table.sizes[rows], RUN_BYTES * runs)
    sizes[table.sizes[rows] <= _MOST_TAIL_BYTES] = _TAIL_COST_BYTES
    large = sizes > _MOST_BYTES
    window = even_bytes(int(sizes.sum()))
    window_of = np.cumsum(sizes) // window + np.cumsum(large)
    between = np.searchsorted(others, rows)
    keys = np.stack([window_of, between, known.numbers[rows], known.alone[rows]])
    apart = (np.diff(keys) != 0).any(axis=0) | large[1:] | large[:-1]
    bounds = [0, *(np.flatnonzero(apart) + 1).tolist(), len(rows)]
    readables: list[tuple[int, BundledStreams | CapturedStream]] = []
    for start, stop in pairwise(bounds):
        bundle = BundledStreams(name, table, known, rows[start:stop], bytes_ahead, pool)
        if large[start] or stop - start < LEAST_TOGETHER:
            readables += zip(bundle.rows.tolist(), bundle.streams(), strict=True)
        else:
            readables.append((int(rows[start]), bundle))
    return readables


@dataclass(frozen=True)
class BundledStreams(StreamBundle):
    """Consecutive streams of one capture and format that fit into one window together."""

    name: str
    table: StreamTable = field(repr=False)
    known: Known = field(repr=False)
    rows: Ints
    """Indexes of the streams in the table."""
    bytes_ahead: int
    pool: BufferPool = field(repr=False)

    @property
    def stream(self) -> str:
        """Name of the first stream."""
        return self.table.stream(int(self.rows[0])).name

    @property
    def context(self) -> int | None:
        """None: each stream has its own."""
        return None

    @cached_property
    def size(self) -> int:
        """The bytes of all streams."""
        return int(self._sizes.sum())

    @property
    def constants(self) -> Mapping[str, str | int]:
        """Empty: the streams have different endpoints."""
        return {}

    def streams(self) -> list[CapturedStream]:
        """Return the streams one by one."""
        return [self._alone(row) for row in self.rows.tolist()]

    def names(self) -> list[str]:
        """Return the names of the streams."""
        names: list[str] = self._names().to_pylist()
        return names

    def pick(self, owners: Iterable[int]) -> list[CapturedStream]:
        """Return streams one by one, by their indexes in the bundle."""
        return [self._alone(int(self.rows[owner])) for owner in owners]

    def describe(self, block: Block | None = None) -> pa.Table:
        """Return the names of the streams, and their columns of `describe_stream`.

        Only those in one of its blocks, if it is given.
        """
        owners = slice(None) if block is None else _owners_in(block)
        table, rows, connections = self.table, self.rows[owners], self._connections
        conversations, ways = table.conversations[rows], table.ways[rows]
        first_ns, last_ns = table.spans_ns[:, rows]
        closing = table.endings.records[rows]
        shows_end = closing != NONE
        closing = np.where(shows_end, closing, 0)
        ends = pa.array(np.array(table.endings.kinds[rows], np.int32))
        kinds = pa.array([ENDINGS[kind] for kind in range(len(ENDINGS))], pa.string())
        return pa.table(
            {
                "stream": self._names(owners),
                "transport": repeat_texts([connections.protocol], [len(rows)]),
                "src_addr": table.flows.addresses(conversations, ways),
                "src_port": pa.array(table.flows.ports(conversations, ways), pa.int32()),
                "dst_addr": table.flows.addresses(conversations, ways ^ 1),
                "dst_port": pa.array(table.flows.ports(conversations, ways ^ 1), pa.int32()),
                "opened": pa.array(connections.opened[self._sides[owners]].astype(np.bool_)),
                "begun": pa.array(connections.begun[self._sides[owners]].astype(np.bool_)),
                "paired": pa.array(connections.captured[self._sides[owners] ^ 1].astype(np.bool_)),
                "ended": kinds.take(ends),
                "ended_ns": pa.array(table.content.times_of(closing), mask=~shows_end),
                "ended_frame": pa.array(closing + 1, mask=~shows_end),
                "first_ns": pa.array(first_ns, mask=first_ns == NO_TIME),
                "last_ns": pa.array(last_ns, mask=last_ns == NO_TIME),
            }
        )

    def sizes_in(self, block: Block) -> Ints:
        """Return the sizes in bytes of the streams in one of its blocks."""
        return self._sizes[_owners_in(block)]

    def of_frame(self, frame: int) -> list[CapturedStream]:
        """Return the streams with bytes from a captured frame; frames are numbered from 1 on."""
        wanted = self.table.content.completed_with(frame - 1)
        places = np.flatnonzero(np.isin(self._connections.runs.records[self._runs], wanted))
        stops = np.cumsum(self._run_counts)
        return self.pick(np.unique(stops.searchsorted(places, "right")).tolist())

    def payload_bytes(self) -> Iterator[tuple[str, int]]:
        """Yield the name of each stream, and its number of bytes, gaps included."""
        yield from zip(self.names(), self._sizes.tolist(), strict=True)

    def parts(
        self,
        fast: Any,
        max_packet_bytes: int,
        read: Callable[[DirectedStream], Iterator[Block]],
    ) -> Iterator[tuple[DirectedStream, Block]]:
        """Yield the blocks of the streams in order, each with the bundle or stream it belongs to.

        `fast` has the compiled columns of the format; None to read the streams one by one. `read`
        yields the blocks of a stream that is read alone.
        """
        if fast is None or self.known.alone[self.rows[0]]:
            yield from _read_alone(map(self._alone, self.rows.tolist()), read)
            return
        rows = self._walk(fast, max_packet_bytes, read)
        begin = 0
        for stop in (*np.flatnonzero(rows.counts == 0).tolist(), len(self.rows)):
            if stop - begin >= LEAST_TOGETHER:
                yield self, rows.block(begin, stop)
                begin = stop
            yield from _read_alone(self.pick(range(begin, min(stop + 1, len(self.rows)))), read)
            begin = stop + 1

    def packet_counts(
        self, fast: Any, max_packet_bytes: int, read: Callable[[DirectedStream], Iterator[Block]]
    ) -> Ints:
        """Return the number of framed packets of each stream; parameters as for `parts`."""
        counts, read_alone = np.zeros(len(self.rows), np.int64), np.arange(len(self.rows))
        if fast is not None and not self.known.alone[self.rows[0]]:
            rows = self._walk(fast, max_packet_bytes, read)
            counts, read_alone = rows.packets.copy(), np.flatnonzero(rows.counts == 0)
        for owner in read_alone.tolist():
            alone = self._alone(int(self.rows[owner]))
            counts[owner] = sum(block.packet_count for block in read(alone))
        return counts

    def _walk(
        self, fast: Any, max_packet_bytes: int, read: Callable[[DirectedStream], Iterator[Block]]
    ) -> BundleRows:
        """Find the rows of the streams that are read together."""
        runs, pieces = self._connections.runs, self._pieces
        data = pooled(int(pieces.bounds[-1]), np.uint8)
        self.table.content.places.copy(runs.starts[self._runs], runs.lengths[self._runs], data)
        contexts = self.known.firsts[self.rows]
        (starts, sizes, of_packets), rows = fast.walk_streams(
            data,
            pieces.bounds,
            pieces.firsts,
            pieces.behind_gap,
            contexts,
            self.known.followings[self.rows],
            self._connections.begun[self._sides].view(np.uint8),
            max_packet_bytes,
        )
        format = self.known.format_at(int(self.rows[0]))
        found = BundleRows.of(format, data, pieces, (starts, sizes, of_packets), rows, contexts)
        tiny = (found.counts == 0) & (self._sizes <= _MOST_TAIL_BYTES) & (self._run_counts == 1)
        owners = np.flatnonzero(tiny & (self.table.gap_bytes[self.rows] == 0))
        return self._with_tails(found, owners, read) if len(owners) >= LEAST_TOGETHER else found

    def _with_tails(
        self,
        rows: BundleRows,
        owners: Ints,
        read: Callable[[DirectedStream], Iterator[Block]],
    ) -> BundleRows:
        """Return the rows with those of the streams that begin a packet, and end in it.

        `owners` are streams of few bytes and no whole packet.
        """
        places = self._pieces.bounds[self._pieces.firsts[owners]]
        sizes, contexts = self._sizes[owners], self.known.firsts[self.rows[owners]]
        begun = self._connections.begun[self._sides[owners]]
        bytes_of, columns = rows.data.tobytes(), (owners, places, sizes, contexts, begun)
        known: dict[tuple[bytes, int, bool], Frame | None] = {}
        tails: list[Frame | None] = []
        for owner, place, size, context, is_begun in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            kind = bytes_of[place : place + size], context, is_begun
            if kind not in known:
                known[kind] = _tail_of(read(self._alone(int(self.rows[owner]))))
            tails.append(known[kind])
        has_tail = np.array([tail is not None for tail in tails])
        return rows.with_tails(
            owners[has_tail], places[has_tail], [tail for tail in tails if tail is not None]
        )

    def blocks(
        self, framer: Framer, scanner: FrameScanner | None, limit: int | None = None
    ) -> Iterator[Block]:
        """Raise TypeError: the blocks of several streams come from `parts`."""
        raise TypeError("streams that are read together have parts")

    def columns(self, block: Block) -> Mapping[str, Ints]:
        """Return the frame of each row, and its time."""
        lengths = self._connections.runs.lengths[self._runs]
        places, stops = block.places, block.places + block.lengths
        seen = _captured_rows(block)
        found = np.empty((2, len(places[seen])), np.int64)
        complete_rows(
            places[seen],
            stops[seen],
            np.cumsum(lengths) - lengths,
            self._connections.runs.records[self._runs],
            self._times_ns[self._runs],
            *found,
        )
        frames, times_ns = np.full((2, len(places)), UNKNOWN)
        frames[seen], times_ns[seen] = found
        return {"captured_ns": times_ns, "frame": frames}

    def packets_of(self, block: Block) -> Ints:
        """Return the numbers, from 0 on, of the captured packets of all rows, each once."""
        lengths = self._connections.runs.lengths[self._runs]
        begins = np.cumsum(lengths) - lengths
        seen = _captured_rows(block)
        starts = block.places[seen]
        first = begins.searchsorted(starts, "right") - 1
        last = begins.searchsorted(starts + block.lengths[seen])
        return self.table.content.packets_of(
            self._connections.runs.records[self._runs], first, last
        )

    def given(self, name: str, block: Block) -> pa.Array:
        """Return a column that has the same value in all rows of a stream."""
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

    def _names(self, owners: slice = slice(None)) -> pa.StringArray:
        table, rows = self.table, self.rows[owners]
        ways, ordinals = table.ways[rows], table.ordinals[rows]
        return table.flows.names(table.conversations[rows], ways, ordinals)

    def _alone(self, row: int) -> CapturedStream:
        context = int(self.known.firsts[row])
        stream = self.table.stream(row)
        return CapturedStream(self.name, stream, context, self.bytes_ahead, self.pool)

    @property
    def _connections(self) -> Any:
        """All connections of the protocol of the streams."""
        return self.table.found[int(self.table.protocols[self.rows[0]])]

    @property
    def _times_ns(self) -> Ints:
        return self.table.times_ns[int(self.table.protocols[self.rows[0]])]

    @cached_property
    def _sides(self) -> Ints:
        return self.table.sides[self.rows]

    @cached_property
    def _sizes(self) -> Ints:
        sizes: Ints = self._connections.sizes[self._sides]
        return sizes

    @property
    def _run_counts(self) -> Ints:
        """The number of runs of each stream."""
        return self._counted_runs[1]

    @property
    def _runs(self) -> Ints:
        """The runs of the streams, one stream after the other."""
        return self._counted_runs[0]

    @cached_property
    def _pieces(self) -> Pieces:
        if not self.table.gap_bytes[self.rows].any():
            return Pieces.without_gaps(self._sizes)
        runs = self._connections.runs
        offsets, lengths = runs.offsets[self._runs], runs.lengths[self._runs]
        return Pieces.of_runs(offsets, lengths, self._run_counts, self._sizes)

    @cached_property
    def _counted_runs(self) -> tuple[Ints, Ints]:
        return self.table.runs_of(self.rows)


def _owners_in(block: Block) -> slice:
    """Return the streams with rows in a block; they follow each other."""
    assert block.owners is not None
    return slice(int(block.owners[0]), int(block.owners[-1]) + 1)


def _read_alone(
    streams: Iterable[CapturedStream], read: Callable[[DirectedStream], Iterator[Block]]
) -> Iterator[tuple[DirectedStream, Block]]:
    """Yield the blocks of streams that are read by themselves, each with its stream."""
    for opened in streams:
        yield from ((opened, block) for block in read(opened))


def _captured_rows(block: Block) -> Ints | slice:
    """Return the rows of a block that are not gaps."""
    return np.delete(np.arange(len(block.places)), gaps_of(block)) if block.odd else slice(None)


def _tail_of(blocks: Iterator[Block]) -> Frame | None:
    """Return the only row of a stream, if it is a tail."""
    (frame, *others) = [block.odd.get(row) for block in blocks for row in range(len(block.places))]
    return frame if frame is not None and frame.status == TAIL and not others else None
