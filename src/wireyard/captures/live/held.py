"""The bytes of a live capture that are not read yet, of all its streams, as columns."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wireyard.arrays import Bytes, Grid, Ints
from wireyard.captures.connections.conflicts import find_conflicts
from wireyard.captures.connections.copies import APART_NS
from wireyard.captures.connections.stream import Content, Runs
from wireyard.captures.connections.tcp import merge_segments
from wireyard.captures.connections.times import order_by_acknowledgments
from wireyard.captures.files.places import Places
from wireyard.captures.packets.units import Columns
from wireyard.streams.framer import MOST_BYTES

if TYPE_CHECKING:
    from wireyard.captures.live.stream import LiveStream

RECENT_NS: Final = APART_NS + 1_000_000_000
"""Another capture of a packet comes up to `APART_NS` later, and is compared a little later."""
MAX_RECENT_BYTES: Final = 32 << 20
"""Bytes of the last turns, which are kept to be compared with those that come again."""
_SEGMENTS: Final = {
    "sides": np.int32,
    "positions": np.int64,
    "captured": np.int32,
    "starts": np.int64,
    "records": np.int32,
}
"""Columns of segments that are merged; their records are ranks."""
_LEAST: Final = -(1 << 62)


class Held(IntEnum):
    """Rows of a grid of runs, which has a column for each run, by side and position."""

    SIDE = 0
    POSITION = 1
    LENGTH = 2
    START = 3
    """Address in `Places`."""
    RECORD = 4
    TIME = 5
    ACKNOWLEDGES = 6
    """The number that its packet acknowledges."""
    CLOCK = 7
    """Its time by the clock, before it was moved behind others."""


NO_RUNS: Final[Grid] = np.empty((len(Held), 0), np.int64)


def stops_of(runs: Grid) -> Ints:
    """Return the positions at which runs end."""
    stops: Ints = runs[Held.POSITION] + runs[Held.LENGTH]
    return stops


def beside(parts: Sequence[Grid]) -> Grid:
    """Return runs one behind the other; kernels need the values of a row to be adjacent."""
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


def _joined(parts: Sequence[Grid]) -> Grid:
    """Return all of several runs in order."""
    runs = np.concatenate(parts, axis=1)
    return runs.take(np.lexsort((runs[Held.POSITION], runs[Held.SIDE])), axis=1)


def _moved(runs: Grid, places: Places, to: Places) -> Grid:
    """Return runs with their bytes in other places."""
    runs = runs.copy()
    runs[Held.START] = places.move(runs[Held.START], runs[Held.LENGTH], to)
    return runs


def _stored(runs: Grid, places: Places) -> list[Grid | Bytes]:
    """Return runs for a stored state, and their bytes."""
    data = np.empty(int(runs[Held.LENGTH].sum()), np.uint8)
    places.copy(runs[Held.START], runs[Held.LENGTH], data)
    return [runs, data]


def _restored(stored: Sequence[Any], places: Places, sides: Sequence[int]) -> Grid:
    """Return those of stored runs that some sides have; their bytes are added to `places`.

    `TypeError` or `ValueError` is raised if `stored` are no such runs.
    """
    runs, data = stored[0].astype(np.int64, casting="safe"), stored[1].view(np.uint8)
    if runs.ndim != 2 or len(runs) != len(Held) or (runs[Held.LENGTH] > len(data)).any():
        raise ValueError("no runs")
    stops, order = stops_of(runs), np.diff(runs[Held.SIDE])
    follows = (order > 0) | ((order == 0) & (runs[Held.POSITION, 1:] >= stops[:-1]))
    if not (
        follows.all()
        and (runs[Held.LENGTH] > 0).all()
        and (np.abs(runs[Held.POSITION]) <= MOST_BYTES).all()
        and (stops <= MOST_BYTES).all()
        and runs[Held.LENGTH].sum() == len(data)
    ):
        raise ValueError("no runs")
    runs[Held.START] = places.append(data) + np.cumsum(runs[Held.LENGTH]) - runs[Held.LENGTH]
    found: Grid = runs.compress(np.isin(runs[Held.SIDE], sides), axis=1)
    return found


@dataclass(slots=True)
class _Read:
    """Runs that were read in a turn."""

    now_ns: int
    places: Places
    runs: Grid


class HeldRuns:
    """The runs of all open streams that are not read to their end.

    Those that were read lately are kept apart, to be compared with bytes that come again: for
    `RECENT_NS`, and up to `MAX_RECENT_BYTES`. `places` are those of the first turn.
    """

    def __init__(self, places: Places) -> None:
        self.places = places
        """Where their bytes are, and those of the packets of this turn."""
        self._runs = self._placed = NO_RUNS
        self._slices: dict[int, slice] = {}
        """Where the runs of each side are in `_placed`."""
        self._dropped: set[int] = set()
        self._recent: deque[_Read] = deque()
        """The oldest first."""
        self._recent_bytes = 0

    @property
    def size(self) -> int:
        """The bytes that they take, those of the grid too: each may have one byte."""
        return int(self._runs[Held.LENGTH].sum()) + self._runs.nbytes

    def of(self, side: int) -> Grid:
        """Return the runs of a side, as a grid of `Held`."""
        if self._placed is not self._runs:
            sides, first = np.unique(self._runs[Held.SIDE], return_index=True)
            bounds = [*first.tolist(), self._runs.shape[1]]
            self._slices = dict(
                zip(sides.tolist(), map(slice, bounds[:-1], bounds[1:]), strict=True)
            )
            self._placed = self._runs
        rows = None if side in self._dropped else self._slices.get(side)
        return NO_RUNS if rows is None else self._runs[:, rows]

    def sizes(self) -> dict[int, int]:
        """Return the size of the runs of each side that has some."""
        sides, first = np.unique(self._runs[Held.SIDE], return_index=True)
        if not len(sides):
            return {}
        sizes = np.add.reduceat(self._runs[Held.LENGTH] + NO_RUNS.itemsize * len(Held), first)
        return dict(zip(sides.tolist(), sizes.tolist(), strict=True))

    # --- new bytes --------------------------------------------------------------------------

    def merge(
        self, streams: Sequence[LiveStream], new: Grid
    ) -> tuple[int, list[tuple[LiveStream, int]]]:
        """Merge new runs with those of streams; each byte comes from the run captured first.

        `streams` are those of the new runs, ascending by side. Return the number of bytes before
        the beginning of a stream that was read already, and the stream and the record of each new
        run that brings other bytes than were captured.
        """
        own = np.array([stream.side for stream in streams])
        new, late_bytes = self._above_floors(streams, own, new)
        runs = self._left()
        is_own = own[own.searchsorted(runs[Held.SIDE]).clip(max=len(own) - 1)] == runs[Held.SIDE]
        rows = beside([runs.compress(is_own, axis=1), new])
        # Ranks are in the order of capture; the other rows are looked up by rank afterwards.
        rows = rows.take(np.argsort(rows[Held.RECORD], kind="stable"), axis=1)
        segments, ranks = Columns(_SEGMENTS), np.arange(rows.shape[1])
        places = rows[Held.POSITION], rows[Held.LENGTH], rows[Held.START]
        segments.append((own.searchsorted(rows[Held.SIDE]), *places, ranks))
        begins = np.zeros(len(own), np.int64)
        bounds, found = merge_segments(segments, begins)
        merged = rows.take(found.records, axis=1)
        merged[Held.POSITION : Held.RECORD] = found[:3]
        self._runs = merged
        if not is_own.all():
            self._runs = _joined([runs.compress(~is_own, axis=1), merged])
        for stream, start, stop in zip(streams, bounds[:-1], bounds[1:], strict=True):
            stream.note(merged[:, start:stop])
        if found.lengths.sum() == rows[Held.LENGTH].sum():
            return late_bytes, []
        differing = find_conflicts(segments, begins, bounds, found, self.places)
        records = rows[Held.RECORD].tolist()
        return late_bytes, [(streams[at], records[rank]) for at, rank in differing]

    def _above_floors(
        self, streams: Sequence[LiveStream], own: Ints, new: Grid
    ) -> tuple[Grid, int]:
        """Return new runs without the bytes that their streams discard.

        The number counts those before the beginning of a stream that was read already.
        """
        group = own.searchsorted(new[Held.SIDE])
        below = _below_floors(streams, group, new)
        if not below.any():
            return new, 0
        self.recall([streams[at] for at in np.unique(group[below > 0]).tolist()])
        below = _below_floors(streams, group, new)
        late_bytes = 0
        for row in np.flatnonzero(below).tolist():
            begin = streams[int(group[row])].begin
            if begin is not None and new[Held.POSITION, row] < begin:
                late_bytes += int(min(below[row], begin - new[Held.POSITION, row]))
        new[Held.POSITION] += below
        new[Held.LENGTH] -= below
        new[Held.START] += below
        return new.compress(new[Held.LENGTH] > 0, axis=1), late_bytes

    def recall(self, streams: Sequence[LiveStream]) -> None:
        """Hold the runs of streams that were read lately until the end of this turn."""
        own = np.array([stream.side for stream in streams], np.int64)
        recalled = []
        for turn in self._recent if len(own) else ():
            is_own = np.isin(turn.runs[Held.SIDE], own)
            if is_own.any():
                runs = turn.runs.compress(is_own, axis=1)
                recalled.append(_moved(runs, turn.places, self.places))
                turn.runs = turn.runs.compress(~is_own, axis=1)
        if recalled:
            self._runs = _joined([*recalled, self._left()])
            for stream in streams:
                held = self.of(stream.side)
                if stream.floor is not None and held.shape[1]:
                    stream.floor = min(stream.floor, int(held[Held.POSITION, 0]))

    # --- the end of a turn ------------------------------------------------------------------

    def settle(self, streams: Collection[LiveStream], now_ns: int) -> None:
        """Keep the runs that streams have read to their end for a while, apart from the others."""
        runs = self._runs = self._left()
        is_read = np.zeros(runs.shape[1], np.bool_)
        for stream in streams:
            held = self.of(stream.side)
            if held.shape[1] and stream.framer is not None:
                start = self._slices[stream.side].start
                is_read[start : start + stream.release(held)] = True
        if is_read.any():
            places = Places()
            read = _moved(runs.compress(is_read, axis=1), self.places, places)
            self._runs = runs.compress(~is_read, axis=1)
            self._recent.append(_Read(now_ns, places, read))
            self._recent_bytes += places.size
        while self._recent and (
            self._recent_bytes > MAX_RECENT_BYTES or self._recent[0].now_ns < now_ns - RECENT_NS
        ):
            self._recent_bytes -= self._recent.popleft().places.size

    def go_on(self, places: Places) -> None:
        """Continue with the places of the next turn."""
        self._runs = _moved(self._left(), self.places, places)
        self.places = places

    def drop(self, side: int) -> None:
        """Drop the runs of a side."""
        self._dropped.add(side)

    def _left(self) -> Grid:
        """Return the runs without those of the sides that were dropped."""
        if self._dropped:
            dropped = np.array([*self._dropped])
            left = ~np.isin(self._runs[Held.SIDE], dropped)
            self._runs = self._runs.compress(left, axis=1)
            self._dropped = set()
        return self._runs

    def keep_only(self, connections: Ints) -> None:
        """Drop the runs of all connections but these, and number those from 0 on."""
        for turn in self._recent:
            turn.runs = _renumbered(turn.runs, connections)
        self._runs = _renumbered(self._left(), connections)

    def state(self) -> dict[str, Any]:
        """Return the state from which another process continues, as arrays."""
        places = Places()
        recent = [_moved(turn.runs, turn.places, places) for turn in self._recent]
        return {
            "held": _stored(self._runs, self.places),
            "recent": _stored(_joined([NO_RUNS, *recent]), places),
        }

    def restore(self, state: Mapping[str, Any], now_ns: int, sides: Sequence[int]) -> None:
        """Continue from `state`.

        `now_ns` is the time of its last turn. `sides` are those that are open or ended lately; runs
        of others are not needed. `KeyError`, `TypeError` or `ValueError` is raised if `state` is
        not such a state.
        """
        places = Places()
        recent = _restored(state["recent"], places, sides)
        self._runs = _restored(state["held"], self.places, sides)
        self._recent.append(_Read(now_ns, places, recent))
        self._recent_bytes = places.size


def _renumbered(runs: Grid, connections: Ints) -> Grid:
    """Return the runs of some connections, numbered from 0 on."""
    kept = runs.compress(np.isin(runs[Held.SIDE] >> 1, connections), axis=1)
    side = kept[Held.SIDE]
    kept[Held.SIDE] = 2 * connections.searchsorted(side >> 1) + (side & 1)
    return kept


def _below_floors(streams: Sequence[LiveStream], group: Ints, new: Grid) -> Ints:
    """Return the number of bytes of each new run that its stream discards."""
    floors = np.array([_LEAST if one.floor is None else one.floor for one in streams], np.int64)
    below: Ints = np.clip(floors[group] - new[Held.POSITION], 0, new[Held.LENGTH])
    return below


def order_held(sides: Grid, begins: Ints, streams: Sequence[LiveStream]) -> int:
    """Move held runs of a connection behind those that they acknowledge; see `times`, rule 3.

    `sides` are the two rows of `Side`, and `begins` the positions at which the streams begin.
    Return the largest change of a time, in nanoseconds.
    """
    held = [stream.held for stream in streams]
    bounds = np.array([0, held[0].shape[1], held[0].shape[1] + held[1].shape[1]])
    both = beside(held)
    records, rows = np.unique(both[Held.RECORD], return_index=True)
    content = Content(Places(), records, both[Held.TIME, rows], {})
    moved = order_by_acknowledgments(
        [0],
        sides,
        begins,
        bounds,
        Runs(both[Held.POSITION] - np.repeat(begins, np.diff(bounds)), *both[2:5]),
        lambda _, wanted: both[Held.ACKNOWLEDGES, rows][records.searchsorted(wanted)],
        content,
    )
    if not moved:
        return 0
    for stream, each in zip(streams, held, strict=True):
        stream.move_times(content.times_of(each[Held.RECORD]))
    return int(np.abs(content.times_of(both[Held.RECORD]) - both[Held.CLOCK]).max())
