"""Runs of a live stream that are held, and how new ones are merged with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from wireyard.arrays import Bytes, Grid, Ints
from wireyard.captures.connections.conflicts import find_conflicts
from wireyard.captures.connections.stream import Content, Runs
from wireyard.captures.connections.tcp import merge_segments
from wireyard.captures.connections.tcp_kernels import NONE, Side
from wireyard.captures.connections.times import close_behind_bytes, order_by_acknowledgments
from wireyard.captures.files.places import Places
from wireyard.captures.packets.units import Columns
from wireyard.captures.records import NO_TIME
from wireyard.streams.framer import MOST_BYTES

if TYPE_CHECKING:
    from wireyard.captures.live.stream import LiveStream


class HeldRuns(NamedTuple):
    """Runs of bytes of a stream, ascending by position, without overlaps.

    Shapes: all columns (u). `starts` are addresses in the `Places` of a turn, or in the stream's
    own buffer between turns.
    """

    positions: Ints
    lengths: Ints
    starts: Ints
    records: Ints
    times_ns: Ints
    acknowledgments: Ints
    """The number that the packet of each run acknowledges."""
    clock_ns: Ints
    """Their times by the clock, before they were moved behind others."""

    def rows(self, rows: slice | Ints) -> HeldRuns:
        """Return some of the runs."""
        return HeldRuns(*(column[rows] for column in self))

    @classmethod
    def joined(cls, parts: Sequence[HeldRuns]) -> HeldRuns:
        """Return runs one behind the other."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def copied(self, places: Places) -> tuple[HeldRuns, Bytes]:
        """Return copies of the runs and of their bytes, one behind the other."""
        if not len(self.positions):
            return NO_RUNS, _NO_BYTES
        columns = np.array(self)
        columns[2] = np.cumsum(self.lengths) - self.lengths
        if len(self.positions) == 1:
            return HeldRuns(*columns), places.view(int(self.starts[0]), int(self.lengths[0])).copy()
        data = np.empty(int(self.lengths.sum()), np.uint8)
        places.copy(self.starts, self.lengths, data)
        return HeldRuns(*columns), data

    def are_of(self, data: Bytes) -> bool:
        """Return whether they are runs whose bytes are `data`."""
        if len({len(column) for column in self}) != 1 or (self.lengths > len(data)).any():
            return False
        stops = self.positions + self.lengths
        return (
            bool((self.lengths > 0).all())
            and bool((self.positions[1:] >= stops[:-1]).all())
            and bool((np.abs(self.positions) <= MOST_BYTES).all() and (stops <= MOST_BYTES).all())
            and int(self.lengths.sum()) == len(data)
        )


_SEGMENTS: Final = {
    "sides": np.int32,
    "positions": np.int64,
    "captured": np.int32,
    "starts": np.int64,
    "records": np.int32,
}
"""Columns of segments that are merged; their records are ranks."""
_LEAST: Final = -(1 << 62)
_NO_BYTES: Final = np.empty(0, np.uint8)
NO_RUNS: Final = HeldRuns(*np.empty((len(HeldRuns._fields), 0), np.int64))


class Merged(NamedTuple):
    """What merging new runs showed."""

    late_bytes: int
    """New bytes before the beginning of a stream that was read already."""
    differing: Sequence[tuple[int, int]]
    """The stream and the record of each new run that brings other bytes than were captured."""


def merge_held(streams: Sequence[LiveStream], group: Ints, new: HeldRuns, places: Places) -> Merged:
    """Merge new runs with those that streams hold; each byte comes from the run captured first.

    Parameters
    ----------
    group
        For each new run the index of its stream in `streams`.
    places
        The bytes of the new runs.
    """
    new, group, late_bytes = _above_floors(streams, group, new, places)
    held, groups = [], []
    for number, stream in enumerate(streams):
        if len(stream.held.positions):
            held.append(stream.attach(places))
            groups.append(np.full(len(stream.held.positions), number, np.int64))
    rows = HeldRuns.joined([*held, new])
    group = np.concatenate([*groups, group])
    # Ranks are in the order of capture; the other columns are looked up by rank afterwards.
    captured = np.argsort(rows.records, kind="stable")
    rows, group = rows.rows(captured), group[captured]
    segments = Columns(_SEGMENTS)
    segments.append((group, rows.positions, rows.lengths, rows.starts, np.arange(len(group))))
    begins = np.zeros(len(streams), np.int64)
    run_bounds, runs = merge_segments(segments, begins)
    merged = HeldRuns(*runs[:3], *(column[runs.records] for column in rows[3:]))
    for stream, start, stop in zip(streams, run_bounds[:-1], run_bounds[1:], strict=True):
        stream.replace_held(merged.rows(slice(int(start), int(stop))))
    if runs.lengths.sum() == rows.lengths.sum():
        return Merged(late_bytes, ())
    differing = find_conflicts(segments, begins, run_bounds, runs, places)
    return Merged(late_bytes, [(at, int(rows.records[rank])) for at, rank in differing])


