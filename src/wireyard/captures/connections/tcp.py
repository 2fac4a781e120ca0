"""TCP reassembly, of all connections of a capture at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from wireyard.arena import room, with_room
from wireyard.arrays import Bools, Bytes, Grid, Int32s, Ints
from wireyard.captures.connections.conflicts import find_conflicts
from wireyard.captures.connections.copies import Copy, find_copies, join, name_copy
from wireyard.captures.connections.flows import FlowTable
from wireyard.captures.connections.merge_kernels import (
    Run,
    gather_rows,
    group_rows,
    merge_rows,
    sort_rows,
)
from wireyard.captures.connections.stream import Content, Runs
from wireyard.captures.connections.table import Connections
from wireyard.captures.connections.tcp_kernels import (
    AFTERMATH,
    LATE,
    NONE,
    NOWHERE,
    Connection,
    Count,
    Side,
    State,
    Verdict,
    place_segments,
)
from wireyard.captures.connections.times import close_behind_bytes, order_by_acknowledgments
from wireyard.captures.packets.units import Columns, Units
from wireyard.captures.records import Placed
from wireyard.captures.repairs import differing_segment

_SEQUENCE_NUMBERS: Final = 1 << 32
_GROUP_ROWS: Final = 1 << 16
"""Segments that are merged at once: few enough that their runs stay in the cache, in memory that is
used again."""
_KEPT: Final = {
    "sides": np.int32,
    "positions": np.int64,
    "captured": np.int32,
    "starts": np.int64,
    "records": np.int32,
    "acknowledgments": np.uint32,
}
"""Types of the columns that are kept of segments with bytes for streams."""
_MERGED: Final = ("sides", "positions", "captured", "starts", "records")


class Reassembly:
    """Incremental reassembly of TCP segments, which arrive in the order of capture."""

    def __init__(self) -> None:
        self.captured_bytes = np.zeros(len(Verdict), np.int64)
        """Captured bytes of payload by `Verdict`."""
        self._copies: list[Copy] = []
        self._conflicts: list[tuple[int, int]] = []
        """The side and the record of each segment with other bytes than were taken."""
        self.moved_ns = 0
        """Largest change of the time of a packet; known after `connections`."""
        self._late: set[int] = set()
        """Sides with bytes that were captured behind their acknowledgment."""
        self._placer = Placer()
        self._kept = Columns(_KEPT)

    @property
    def counts(self) -> Ints:
        """Numbers by `Count`."""
        return self._placer.counts

    def add(self, segments: Units, times_ns: Ints, conversation_count: int) -> None:
        """Add the next segments; parameters as of `Placer.place`."""
        placed = self._placer.place(segments, times_ns, conversation_count)
        sides, positions, verdicts, late = placed
        captured = segments.captured
        counts = np.bincount(verdicts, captured, len(Verdict))
        self.captured_bytes += counts.astype(np.int64)
        rows = np.flatnonzero((verdicts == Verdict.TAKEN) & (captured > 0))
        columns = sides, positions, captured, segments.starts, segments.records
        self._kept.append((*columns, segments.acknowledgments), rows)
        if late.any():
            self._late.update(np.unique(sides[late != 0]).tolist())

    def connections(
        self, flows: FlowTable, content: Content, *, newest: bool = False
    ) -> Connections:
        """Return all connections; nothing can be added afterwards.

        `flows` are their conversations, and `content` has the bytes and times of their packets.
        With `newest`, overlapping bytes are taken from the segment captured last, instead of the
        first.
        """
        connections, sides = self._placer.connections, self._placer.sides
        begins = stream_begins(sides)
        bounds, runs = merge_segments(self._kept, begins, newest=newest)
        self._copies = find_copies(connections, sides, begins, bounds, runs, flows, content)
        if self._copies:
            self._join(self._copies)
            begins = stream_begins(sides)
            bounds, runs = merge_segments(self._kept, begins, newest=newest)
        if self._late:
            numbers_of = self._acknowledgments(len(sides))
            settled = sides, begins, bounds, runs, numbers_of, content
            self.moved_ns = order_by_acknowledgments(self._late, *settled)
        ends, twice = stream_ends(sides), _captured_twice(self._copies)
        closing_ns = close_behind_bytes(sides, ends, bounds, runs, content, twice)
        self.moved_ns = max(self.moved_ns, closing_ns)
        if self.captured_bytes[Verdict.TAKEN] != runs.lengths.sum():
            self._conflicts = find_conflicts(self._kept, begins, bounds, runs, content.places)
        # The sides of copies have no runs any more, so the runs of the others are contiguous.
        ours = np.ones(len(connections), np.bool_)
        ours[[copy.number for copy in self._copies]] = False
        connections, sides = connections[ours], sides[np.repeat(ours, 2)]
        run_bounds = np.append(bounds[:-1][np.repeat(ours, 2)], bounds[-1])
        return connections_of(connections, sides, run_bounds, runs)

    @property
    def has_copies(self) -> bool:
        """Whether connections were captured again; known after `connections`."""
        return bool(_captured_twice(self._copies))

    def copied(self, flows: FlowTable) -> list[tuple[int, Placed]]:
        """Return the conversations and the names of connections that were captured again.

        They are known after `connections`.
        """
        table = self._placer.connections
        return [
            (int(table[copy.number, Connection.CONVERSATION]), name_copy(copy, table, flows))
            for copy in self._copies
            if copy.common_bytes
        ]

    def conflicts(self, flows: FlowTable) -> list[tuple[int, Placed]]:
        """Return the conversations and frames of segments with other bytes than were sent before.

        They are known after `connections`.
        """
        found = []
        for side, record in self._conflicts:
            row = self._placer.connections[side >> 1]
            conversation = int(row[Connection.CONVERSATION])
            name = flows.name(conversation, side & 1)
            found.append((conversation, differing_segment(record, name)))
        return found

    def _join(self, copies: Sequence[Copy]) -> None:
        """Give the segments of copies to the connections that they are copies of."""
        table = self._placer.sides
        targets, shifts = np.arange(len(table)), np.zeros(len(table), np.int64)
        join(copies, self._placer.connections, table, targets, shifts)
        sides = self._kept["sides"]
        self._kept["positions"][:] += shifts[sides]
        sides[:] = targets[sides]
        # Bytes of one of two clocks may be behind acknowledgments of the other.
        self._late = {*targets[[*self._late]].tolist(), *_captured_twice(copies)}

    def _acknowledgments(self, side_count: int) -> Callable[[int, Ints], Ints]:
        """Return a function that returns the acknowledgment numbers of packets of a side."""
        records, sides = self._kept["records"], self._kept["sides"]
        # The kept segments of each side, in the order of capture.
        bounds, order = np.zeros(side_count + 2, np.int64), room(len(sides), np.int64)
        group_rows(sides, bounds, order)

        def numbers_of(side: int, wanted: Ints) -> Ints:
            rows = order[bounds[side] : bounds[side + 1]]
            places = records[rows].searchsorted(wanted.astype(np.int32))
            numbers: Ints = self._kept["acknowledgments"][rows[places]].astype(np.int64)
            return numbers

        return numbers_of


def _captured_twice(copies: Sequence[Copy]) -> list[int]:
    """Return the first sides of the connections whose bytes were captured by two clocks."""
    return [2 * copy.of for copy in copies if copy.common_bytes]


def connections_of(connections: Grid, sides: Grid, run_bounds: Ints, runs: Runs) -> Connections:
    """Return what the rows of connections and sides show, with the bytes of their streams."""
    states = sides[:, Side.STATE]
    begun = known_begins(sides) != NOWHERE
    return Connections(
        protocol="tcp",
        conversations=connections[:, Connection.CONVERSATION],
        first_records=connections[:, Connection.FIRST_RECORD],
        first_ways=connections[:, Connection.FIRST_WAY],
        sizes=np.where(has_stream(sides), stream_ends(sides) - stream_begins(sides), 0),
        opened=states & State.OPENED != 0,
        begun=begun,
        captured=states & (State.SEEN | State.RST) != 0,
        reset=states & State.RST != 0,
        finished=states & State.FIN != 0,
        closing_records=sides[:, Side.CLOSING_RECORD],
        run_bounds=run_bounds,
        runs=runs,
    )


def stream_ends(sides: Grid) -> Ints:
    """Return the position where each stream ends, including bytes that are missing at its end.

    A FIN shows them, or an acknowledgment of its receiver. A FIN has a sequence number too: one
    number more than the data, or than what was acknowledged when the receiver closed its own side,
    is that of a FIN that was not captured. An acknowledgment shows nothing of a side without any
    segment, because a capture may leave out a direction, and nothing if it is further ahead than
    `AFTERMATH`, because then it is of another connection, or damaged.
    """
    states, ends = sides[:, Side.STATE], sides[:, Side.END]
    ends = np.where(ends == NOWHERE, sides[:, Side.LOW], ends)
    others = np.arange(len(sides)) ^ 1
    acknowledged = sides[others, Side.ACKNOWLEDGED]
    shows = has_stream(sides) & (states & State.SEEN != 0)
    shows &= (states & State.FIN == 0) & (sides[:, Side.SPARE] == NONE) & (acknowledged != NONE)
    missing = (acknowledged - sides[:, Side.BASE] - ends) % _SEQUENCE_NUMBERS
    shows &= (missing > 0) & (missing <= AFTERMATH)
    is_fin = (missing == 1) | (states[others] & State.FIN != 0)
    found: Ints = ends + np.where(shows, missing - is_fin, 0)
    return found


def has_stream(sides: Grid) -> Bools:
    """Return whether the capture shows of each side where its stream begins, or bytes of it."""
    shown: Bools = sides[:, Side.STATE] & (State.BEGUN | State.DATA) != 0
    shown |= _first_acknowledged(sides) != NOWHERE
    return shown


def stream_begins(sides: Grid) -> Ints:
    """Return the position at which the stream of each side begins.

    That is where it has begun, if the capture shows it, or else the first acknowledgment of the
    other side, if that and a later one came before all bytes of this one: what is missing behind it
    was sent and not captured. Otherwise it is the first captured byte.
    """
    begins = _first_acknowledged(sides)
    begins = np.where(begins == NOWHERE, sides[:, Side.LOW], begins)
    return np.where(sides[:, Side.STATE] & State.BEGUN != 0, sides[:, Side.BEGIN], begins)


def known_begins(sides: Grid) -> Ints:
    """Return the position at which each side has begun, if the capture shows it; else `NOWHERE`.

    A SYN shows it, or an acknowledgment of one. If the answer to a SYN was not captured, the first
    acknowledgment from the side that opened the connection counts for it, unless bytes before it
    were captured. All bytes behind it may be missing.
    """
    states = sides[:, Side.STATE]
    answered = states[np.arange(len(sides)) ^ 1] & State.OPENING != 0
    begins = np.where(answered, _first_acknowledged(sides), NOWHERE)
    return np.where(states & State.BEGUN != 0, sides[:, Side.BEGIN], begins)


def _first_acknowledged(sides: Grid) -> Ints:
    """Return the position that the other side of each has acknowledged first, if it is early.

    `NOWHERE` if bytes before it were captured, or nothing of the side.
    """
    others, states = np.arange(len(sides)) ^ 1, sides[:, Side.STATE]
    first = sides[others, Side.FIRST_ACKNOWLEDGED]
    ahead = (sides[:, Side.BASE] + sides[:, Side.LOW] - first) % _SEQUENCE_NUMBERS
    shown = (states & State.DATA != 0) | (first != sides[others, Side.ACKNOWLEDGED])
    shown |= states[others] & State.OPENING != 0
    shown &= (states & (State.SEEN | State.DATA) != 0) & (first != NONE)
    return np.where(shown & (ahead <= LATE), sides[:, Side.LOW] - ahead, NOWHERE)


class Placer:
    """Assigns segments, in the order of capture, to connections and positions in their streams."""

    def __init__(self) -> None:
        self._latest: Int32s = np.empty(0, np.int32)
        self._conversation_count = 0
        self._connections = np.empty((0, len(Connection)), np.int64)
        self._sides = np.empty((0, len(Side)), np.int64)
        self.counts = np.zeros(len(Count), np.int64)
        """Numbers by `Count`."""

    def __len__(self) -> int:
        return int(self.counts[Count.CONNECTIONS])

    @property
    def latest(self) -> Int32s:
        """The latest connection of each conversation."""
        return self._latest[: self._conversation_count]

    @property
    def connections(self) -> Grid:
        """The connections. Shapes: (e, `Connection`)."""
        return self._connections[: len(self)]

    @property
    def sides(self) -> Grid:
        """Their sides. Shapes: (2 e, `Side`)."""
        return self._sides[: 2 * len(self)]

    def place(
        self, segments: Units, times_ns: Ints, conversation_count: int
    ) -> tuple[Int32s, Ints, Bytes, Bytes]:
        """Return the side of each segment, its position in that stream, and its `Verdict`.

        The last array shows whether its bytes were acknowledged before. `times_ns` has the capture
        time of each segment, and `conversation_count` is the number of conversations so far.
        """
        streams = room(len(segments), np.int32)
        positions = room(len(segments), np.int64)
        verdicts, late = room(len(segments), np.uint8), room(len(segments), np.uint8)
        known, self._conversation_count = self._conversation_count, conversation_count
        self._latest = with_room(self._latest, known, conversation_count)
        self._latest[known:conversation_count] = NONE
        self._make_room(len(self) + conversation_count - known)
        row = 0
        while True:
            row = place_segments(
                row,
                segments.records,
                segments.flows,
                times_ns,
                segments.sequences,
                segments.acknowledgments,
                segments.flags,
                segments.lengths,
                self._latest,
                self._connections,
                self._sides,
                self.counts,
                streams,
                positions,
                verdicts,
                late,
            )
            if row == len(segments):
                return streams, positions, verdicts, late
            self._make_room(len(self) + 1)

    def state(self) -> dict[str, Any]:
        """Return the state from which another `Placer` continues, as arrays of integers."""
        return {
            "latest": self.latest.astype(np.int64),
            "connections": self.connections.copy(),
            "sides": self.sides.copy(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the `state` of another `Placer`.

        `KeyError` or `ValueError` is raised if `state` is not such a state.
        """
        latest, connections, sides = (state[name] for name in ("latest", "connections", "sides"))
        count = len(connections)
        if (
            connections.shape != (count, len(Connection))
            or sides.shape != (2 * count, len(Side))
            or ((latest < NONE) | (latest >= count)).any()
            or not _within(connections[:, Connection.CONVERSATION], 0, len(latest))
            or not _within(connections[:, Connection.BEFORE], NONE, count)
        ):
            raise ValueError("no state of connections")
        self._latest, self._conversation_count = latest.astype(np.int32), len(latest)
        self._connections, self._sides = connections.astype(np.int64), sides.astype(np.int64)
        self.counts[Count.CONNECTIONS] = count

    def keep(self, kept: Ints, conversations: Ints, conversation_count: int) -> None:
        """Evict all connections except `kept`.

        `kept` has their numbers, ascending; they are renumbered in this order from 0 on. Their
        conversations get the new numbers `conversations`, of `conversation_count` in all.
        """
        connections = self.connections[kept]
        sides = self.sides.reshape(-1, 2, len(Side))[kept].reshape(-1, len(Side))
        connections[:, Connection.CONVERSATION] = conversations
        order = np.argsort(conversations, kind="stable")
        before = np.r_[NONE, order[:-1]][: len(order)]
        same = np.r_[False, conversations[order][1:] == conversations[order][:-1]][: len(order)]
        connections[order, Connection.BEFORE] = np.where(same, before, NONE)
        self._latest = np.full(conversation_count, NONE, np.int32)
        self._latest[conversations] = np.arange(len(kept))  # of several the last counts
        self._conversation_count = conversation_count
        self._connections, self._sides = connections, sides
        self.counts[Count.CONNECTIONS] = len(kept)

    def _make_room(self, most: int) -> None:
        self._connections = with_room(self._connections, len(self), most)
        self._sides = with_room(self._sides, 2 * len(self), 2 * most)


