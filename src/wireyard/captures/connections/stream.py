"""One direction of a connection: its bytes in order, and the frame of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import local
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wireyard.arena import parts, pooled, room
from wireyard.arrays import Bytes, Grid, Ints
from wireyard.captures.connections.flows import Endpoint
from wireyard.captures.connections.merge_kernels import complete_rows
from wireyard.captures.files.places import Places
from wireyard.captures.records import NO_TIME
from wireyard.streams.window import WINDOW_BYTES, Window, Windows

RUN_BYTES: Final = 48
"""Least number of bytes that a run counts as when windows are filled. A run is mostly a row or a
few, and a row of an acknowledgement, which has 4 bytes, takes 60 times as much memory."""


class Content(NamedTuple):
    """Data that all streams of a capture share: their bytes, and the times of its packets.

    Shapes: records, times_ns (r); `records` are packet numbers from 0 on, ascending. `fragments`
    has the packets of each reassembled datagram, by the packet that completed it.
    """

    places: Places
    records: npt.NDArray[np.integer[Any]]
    times_ns: Ints
    fragments: Mapping[int, Sequence[int]]

    def times_of(self, records: Ints) -> Ints:
        """Return the times of packets by their numbers."""
        times_ns = room(len(records))
        if len(self.records) and self.records[-1] == len(self.records) - 1:
            # No number is missing, so it is the index.
            return self.times_ns.take(records, out=times_ns, mode="clip")
        for part in parts(len(records)):
            # Other types would make searchsorted convert all of `self.records`.
            wanted = records[part].astype(self.records.dtype)
            times_ns[part] = self.times_ns[self.records.searchsorted(wanted)]
        return times_ns

    def move(self, records: Ints, times_ns: Ints) -> None:
        """Change the times of packets, before any stream has them."""
        places = records
        if len(self.records) and self.records[-1] != len(self.records) - 1:
            places = self.records.searchsorted(records.astype(self.records.dtype))
        self.times_ns[places] = times_ns

    def completed_with(self, packet: int) -> list[int]:
        """Return a packet and the packets that completed the datagrams it has fragments of."""
        return [packet, *(last for last, parts in self.fragments.items() if packet in parts)]

    def packets_of(self, records: Ints, first: Ints, last: Ints) -> Ints:
        """Return the numbers of all packets with bytes of some runs, each once, ascending.

        `records` has the packet that completed each run; `first` and `last` are half-open ranges of
        runs.
        """
        filled = last > first
        first, last = first[filled], last[filled]
        if not len(first):
            return np.empty(0, np.int64)
        # There may be many runs and many calls, each for a few of them.
        begin, stop = int(first.min()), int(last.max())
        most = stop - begin + 1
        edges = np.bincount(first - begin, minlength=most)
        edges -= np.bincount(last - begin, minlength=most)
        packets = np.unique(records[begin:stop][np.cumsum(edges[:-1]) > 0])
        if not self.fragments:
            return packets
        members = (self.fragments.get(record, (record,)) for record in packets.tolist())
        return np.unique(np.fromiter(chain.from_iterable(members), np.int64))


class Runs(NamedTuple):
    """Ranges of a stream, in order, each with bytes of one packet.

    Shapes: all columns (u). `offsets` are in the stream, `starts` are addresses in
    `Content.places`. Between runs that do not touch is a gap.
    """

    offsets: Ints
    lengths: Ints
    starts: Ints
    records: Ints

    @property
    def stops(self) -> Ints:
        """Offsets in the stream at which the runs end."""
        return self.offsets + self.lengths

    @property
    def pieces(self) -> Grid:
        """The contiguous parts of the stream. Shapes: (p, 2), start and stop."""
        starts = self.offsets
        if not len(starts):
            return np.empty((0, 2), np.int64)
        stop = starts[-1] + self.lengths[-1]
        if stop - starts[0] == self.lengths.sum():  # no gaps, as in most streams
            return np.array([[starts[0], stop]])
        stops = self.stops
        apart = np.flatnonzero(starts[1:] != stops[:-1])
        pieces = np.empty((len(apart) + 1, 2), np.int64)
        pieces[0, 0], pieces[-1, 1] = starts[0], stops[-1]
        pieces[1:, 0], pieces[:-1, 1] = starts[apart + 1], stops[apart]
        return pieces

    def reaching(self, starts: Any, stops: Any) -> tuple[Any, Any]:
        """Return the half-open range of runs that contain bytes."""
        offsets = self.offsets
        return np.maximum(offsets.searchsorted(starts, "right") - 1, 0), offsets.searchsorted(stops)

    def copy(self, places: Places, start: int, stop: int, out: Bytes) -> None:
        """Copy bytes ``[start, stop)`` to `out`.

        `ValueError` is raised if they are not all in one piece.
        """
        touched = slice(*self.reaching(start, stop))
        offsets, lengths, starts = (column[touched] for column in self[:3])
        begin = end = start
        if len(offsets):
            begin, end = int(offsets[0]), int(offsets[-1] + lengths[-1])
        if start < begin or end < stop or end - begin != lengths.sum():
            raise ValueError(f"bytes {start} to {stop} are not all in one piece")
        places.copy(starts, lengths, out, start - begin)

    def read(self, places: Places, start: int, stop: int) -> Bytes:
        """Return bytes ``[start, stop)``; raises like `copy`."""
        out = np.empty(stop - start, np.uint8)
        self.copy(places, start, stop, out)
        return out


def previous_stops(stops: Ints, firsts: Ints) -> Ints:
    """Return where the run before each one ends; 0 for the first run of a stream.

    `stops` are the ends of the runs of streams, one stream after the other, and `firsts` the first
    run of each stream.
    """
    previous = np.append(0, stops)[:-1]
    previous[firsts] = 0
    return previous


class BufferPool(local):
    """An allocator of parts of buffers of a window's size, for one thread: each has its own state.

    Small streams share a buffer, so that they can be read together.
    """

    def __init__(self) -> None:
        self.data: Bytes = pooled(0, np.uint8)
        """The current buffer."""
        self._used = 0

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes; return their offset in `data`, which may be a new buffer."""
        if size > len(self.data) - self._used:
            self.data, self._used = pooled(max(size, WINDOW_BYTES), np.uint8), 0
        place = self._used
        self._used += size
        return place