def _above_floors(
    streams: Sequence[LiveStream], group: Ints, new: HeldRuns, places: Places
) -> tuple[HeldRuns, Ints, int]:
    """Return new runs and their streams without the bytes that streams discard.

    The number counts those before the beginning of a stream that was read already.
    """
    below = _below_floors(streams, group, new)
    if not below.any():
        return new, group, 0
    for number in np.unique(group[below > 0]).tolist():
        streams[number].recall(places)
    below = _below_floors(streams, group, new)
    late_bytes = 0
    for at in np.flatnonzero(below).tolist():
        begin = streams[int(group[at])].begin
        if begin is not None and new.positions[at] < begin:
            late_bytes += int(min(below[at], begin - new.positions[at]))
    new = new._replace(
        positions=new.positions + below,
        lengths=new.lengths - below,
        starts=new.starts + below,
    )
    filled = np.flatnonzero(new.lengths)
    return new.rows(filled), group[filled], late_bytes


def _below_floors(streams: Sequence[LiveStream], group: Ints, new: HeldRuns) -> Ints:
    """Return the number of bytes of each new run that its stream discards."""
    floors = np.array([_LEAST if one.floor is None else one.floor for one in streams], np.int64)
    below: Ints = np.clip(floors[group] - new.positions, 0, new.lengths)
    return below


def order_held(sides: Grid, begins: Ints, streams: Sequence[LiveStream]) -> int:
    """Move held runs of a connection behind those that they acknowledge; see `times`, rule 3.

    Return the largest change of a time.

    Parameters
    ----------
    sides, begins
        The two rows of `Side`, and where the streams begin.
    """
    held = [stream.held for stream in streams]
    bounds = np.array([0, len(held[0].records), sum(len(each.records) for each in held)])
    both = HeldRuns.joined(held)
    records, rows = np.unique(both.records, return_index=True)
    content = Content(Places(), records, both.times_ns[rows], {})
    offsets = both.positions - np.repeat(begins, np.diff(bounds))
    moved = order_by_acknowledgments(
        [0],
        sides,
        begins,
        bounds,
        Runs(offsets, both.lengths, both.starts, both.records),
        lambda _, wanted: both.acknowledgments[rows][records.searchsorted(wanted)],
        content,
    )
    if not moved:
        return 0
    for stream, each in zip(streams, held, strict=True):
        stream.move_times(content.times_of(each.records))
    return int(np.abs(content.times_of(both.records) - both.clock_ns).max())


def closing_times(
    sides: Grid, ends: Ints, tails: Sequence[tuple[int, int] | None]
) -> tuple[list[int], int]:
    """Return the times at which both sides of a connection were closed; see `times`, rule 4.

    The last value is the largest change of a time.

    Parameters
    ----------
    sides, ends
        The two rows of `Side`, and where the streams end.
    tails
        The record and the time of the last run of each stream.
    """
    closing = sides[:, [Side.CLOSING_RECORD, Side.CLOSED_NS]].tolist()
    times_ns = {record: time_ns for record, time_ns in closing if record != NONE}
    if not times_ns:
        return [NO_TIME, NO_TIME], 0
    times_ns.update(filter(None, tails))
    records = np.array(sorted(times_ns), np.int64)
    known_ns = np.array([times_ns[record] for record in records.tolist()], np.int64)
    content = Content(Places(), records, known_ns, {})
    bounds = np.append(0, np.cumsum([tail is not None for tail in tails]))
    last = np.array([tail[0] for tail in tails if tail is not None], np.int64)
    moved_ns = close_behind_bytes(sides, ends, bounds, Runs(*[last] * 4), content)
    return content.times_ns[records.searchsorted(sides[:, Side.CLOSING_RECORD])].tolist(), moved_ns
