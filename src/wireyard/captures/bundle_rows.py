"""The rows of streams that are read together: packets in contiguous pieces, gaps, and tails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wireyard.arrays import Bools, Bytes, Ints
from wireyard.captures.connections.stream import previous_stops
from wireyard.formats import Format
from wireyard.streams.blocks import Block
from wireyard.streams.framer import Frame, gap_frame


class Gaps(NamedTuple):
    """Bytes of streams that were not captured, in the order of the streams. Shapes: (g)."""

    owners: Ints
    """The stream of each."""
    pieces: Ints
    """The piece that follows each; that of the next stream if it is the end of a stream."""
    starts: Ints
    stops: Ints

    def of_streams(self, wanted: Bools) -> Gaps:
        """Return the gaps of some streams."""
        return Gaps(*(column[wanted[self.owners]] for column in self))


class Pieces(NamedTuple):
    """The contiguous pieces of streams, whose bytes lie one after the other.

    Shapes: bounds (p + 1), their extents in these bytes; offsets (p), in the streams; lost (p), the
    number of bytes before each that were not captured; firsts (t + 1), the first piece of each
    stream; lost_behind (t), the number of bytes behind the last piece that were not captured.
    """

    bounds: Ints
    offsets: Ints
    lost: Ints
    firsts: Ints
    lost_behind: Ints

    @classmethod
    def without_gaps(cls, sizes: Ints) -> Pieces:
        """Return streams without gaps, given their sizes, as a piece each."""
        none = np.zeros(len(sizes), np.int64)
        return cls(np.append(0, np.cumsum(sizes)), none, none, np.arange(len(sizes) + 1), none)

    @classmethod
    def of_runs(cls, offsets: Ints, lengths: Ints, counts: Ints, sizes: Ints) -> Pieces:
        """Return the pieces of streams.

        `offsets` and `lengths` are the runs of all streams, one stream after the other. `counts`
        has the number of runs of each stream, at least one, and `sizes` its bytes.
        """
        stops, firsts = offsets + lengths, np.cumsum(counts) - counts
        before = previous_stops(stops, firsts)
        begins = offsets > before
        begins[firsts] = True
        runs = np.flatnonzero(begins)
        return cls(
            np.append((np.cumsum(lengths) - lengths)[runs], lengths.sum()),
            offsets[runs],
            (offsets - before)[runs],
            np.append(runs.searchsorted(firsts), len(runs)),
            sizes - stops[firsts + counts - 1],
        )

    @property
    def behind_gap(self) -> Bytes:
        """Whether bytes before a piece were not captured."""
        return (self.lost > 0).view(np.uint8)

    def gaps(self) -> Gaps:
        """Return the gaps before and behind the pieces."""
        owners = np.repeat(np.arange(len(self.firsts) - 1), np.diff(self.firsts))
        before, behind = np.flatnonzero(self.lost), np.flatnonzero(self.lost_behind)
        next_pieces = self.firsts[behind + 1]
        ends = (self.offsets + np.diff(self.bounds))[next_pieces - 1]
        gaps = (
            np.append(owners[before], behind),
            np.append(before, next_pieces),
            np.append((self.offsets - self.lost)[before], ends),
            np.append(self.offsets[before], ends + self.lost_behind[behind]),
        )
        order = np.argsort(gaps[0], kind="stable")
        return Gaps(*(column[order] for column in gaps))


class BundleRows(NamedTuple):
    """The rows of streams; a stream that has to be read by itself has none.

    Shapes: places, offsets, lengths, contexts (r), as in a block; packets, counts (t), the number
    of each stream's packets, and of all its rows; odd_rows, odd (o), the rows and frames of those
    that are no packets.
    """

    data: Bytes
    places: Ints
    offsets: Ints
    lengths: Ints
    contexts: Ints
    packets: Ints
    counts: Ints
    odd_rows: Ints
    odd: Sequence[Frame]

    @classmethod
    def of(
        cls,
        format: Format,
        data: Bytes,
        pieces: Pieces,
        frames: tuple[Ints, Ints, Ints],
        rows: Ints,
        contexts: Ints,
    ) -> BundleRows:
        """Return the rows of streams, given their packets.

        `data` has the bytes of the pieces. `frames` are the starts in `data`, sizes and contexts of
        packets, and `rows` the first packet of each piece. `contexts` are those of each stream's
        first packet.
        """
        starts, sizes, of_packets = frames
        offsets = starts + np.repeat(pieces.offsets - pieces.bounds[:-1], np.diff(rows))
        packets = np.diff(rows[pieces.firsts])
        gaps = pieces.gaps().of_streams(packets > 0)
        if not len(gaps.owners):
            return cls(data, starts, offsets, sizes, of_packets, packets, packets, gaps.owners, ())
        at, of_gaps = rows[gaps.pieces], contexts[gaps.owners]
        each = zip(gaps.starts.tolist(), gaps.stops.tolist(), of_gaps.tolist(), strict=True)
        return cls(
            data,
            np.insert(starts, at, pieces.bounds[gaps.pieces]),
            np.insert(offsets, at, gaps.starts),
            np.insert(sizes, at, gaps.stops - gaps.starts),
            np.insert(of_packets, at, of_gaps),
            packets,
            packets + np.bincount(gaps.owners, minlength=len(packets)),
            at + np.arange(len(at)),
            [gap_frame(format, *gap) for gap in each],
        )

    def with_tails(self, owners: Ints, places: Ints, tails: Sequence[Frame]) -> BundleRows:
        """Return the rows with one more each of some streams that have none: all of their bytes.

        `owners` are these streams, ascending, and `places` the places of their bytes in the data.
        """
        at, ends = np.append(0, np.cumsum(self.counts))[owners], [tail.stop for tail in tails]
        counts = self.counts.copy()
        counts[owners] = 1
        moved = self.odd_rows + at.searchsorted(self.odd_rows, "right")
        odd_rows = np.append(moved, at + np.arange(len(at)))
        order = np.argsort(odd_rows)
        odd = [*self.odd, *tails]
        return BundleRows(
            self.data,
            np.insert(self.places, at, places),
            np.insert(self.offsets, at, 0),
            np.insert(self.lengths, at, ends),
            np.insert(self.contexts, at, [tail.context for tail in tails]),
            self.packets,
            counts,
            odd_rows[order],
            [odd[row] for row in order.tolist()],
        )

    def block(self, begin: int, stop: int) -> Block:
        """Return the rows of consecutive streams."""
        firsts = np.append(0, np.cumsum(self.counts))
        first, last = int(firsts[begin]), int(firsts[stop])
        rows = slice(first, last)
        odd = slice(*self.odd_rows.searchsorted([first, last]).tolist())
        return Block(
            self.data,
            len(self.data),
            self.places[rows],
            self.offsets[rows],
            self.lengths[rows],
            self.contexts[rows],
            dict(zip((self.odd_rows[odd] - first).tolist(), self.odd[odd], strict=True)),
            np.repeat(np.arange(begin, stop), self.counts[begin:stop]),
        )
