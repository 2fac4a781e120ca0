"""TCP reassembly: the segments of all connections of a capture at once, to streams."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wireyard.arena import pooled
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

__all__ = ["Reassembled", "reassemble"]

Ints = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_FIRST_CONNECTIONS: Final = 1 << 10


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
    connections, sides, streams, positions, verdicts = _place(
        segments, times_ns, conversation_count
    )
    states = sides[:, Side.STATE]
    begun, seen = states & State.BEGUN != 0, states & State.DATA != 0
    begins = np.where(begun, sides[:, Side.BEGIN], sides[:, Side.LOW])
    taken = (verdicts == Verdict.TAKEN) & (segments.captured > 0)
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
        _captured_bytes(verdicts, segments.captured),
    )


def _captured_bytes(verdicts: npt.NDArray[np.uint8], captured: Shorts) -> Ints:
    """Return the captured bytes of each verdict; nearly all segments are taken."""
    others = np.flatnonzero(verdicts != Verdict.TAKEN)
    counts = np.bincount(verdicts[others], captured[others], len(Verdict)).astype(np.int64)
    counts[Verdict.TAKEN] = captured.sum(dtype=np.int64) - counts.sum()
    return counts


def _place(
    segments: Units, times_ns: Ints, conversation_count: int
) -> tuple[Grid, Grid, Shorts, Ints, npt.NDArray[np.uint8]]:
    """Find the connection of each segment and its position there."""
    streams = pooled(len(segments), np.int32)
    positions = pooled(len(segments), np.int64)
    verdicts = pooled(len(segments), np.uint8)
    latest = np.full(conversation_count, NONE, np.int32)
    capacity = conversation_count + _FIRST_CONNECTIONS
    connections = np.empty((capacity, len(Connection)), np.int64)
    sides = np.empty((2 * capacity, len(Side)), np.int64)
    count = np.zeros(1, np.int64)
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
            latest,
            connections,
            sides,
            count,
            streams,
            positions,
            verdicts,
        )
        if row == len(segments):
            break
        connections, sides = (
            np.concatenate([old, np.empty_like(old)]) for old in (connections, sides)
        )
    made = int(count[0])
    return connections[:made], sides[: 2 * made], streams, positions, verdicts


def _merge(
    segments: Units, streams: Shorts, positions: Ints, taken: Flags, begins: Ints, newest: bool
) -> tuple[Ints, Runs]:
    """Return where the runs of each stream begin, and the runs."""
    bounds = np.zeros(len(begins) + 2, np.int64)
    order = pooled(len(segments), np.int64)
    order = order[: group_rows(streams, taken.view(np.uint8), bounds, order)]
    bounds = bounds[:-1]
    unsorted = np.empty(len(begins), np.uint8)
    if sort_rows(positions, bounds, order, unsorted):
        places = np.flatnonzero(np.repeat(unsorted, np.diff(bounds)))
        rows = np.sort(order[places])
        order[places] = rows[np.lexsort((rows, positions[rows], streams[rows]))]
    pieces, count = pooled((len(Run), len(order)), np.int64), len(order)
    gather_rows(positions, segments.captured, segments.starts, segments.records, order, pieces)
    # No more memory is touched than there are runs.
    runs, heap = pooled((len(Run), 2 * count), np.int64), pooled(count, np.int64)
    run_bounds = np.empty(len(begins) + 1, np.int64)
    found = merge_rows(pieces, order, bounds, begins, newest, heap, runs, run_bounds)
    return run_bounds, Runs(*runs[:, :found])
