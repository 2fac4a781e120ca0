"""TCP reassembly: the segments of all connections of a capture at once, to streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wireyard.arena import parts, room
from wireyard.captures.connections import Connections
from wireyard.captures.merge_kernels import Run, gather_rows, group_rows, merge_rows, sort_rows
from wireyard.captures.stream import Runs
from wireyard.captures.tcp_kernels import (
    NONE,
    Connection,
    Side,
    State,
    Verdict,
    place_segments,
)
from wireyard.captures.units import Units

__all__ = ["Placer", "Reassembled", "reassemble"]

Ints = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_FIRST_CONNECTIONS: Final = 1 << 10
_GROUP_ROWS: Final = 1 << 16
"""Segments that are merged at once: what each would be as a run is in the cache then, and in memory
that was touched before."""


class Reassembled(NamedTuple):
    """Connections, and how many captured bytes of payload got each `Verdict`."""

    connections: Connections
    captured_bytes: Ints


def reassemble(
    segments: Units, times_ns: Ints, conversation_count: int, *, newest: bool = False
) -> Reassembled:
    """Put TCP segments together that are in the order of capture.

    Parameters
    ----------
    times_ns
        When each was captured.
    newest
        Whether the segment captured last counts where segments overlap, instead of the first.
    """
    placer = Placer()
    streams, positions, verdicts = placer.place(segments, times_ns, conversation_count)
    connections, sides = placer.connections, placer.sides
    states = sides[:, Side.STATE]
    begun, seen = states & State.BEGUN != 0, states & State.DATA != 0
    begins = np.where(begun, sides[:, Side.BEGIN], sides[:, Side.LOW])
    taken, captured_bytes = _taken(verdicts, segments.captured)
    run_bounds, runs = _merge(segments, streams, positions, taken, begins, newest)
    first_rows = connections[:, Connection.FIRST_ROW]
    return Reassembled(
        Connections(
            protocol="tcp",
            conversations=connections[:, Connection.CONVERSATION],
            first_records=segments.records[first_rows].astype(np.int64),
            first_ways=(segments.flows[first_rows] & 1).astype(np.int64),
            sizes=np.where(begun | seen, sides[:, Side.END] - begins, 0),
            opened=states & State.OPENED != 0,
            begun=begun,
            reset=states & State.RST != 0,
            finished=states & State.FIN != 0,
            closing_records=np.where(
                sides[:, Side.CLOSED] == NONE, NONE, segments.records[sides[:, Side.CLOSED]]
            ),
            run_bounds=run_bounds,
            runs=runs,
        ),
        captured_bytes,
    )


def _taken(verdicts: npt.NDArray[np.uint8], captured: Shorts) -> tuple[Flags, Ints]:
    """Return which segments bring bytes to streams, and the captured bytes of each verdict."""
    taken = room(len(verdicts), np.bool_)
    counts = np.zeros(len(Verdict), np.int64)
    for part in parts(len(verdicts)):
        own, sizes = verdicts[part], captured[part]
        kept = own == Verdict.TAKEN
        np.logical_and(kept, sizes, out=taken[part])
        others = np.flatnonzero(~kept)  # which few are, mostly
        counts += np.bincount(own[others], sizes[others], len(Verdict)).astype(np.int64)
    counts[Verdict.TAKEN] = captured.sum(dtype=np.int64) - counts.sum()
    return taken, counts


class Placer:
    """Finds the connection of each segment and its position there, as segments follow each other.

    Rows of `Connection` and `Side` that are rows of segments count from where the segments began
    that were placed at once.
    """

    def __init__(self) -> None:
        self.latest: Shorts = np.empty(0, np.int32)
        """The latest connection of each conversation."""
        self._connections = np.empty((_FIRST_CONNECTIONS, len(Connection)), np.int64)
        self._sides = np.empty((2 * _FIRST_CONNECTIONS, len(Side)), np.int64)
        self._count = np.zeros(1, np.int64)

    def __len__(self) -> int:
        return int(self._count[0])

    @property
    def connections(self) -> Grid:
        """What is known of each connection."""
        return self._connections[: len(self)]

    @property
    def sides(self) -> Grid:
        """What is known of each of their sides."""
        return self._sides[: 2 * len(self)]

    def place(
        self, segments: Units, times_ns: Ints, conversation_count: int
    ) -> tuple[Shorts, Ints, npt.NDArray[np.uint8]]:
        """Return the side of each segment, its position there, and its `Verdict`."""
        streams = room(len(segments), np.int32)
        positions = room(len(segments), np.int64)
        verdicts = room(len(segments), np.uint8)
        new = np.full(max(conversation_count - len(self.latest), 0), NONE, np.int32)
        self.latest = np.concatenate([self.latest, new]) if len(self.latest) else new
        self._make_room(len(self) + len(new))
        row = 0
        while True:
            row = place_segments(
                row,
                segments.flows,
                times_ns,
                segments.sequences,
                segments.acknowledgments,
                segments.flags,
                segments.lengths,
                self.latest,
                self._connections,
                self._sides,
                self._count,
                streams,
                positions,
                verdicts,
            )
            if row == len(segments):
                return streams, positions, verdicts
            self._make_room(2 * len(self))

    def state(self) -> dict[str, Any]:
        """Return what another goes on with, as arrays of integers."""
        return {
            "latest": self.latest.astype(np.int64),
            "connections": self.connections.copy(),
            "sides": self.sides.copy(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where another stood.

        Raises
        ------
        KeyError, ValueError
            It is no such state.
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
        self.latest = latest.astype(np.int32)
        self._connections, self._sides = connections.copy(), sides.copy()
        self._count[0] = count

    def keep(self, kept: Ints, conversations: Ints, conversation_count: int) -> None:
        """Forget all connections but some.

        Parameters
        ----------
        kept
            Their numbers, ascending; they are numbered anew, in the same order.
        conversations
            The numbers that their conversations have now.
        conversation_count
            How many conversations there are now.
        """
        connections = self.connections[kept]
        sides = self.sides.reshape(-1, 2, len(Side))[kept].reshape(-1, len(Side))
        connections[:, Connection.CONVERSATION] = conversations
        order = np.argsort(conversations, kind="stable")
        before = np.r_[NONE, order[:-1]][: len(order)]
        same = np.r_[False, conversations[order][1:] == conversations[order][:-1]][: len(order)]
        connections[order, Connection.BEFORE] = np.where(same, before, NONE)
        self.latest = np.full(conversation_count, NONE, np.int32)
        self.latest[conversations] = np.arange(len(kept))  # of several the last counts
        self._connections, self._sides = connections, sides
        self._count[0] = len(kept)

    def _make_room(self, most: int) -> None:
        more = most + _FIRST_CONNECTIONS - len(self._connections)
        if most > len(self._connections):
            self._connections, self._sides = (
                np.concatenate([old, np.empty((times * more, old.shape[1]), np.int64)])
                for old, times in ((self._connections, 1), (self._sides, 2))
            )


def _within(numbers: Ints, start: int, stop: int) -> bool:
    return bool(((numbers >= start) & (numbers < stop)).all())


def _merge(
    segments: Units, streams: Shorts, positions: Ints, taken: Flags, begins: Ints, newest: bool
) -> tuple[Ints, Runs]:
    """Return where the runs of each stream begin, and the runs."""
    bounds = np.zeros(len(begins) + 2, np.int64)
    order = room(len(segments), np.int64)
    order = order[: group_rows(streams, taken.view(np.uint8), bounds, order)]
    bounds = bounds[:-1]
    unsorted = np.empty(len(begins), np.uint8)
    if sort_rows(positions, bounds, order, unsorted):
        places = np.flatnonzero(np.repeat(unsorted, np.diff(bounds)))
        rows = np.sort(order[places])
        order[places] = rows[np.lexsort((rows, positions[rows], streams[rows]))]
    # No more memory is touched than there are runs.
    runs = room((len(Run), 2 * len(order)), np.int64)
    run_bounds = np.zeros(len(begins) + 1, np.int64)
    found = 0
    for first, stop in _groups(bounds):
        rows = order[bounds[first] : bounds[stop]]
        pieces, heap = room((len(Run), len(rows)), np.int64), room(len(rows), np.int64)
        gather_rows(positions, segments.captured, segments.starts, segments.records, rows, pieces)
        some, own = bounds[first : stop + 1] - bounds[first], run_bounds[first : stop + 1]
        found = merge_rows(pieces, rows, some, begins[first:stop], newest, heap, runs, found, own)
    return run_bounds, Runs(*runs[:, :found])


def _groups(bounds: Ints) -> Iterator[tuple[int, int]]:
    """Yield the streams that follow each other and have about `_GROUP_ROWS` segments together."""
    cuts = bounds.searchsorted(np.arange(0, bounds[-1], _GROUP_ROWS))
    yield from pairwise(np.unique([*cuts.tolist(), len(bounds) - 1]).tolist())