def _within(numbers: Ints, start: int, stop: int) -> bool:
    return bool(((numbers >= start) & (numbers < stop)).all())


def merge_segments(segments: Columns, begins: Ints, *, newest: bool = False) -> tuple[Ints, Runs]:
    """Return where the runs of each stream begin, and the runs, one stream after the other.

    `segments` has their sides, positions, captured bytes, starts and records, in the order of
    capture, and `begins` the position at which the stream of each side begins. With `newest`,
    overlapping bytes are taken from the segment captured last.
    """
    sides, positions, captured, starts, records = (segments[name] for name in _MERGED)
    bounds = np.zeros(len(begins) + 2, np.int64)
    order = room(len(sides), np.int64)
    group_rows(sides, bounds, order)
    bounds = bounds[:-1]
    unsorted = np.empty(len(begins), np.uint8)
    if sort_rows(positions, bounds, order, unsorted):
        places = np.flatnonzero(np.repeat(unsorted, np.diff(bounds)))
        rows = np.sort(order[places])
        order[places] = rows[np.lexsort((rows, positions[rows], sides[rows]))]
    # Room for the worst case; memory is only used for the runs that there are.
    runs = room((len(Run), 2 * len(order)), np.int64)
    run_bounds = np.zeros(len(begins) + 1, np.int64)
    count = 0
    for first, stop in _groups(bounds):
        rows = order[bounds[first] : bounds[stop]]
        pieces, heap = room((len(Run), len(rows)), np.int64), room(len(rows), np.int64)
        gather_rows(positions, captured, starts, records, rows, pieces)
        row_bounds, out = bounds[first : stop + 1] - bounds[first], run_bounds[first : stop + 1]
        own_begins = begins[first:stop]
        count = merge_rows(pieces, rows, row_bounds, own_begins, newest, heap, runs, count, out)
    return run_bounds, Runs(*runs[:, :count])


def _groups(bounds: Ints) -> Iterator[tuple[int, int]]:
    """Yield ranges of streams that have about `_GROUP_ROWS` segments together."""
    cuts = bounds.searchsorted(np.arange(0, bounds[-1], _GROUP_ROWS))
    yield from pairwise(np.unique([*cuts.tolist(), len(bounds) - 1]).tolist())