@dataclass(frozen=True, slots=True)
class Stream:
    """One direction of a TCP connection, or all datagrams from one UDP endpoint to another.

    Offsets count all bytes that were sent; those that were not captured are gaps.
    """

    name: str
    """``source:port>target:port``, and ``#n`` for the n-th connection of these ports, from 2 on."""
    protocol: str
    """``tcp`` or ``udp``."""
    src: Endpoint
    dst: Endpoint
    size: int
    """Bytes sent, including gaps, as far as is known."""
    opened: bool
    """Whether the capture shows that its sender opened the connection."""
    begun: bool
    """Whether the capture shows that the stream begins at offset 0."""
    paired: bool
    """Whether the capture has packets of the other direction, be it without bytes."""
    ended: str | None
    """``fin``, ``rst``, or None where the capture shows no end."""
    closing_record: int | None
    """Number, from 0 on, of the packet that first showed an end."""
    runs: Runs
    """One or more for each packet with new bytes; of UDP, one for each datagram."""
    times_ns: Ints = field(repr=False)
    """Capture time of the packet of each run."""
    content: Content = field(repr=False)
    proxy: tuple[str, int] | None = None
    """Kind and size in bytes of the proxy header that was removed before it; see `proxies`."""
    is_carried: bool = False
    """Whether it is inside TLS or WebSocket; then the sizes of its gaps are those of the carrier's
    bytes."""

    @property
    def connection(self) -> tuple[str, frozenset[str], str]:
        """Key of the connection: equal for its two directions, and for no other streams."""
        ends = frozenset((str(self.src), str(self.dst)))
        return self.protocol, ends, self.name.partition("#")[2]

    @property
    def closed(self) -> tuple[int, int] | None:
        """Number, from 1 on, and time in ns of the frame that first showed an end; or None."""
        if self.closing_record is None:
            return None
        time_ns = self.content.times_of(np.array([self.closing_record]))
        return self.closing_record + 1, int(time_ns[0])

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """The times of its first and of its last packet with bytes; None if none has a time."""
        times_ns = self.times_ns[self.times_ns != NO_TIME]
        return (int(times_ns.min()), int(times_ns.max())) if len(times_ns) else None

    @property
    def pieces(self) -> Grid:
        """The contiguous parts of the stream. Shapes: (p, 2), start and stop."""
        return self.runs.pieces

    @property
    def gaps(self) -> Grid:
        """The ranges that were not captured. Shapes: (g, 2), start and stop."""
        pieces = self.pieces
        edges = np.stack([np.r_[0, pieces[:, 1]], np.r_[pieces[:, 0], self.size]], axis=1)
        return edges[edges[:, 0] < edges[:, 1]]

    def head(self, most_bytes: int | None = None) -> memoryview:
        """Return the first bytes, up to a gap; empty if the first byte is missing."""
        pieces = self.pieces
        if not len(pieces) or pieces[0][0]:
            return memoryview(b"")
        stop = int(pieces[0][1])
        return self.read(0, stop if most_bytes is None else min(stop, most_bytes)).data

    def behind(self, size: int, proxy: str) -> Stream:
        """Return the stream without the first `size` bytes, the header for a proxy."""
        if not size:
            return self
        first = int(self.runs.stops.searchsorted(size, "right"))
        offsets, lengths, starts, records = (column[first:].copy() for column in self.runs)
        skip = np.maximum(size - offsets, 0)  # above 0 for the first run only
        runs = Runs(offsets + skip - size, lengths - skip, starts + skip, records)
        rest, times_ns = self.size - size, self.times_ns[first:]
        return replace(self, size=rest, runs=runs, times_ns=times_ns, proxy=(proxy, size))

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes ``[start, stop)``, which have to be in one piece."""
        return self.runs.read(self.content.places, start, stop)

    def windows(
        self,
        start: int,
        stop: int,
        window_bytes: int = WINDOW_BYTES,
        pool: BufferPool | None = None,
        *,
        ends: bool = True,
    ) -> Windows:
        """Yield the windows of a piece, or of a part of one.

        `pool` has the buffers for their bytes. `ends` shows whether the piece ends at `stop`.
        """
        pool = pool or BufferPool()
        reach = window_bytes
        while True:
            reached = min(start + reach, stop)
            if reach == window_bytes:
                reached = min(reached, self._behind_runs(start, window_bytes))
            place = pool.allocate(reached - start)
            end = place + reached - start
            self.runs.copy(self.content.places, start, reached, pool.data[place:end])
            yield (window := Window(pool.data, start - place, place, end, ends and reached == stop))
            if reached == stop:
                return
            # If no frame was consumed, the first one is larger than the window.
            reach = window_bytes if window.start > place else reach * 2
            start += window.start - place

    def _behind_runs(self, start: int, window_bytes: int) -> int:
        """Return the end of the runs, at least one, that fill a window from an offset on."""
        offsets = self.runs.offsets
        first = int(offsets.searchsorted(start, "right")) - 1
        behind = first + max(window_bytes // RUN_BYTES, 1)
        return int(offsets[behind]) if behind < len(offsets) else self.size

    def completed(self, starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
        """Return the frames that completed ranges of bytes, each of which is in one piece.

        Of each range these are the number, from 1 on, of the last frame captured that has some of
        the bytes ``[start, stop)``, and its time. It need not be the frame of the last byte.
        """
        frames, times_ns = np.empty((2, len(starts)), np.int64)
        runs = self.runs
        complete_rows(starts, stops, runs.offsets, runs.records, self.times_ns, frames, times_ns)
        return frames, times_ns

    def packets_of(self, starts: Ints, stops: Ints) -> Ints:
        """Return the numbers, from 0 on, of all packets with some of the bytes; ascending."""
        first, last = self.runs.reaching(starts, stops)
        return self.content.packets_of(self.runs.records, first, last)
