"""Order the segments of a connection as its acknowledgments show it.

Axes: r = runs of a stream; w = the two streams of a connection.
"""

from __future__ import annotations

from enum import IntEnum

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Grid


class Timed(IntEnum):
    """Rows of a grid with a column for each run of a stream, in the order of its offsets."""

    TIME = 0
    """Changed in place."""
    RECORD = 1
    NEEDS = 2
    """Number of runs of the other stream that it acknowledges."""
    REACHED = 3
    REACHED_RECORD = 4
    """Time and record of the packet with which it, and all before it, had come; filled in."""


@inlined
def move_behind(runs: Grid, at: int, others: Grid, most_ns: int) -> None:
    """Move a run behind those that it acknowledges, and fill in when all up to it had come."""
    time, record = runs[Timed.TIME, at], runs[Timed.RECORD, at]
    last = runs[Timed.NEEDS, at] - 1
    if last >= 0:
        late = others[Timed.REACHED, last] - time
        tied = late == 0 and others[Timed.REACHED_RECORD, last] > record
        if tied or 0 < late <= most_ns:
            time += late + 1
            runs[Timed.TIME, at] = time
    if at > 0:
        reached = runs[Timed.REACHED, at - 1]
        if reached > time or (reached == time and runs[Timed.REACHED_RECORD, at - 1] > record):
            time, record = reached, runs[Timed.REACHED_RECORD, at - 1]
    runs[Timed.REACHED, at], runs[Timed.REACHED_RECORD, at] = time, record


@inlined
def is_earlier(runs: Grid, at: int, others: Grid, other: int) -> bool:
    """Return whether a run was captured before one of the other stream."""
    time, other_time = int(runs[Timed.TIME, at]), int(others[Timed.TIME, other])
    if time == other_time:
        return int(runs[Timed.RECORD, at]) < int(others[Timed.RECORD, other])
    return time < other_time


@kernel
def order_runs(runs: Grid, others: Grid, most_ns: int) -> int:
    """Move runs of two streams so that each is behind those that it acknowledges.

    A time is moved by at most `most_ns`. Returns the number of runs. Shapes: both (`Timed`, r).
    """
    count, other_count = runs.shape[1], others.shape[1]
    at, other = 0, 0
    while at < count or other < other_count:
        first = other == other_count
        if at < count and other < other_count:
            is_free = runs[Timed.NEEDS, at] <= other
            first = is_free
            if is_free == (others[Timed.NEEDS, other] <= at):
                first = is_earlier(runs, at, others, other)
        if first:
            runs[Timed.NEEDS, at] = min(runs[Timed.NEEDS, at], other)
            move_behind(runs, at, others, most_ns)
            at += 1
        else:
            others[Timed.NEEDS, other] = min(others[Timed.NEEDS, other], at)
            move_behind(others, other, runs, most_ns)
            other += 1
    return count + other_count
