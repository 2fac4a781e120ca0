"""One direction of a connection: its bytes in order, and the frame that brought each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wireyard.arena import parts, room
from wireyard.captures.flows import Endpoint
from wireyard.captures.merge_kernels import complete_rows
from wireyard.captures.places import Places
from wireyard.captures.records import NO_TIME
from wireyard.captures.tray import Tray
from wireyard.streams.window import WINDOW_BYTES, Window, Windows

__all__ = ["RUN_BYTES", "Content", "Runs", "Stream"]

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

RUN_BYTES: Final = 48
"""What a run counts as at least where windows are filled: each mostly is a row or a few, and rows
of acknowledgements, which have 4 bytes, take 60 times as much."""


class Content(NamedTuple):
    """What the streams of a capture share: the bytes they are made of, the times of its packets.

    Shapes: records, times_ns (r); `records` are the numbers of packets, from 0 on and ascending.
    `fragments` has those that a datagram came in, by the one that completed it.
    """

    places: Places
    records: npt.NDArray[np.integer[Any]]
    times_ns: Ints
    fragments: Mapping[int, Sequence[int]]

    def times_of(self, records: Ints) -> Ints:
        """Return the times of packets that streams are made of."""
        times_ns = room(len(records))
        if len(self.records) and self.records[-1] == len(self.records) - 1:
            # None is missing, so each stands at its number.
            return self.times_ns.take(records, out=times_ns, mode="clip")
        for part in parts(len(records)):
            # Numbers of another type would have all of those they are looked up in converted.
            wanted = records[part].astype(self.records.dtype)
            times_ns[part] = self.times_ns[self.records.searchsorted(wanted)]
        return times_ns

    def completed_with(self, packet: int) -> list[int]:
        """Return the numbers of packets that completed what a packet brought bytes of.

        Itself, and the last fragments of datagrams that it has others of.
        """
        return [packet, *(one for one, parts in self.fragments.items() if packet in parts)]

    def packets_of(self, records: Ints, first: Ints, last: Ints) -> Ints:
        """Return the numbers of all packets that runs came in, each once, ascending.

        Parameters
        ----------
        records
            Of each run the packet that completed it.
        first, last
            Ranges of runs, half-open.
        """
        filled = last > first
        first, last = first[filled], last[filled]
        if not len(first):
            return np.empty(0, np.int64)
        # Of many runs, these may be few, and this may be called for each few of them.
        begin, stop = int(first.min()), int(last.max())
        most = stop - begin + 1
        edges = np.bincount(first - begin, minlength=most)
        edges -= np.bincount(last - begin, minlength=most)
        found = np.unique(records[begin:stop][np.cumsum(edges[:-1]) > 0])
        if not self.fragments:
            return found
        each = (self.fragments.get(record, (record,)) for record in found.tolist())
        return np.unique(np.fromiter(chain.from_iterable(each), np.int64))


class Runs(NamedTuple):
    """Bytes of one packet each, in the order of the stream.

    Shapes: all columns (u). `offsets` are those in the stream, `starts` those in `Content.places`.
    Between runs that do not touch is a gap.
    """

    offsets: Ints
    lengths: Ints
    starts: Ints
    records: Ints

    @property
    def stops(self) -> Ints:
        """Offsets in the stream where the runs end."""
        return self.offsets + self.lengths


@dataclass(frozen=True, slots=True)
class Stream:
    """One direction of a TCP connection, or all datagrams from one UDP endpoint to another.

    Offsets count every byte that was sent; those the capture never saw are a gap.
    """

    name: str
    """``source:port>target:port``, with ``#n`` from the second connection of these ports on."""
    protocol: str
    """``tcp`` or ``udp``."""
    src: Endpoint
    dst: Endpoint
    size: int
    """Bytes with those in gaps, as far as is known."""
    opened: bool
    """Whether the capture shows that its sender opened the connection."""
    begun: bool
    """Whether the capture shows that the stream begins at offset 0."""
    ended: str | None
    """``fin``, ``rst``, or None where the capture shows no end."""
    closing_record: int | None
    """Number, from 0 on, of the packet that first showed an end."""
    runs: Runs
    """One or more for each packet that brought something new; of UDP, one for each datagram."""
    times_ns: Ints = field(repr=False)
    """When the packet of each run was captured."""
    content: Content = field(repr=False)
    proxy: tuple[str, int] | None = None
    """What was sent to a proxy before its first byte, and in how many bytes; see `proxies`."""

    @property
    def connection(self) -> tuple[str, frozenset[str], str]:
        """What the two directions of a connection have in common, and no others."""
        ends = frozenset((str(self.src), str(self.dst)))
        return self.protocol, ends, self.name.partition("#")[2]

    @property
    def closed(self) -> tuple[int, int] | None:
        """Number, from 1 on, and time in ns of the frame that first showed an end."""
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
    def pieces(self) -> Ints:
        """The parts without a gap. Shapes: (p, 2), start and stop."""
        starts = self.runs.offsets
        if not len(starts):
            return np.empty((0, 2), np.int64)
        stop = starts[-1] + self.runs.lengths[-1]
        if stop - starts[0] == self.runs.lengths.sum():  # as most have none
            return np.array([[starts[0], stop]])
        stops = self.runs.stops
        apart = np.flatnonzero(starts[1:] != stops[:-1])
        pieces = np.empty((len(apart) + 1, 2), np.int64)
        pieces[0, 0], pieces[-1, 1] = starts[0], stops[-1]
        pieces[1:, 0], pieces[:-1, 1] = starts[apart + 1], stops[apart]
        return pieces

    @property
    def gaps(self) -> Ints:
        """The parts that are not there. Shapes: (g, 2), start and stop."""
        pieces = self.pieces
        edges = np.stack([np.r_[0, pieces[:, 1]], np.r_[pieces[:, 0], self.size]], axis=1)
        return edges[edges[:, 0] < edges[:, 1]]

    def head(self, most_bytes: int | None = None) -> memoryview:
        """Return the first bytes of the stream, up to a gap; none if its first is missing."""
        pieces = self.pieces
        if not len(pieces) or pieces[0][0]:
            return memoryview(b"")
        stop = int(pieces[0][1])
        return self.read(0, stop if most_bytes is None else min(stop, most_bytes)).data

    def behind(self, size: int, proxy: str) -> Stream:
        """Return the stream that begins behind `size` bytes that were sent to a proxy."""
        if not size:
            return self
        first = int(self.runs.stops.searchsorted(size, "right"))
        offsets, lengths, starts, records = (column[first:].copy() for column in self.runs)
        skip = np.maximum(size - offsets, 0)  # of the first run alone
        runs = Runs(offsets + skip - size, lengths - skip, starts + skip, records)
        rest, times_ns = self.size - size, self.times_ns[first:]
        return replace(self, size=rest, runs=runs, times_ns=times_ns, proxy=(proxy, size))

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes ``[start, stop)``, which have to lie in one piece."""
        out = np.empty(stop - start, np.uint8)
        self._copy(start, stop, out)
        return out

    def _copy(self, start: int, stop: int, out: Bytes) -> None:
        touched = slice(*self._runs_of(start, stop))
        offsets, lengths, starts = (column[touched] for column in self.runs[:3])
        begin = end = start
        if len(offsets):
            begin, end = int(offsets[0]), int(offsets[-1] + lengths[-1])
        if start < begin or end < stop or end - begin != lengths.sum():
            raise ValueError(f"{self.name}: bytes {start} to {stop} are not all in one piece")
        self.content.places.copy(starts, lengths, out, start - begin)

    def windows(
        self,
        start: int,
        stop: int,
        window_bytes: int = WINDOW_BYTES,
        tray: Tray | None = None,
        *,
        ends: bool = True,
    ) -> Windows:
        """Yield the windows of a piece, or of a part of one.

        Parameters
        ----------
        tray
            Where their bytes go.
        ends
            Whether the last window is at the end: no bytes follow before a gap.
        """
        tray = tray or Tray()
        reach = window_bytes
        while True:
            reached = min(start + reach, stop)
            if reach == window_bytes:
                reached = min(reached, self._behind_runs(start, window_bytes))
            place = tray.take(reached - start)
            end = place + reached - start
            self._copy(start, reached, tray.data[place:end])
            yield (window := Window(tray.data, start - place, place, end, ends and reached == stop))
            if reached == stop:
                return
            # A window that moved nothing on holds the beginning of something larger.
            reach = window_bytes if window.start > place else reach * 2
            start += window.start - place

    def _behind_runs(self, start: int, window_bytes: int) -> int:
        """Return where the runs from an offset on are over that fill a window, one at least."""
        offsets = self.runs.offsets
        first = int(offsets.searchsorted(start, "right")) - 1
        behind = first + max(window_bytes // RUN_BYTES, 1)
        return int(offsets[behind]) if behind < len(offsets) else self.size

    def completed(self, starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
        """Return when bytes were complete that lie in one piece each, as those of packets do.

        Returns
        -------
        frames, times_ns
            Number of the last frame that brought some of the bytes ``[start, stop)``, from 1 on,
            and its time; that is not always the frame of the last byte.
        """
        frames, times_ns = np.empty((2, len(starts)), np.int64)
        runs = self.runs
        complete_rows(starts, stops, runs.offsets, runs.records, self.times_ns, frames, times_ns)
        return frames, times_ns

    def packets_of(self, starts: Ints, stops: Ints) -> Ints:
        """Return the numbers, from 0 on, of all packets that brought some of the bytes.

        Each is there once; ascending.
        """
        first, last = self._runs_of(starts, stops)
        return self.content.packets_of(self.runs.records, first, last)

    def _runs_of(self, starts: Any, stops: Any) -> tuple[Any, Any]:
        """Return the first of the runs that bytes lie in, and the one behind the last."""
        offsets = self.runs.offsets
        return np.maximum(offsets.searchsorted(starts, "right") - 1, 0), offsets.searchsorted(stops)
