"""TCP reassembly, of all connections of a capture at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np

from wireyard.arena import room, with_room
from wireyard.arrays import Bytes, Grid, Int32s, Ints
from wireyard.captures.connections.merge_kernels import (
    Run,
    gather_rows,
    group_rows,
    merge_rows,
    sort_rows,
)
from wireyard.captures.connections.stream import Runs
from wireyard.captures.connections.table import Connections
from wireyard.captures.connections.tcp_kernels import (
    AFTERMATH,
    NONE,
    Connection,
    Side,
    State,
    Verdict,
    place_segments,
)
from wireyard.captures.packets.units import Columns, Units

__all__ = ["Placer", "Reassembly", "stream_ends"]

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
}
"""Types of the columns that are kept of segments with bytes for streams."""


class Reassembly:
    """Incremental reassembly of TCP segments, which arrive in the order of capture."""

    def __init__(self) -> None:
        self.captured_bytes = np.zeros(len(Verdict), np.int64)
        """Captured bytes of payload by `Verdict`."""
        self._placer = Placer()
        self._kept = Columns(_KEPT)

    def add(self, segments: Units, times_ns: Ints, conversation_count: int) -> None:
        """Add the next segments; parameters as of `Placer.place`."""
        sides, positions, verdicts = self._placer.place(segments, times_ns, conversation_count)
        captured = segments.captured
        counts = np.bincount(verdicts, captured, len(Verdict))
        self.captured_bytes += counts.astype(np.int64)
        rows = np.flatnonzero((verdicts == Verdict.TAKEN) & (captured > 0))
        self._kept.append((sides, positions, captured, segments.starts, segments.records), rows)

    def connections(self, *, newest: bool = False) -> Connections:
        """Return all connections; nothing can be added afterwards.

        Parameters
        ----------
        newest
            Whether overlapping bytes are taken from the segment captured last, instead of the
            first.
        """
        connections, sides = self._placer.connections, self._placer.sides
        states = sides[:, Side.STATE]
        begun, seen = states & State.BEGUN != 0, states & State.DATA != 0
        begins = np.where(begun, sides[:, Side.BEGIN], sides[:, Side.LOW])
        run_bounds, runs = _merge(self._kept, begins, newest)
        return Connections(
            protocol="tcp",
            conversations=connections[:, Connection.CONVERSATION],
            first_records=connections[:, Connection.FIRST_RECORD],
            first_ways=connections[:, Connection.FIRST_WAY],
            sizes=np.where(begun | seen, stream_ends(sides) - begins, 0),
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
    others = np.arange(len(sides)) ^ 1
    acknowledged = sides[others, Side.ACKNOWLEDGED]
    shows = (states & State.SEEN != 0) & (states & (State.BEGUN | State.DATA) != 0)
    shows &= (states & State.FIN == 0) & (sides[:, Side.SPARE] == NONE) & (acknowledged != NONE)
    missing = (acknowledged - sides[:, Side.BASE] - ends) % _SEQUENCE_NUMBERS
    shows &= (missing > 0) & (missing <= AFTERMATH)
    is_fin = (missing == 1) | (states[others] & State.FIN != 0)
    found: Ints = ends + np.where(shows, missing - is_fin, 0)
    return found


class Placer:
    """Assigns segments, in the order of capture, to connections and positions in their streams."""

    def __init__(self) -> None:
        self._latest: Int32s = np.empty(0, np.int32)
        self._conversation_count = 0
        self._connections = np.empty((0, len(Connection)), np.int64)
        self._sides = np.empty((0, len(Side)), np.int64)
        self._count = np.zeros(1, np.int64)

    def __len__(self) -> int:
        return int(self._count[0])

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
    ) -> tuple[Int32s, Ints, Bytes]:
        """Return the side of each segment, its position in that stream, and its `Verdict`.

        Parameters
        ----------
        times_ns
            Capture time of each segment.
        conversation_count
            Number of conversations so far.
        """
        streams = room(len(segments), np.int32)
        positions = room(len(segments), np.int64)
        verdicts = room(len(segments), np.uint8)
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
                self._count,
                streams,
                positions,
                verdicts,
            )
            if row == len(segments):
                return streams, positions, verdicts
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

        Raises
        ------
        KeyError, ValueError
            `state` is not such a state.
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
        self._connections, self._sides = connections.copy(), sides.copy()
        self._count[0] = count

    def keep(self, kept: Ints, conversations: Ints, conversation_count: int) -> None:
        """Evict all connections except `kept`.

        Parameters
        ----------
        kept
            Their numbers, ascending; they are renumbered in this order from 0 on.
        conversations
            The new numbers of their conversations.
        conversation_count
            The new number of conversations.
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
        self._count[0] = len(kept)

    def _make_room(self, most: int) -> None:
        self._connections = with_room(self._connections, len(self), most)
        self._sides = with_room(self._sides, 2 * len(self), 2 * most)


def _within(numbers: Ints, start: int, stop: int) -> bool:
    return bool(((numbers >= start) & (numbers < stop)).all())


def _merge(kept: Columns, begins: Ints, newest: bool) -> tuple[Ints, Runs]:
    """Return the runs of all streams, one stream after the other, and where those of each begin."""
    sides, positions, captured, starts, records = (kept[name] for name in _KEPT)
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
