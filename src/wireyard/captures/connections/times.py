"""Times of packets, made consistent with the order in which they were sent.

Several queues, interfaces, taps and clocks give packets times, and places in a file, that cannot
be: an answer before its request. All that compares packets of several streams goes by time.

Rules of this file:

1. Times of packets with bytes do not go back by up to `JITTER_NS`: such a packet gets the time of
   the one before it in the file, which was captured first.
2. If times go back further, they count, and the order in the file does not, unless acknowledgments
   show the opposite: more of them are before their data by their times than by their place in the
   file. Then the clock was set back, and times continue from before.
3. A segment is behind all bytes that it acknowledges. If its time is before theirs by at most
   `SKEW_NS`, it gets the time behind them. If it is further before them, they were captured when
   they were sent again, or by another clock, and get the time before it. So does what they
   acknowledge.
4. A FIN or RST is behind the last bytes of its own stream, and behind those of the other stream if
   it acknowledges all of them.
5. A capture lasts until its last frame, whatever that brings; but not if its time is further from
   that of the frame before it than any silence lasts: then it is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from wireyard.arrays import Bools, Grid, Ints
from wireyard.captures.connections.stream import Content, Runs
from wireyard.captures.connections.tcp_kernels import AFTERMATH, NONE, Side, distance
from wireyard.captures.connections.time_kernels import Timed, order_runs
from wireyard.captures.records import NO_TIME

JITTER_NS: Final = 1_000_000
"""Disorder of the queues of one network card; packets of several cards may differ by more."""
_STEP_NS: Final = 1_000_000_000
"""A clock that goes back further was set; time goes on from there at the same speed."""
SKEW_NS: Final = 5_000_000
"""Less than it takes to send a segment again: 10 ms (RFC 8985, 7.2)."""
_LATE_NS: Final = 10_000_000_000
"""More than the clocks of two taps differ by; an acknowledgment further before is of no use."""
_SILENCE_NS: Final = 366 * 86_400 * 1_000_000_000
_MOST_STEPS: Final = 8
"""Packets that follow from each other, and that all are brought forward: those of QoS 2, twice."""
_SEQUENCE_NUMBERS: Final = 1 << 32


class Clock:
    """Times of packets with bytes in the order of a file, and of the last frame: rules 1 and 5."""

    def __init__(self) -> None:
        self.moved_ns = 0
        """Largest change of a time."""
        self.latest_ns = NO_TIME
        """The latest time of a packet with bytes so far."""
        self.last_ns: Ints = np.empty(0, np.int64)
        """The times of the last two frames that have one."""

    def see(self, times_ns: Ints) -> None:
        """Go on to the time of the last of the next frames."""
        timed = times_ns[times_ns != NO_TIME]
        self.last_ns = np.concatenate([self.last_ns, timed[-2:]])[-2:]

    @property
    def now_ns(self) -> int | None:
        """The time of the last frame so far; None if no frame has one."""
        if not len(self.last_ns):
            return None
        before, last = self.last_ns[[0, -1]].tolist()
        now = before if abs(last - before) > _SILENCE_NS else last
        return self.latest_ns if 0 < self.latest_ns - now <= JITTER_NS else now

    def steady(self, times_ns: Ints, has_bytes: Bools) -> Ints:
        """Return the times of the next packets, without small steps back."""
        return self._moved(times_ns, self.delays(times_ns, has_bytes))

    def delays(self, times_ns: Ints, has_bytes: Bools) -> Ints:
        """Return by how much each of the next packets is before the latest time up to it."""
        delays = np.zeros(len(times_ns), np.int64)
        rows = np.flatnonzero(has_bytes & (times_ns != NO_TIME))
        if len(rows):
            times = times_ns[rows]
            latest = np.maximum(np.maximum.accumulate(times), self.latest_ns)
            delays[rows] = latest - times
            self.latest_ns = int(latest[-1])
        return delays

    def follow(self, times_ns: Ints, has_bytes: Bools, delays: Ints, latest_ns: int) -> Ints:
        """Return the times of some packets of the next extent, without small steps back.

        `delays` and `latest_ns` are those of the clock that read only this extent, but all of its
        packets.
        """
        if self.latest_ns != NO_TIME:
            timed = has_bytes & (times_ns != NO_TIME)
            before = np.where(timed, times_ns, self.latest_ns)
            delays = np.maximum(delays, self.latest_ns - before)
        self.latest_ns = max(self.latest_ns, latest_ns)
        return self._moved(times_ns, delays)

    def _moved(self, times_ns: Ints, delays: Ints) -> Ints:
        """Return times with the delays that are small."""
        small = (delays > 0) & (delays <= JITTER_NS)
        if not small.any():
            return times_ns
        self.moved_ns = max(self.moved_ns, int(delays[small].max()))
        moved: Ints = times_ns + np.where(small, delays, 0)
        return moved


def continue_times(times_ns: Ints) -> int:
    """Move times in place, so that they follow the order of the file: rule 2.

    Returns the largest step of a clock that was set back.
    """
    timed = np.flatnonzero(times_ns != NO_TIME)
    back_ns = -np.diff(times_ns[timed])
    steps_ns = np.where(back_ns > _STEP_NS, back_ns, 0)
    steady = times_ns[timed]
    steady[1:] += np.cumsum(steps_ns)
    times_ns[timed] = np.maximum.accumulate(steady)
    return int(back_ns.max(initial=0))


def order_by_acknowledgments(
    late: Iterable[int],
    sides: Grid,
    begins: Ints,
    bounds: Ints,
    runs: Runs,
    numbers_of: Callable[[int, Ints], Ints],
    content: Content,
) -> int:
    """Move the times of packets so that each is behind those that it acknowledges: rule 3.

    `late` are the sides with bytes that were captured behind their acknowledgment. `sides` are the
    rows of `Side`; their streams begin at `begins`, and `bounds` and `runs` have the bytes of
    these. `numbers_of` returns the acknowledgment number of packets of a side. Return the largest
    change of a time, in nanoseconds.
    """
    moved_ns = 0
    for first in sorted({side & ~1 for side in late}):
        bounded = [slice(*bounds[side : side + 2].tolist()) for side in (first, first + 1)]
        if any(rows.start == rows.stop for rows in bounded):
            continue
        both = [_timed(runs, rows, content) for rows in bounded]
        if min(each[Timed.TIME].min() for each in both) == NO_TIME:
            continue
        before = [each[Timed.TIME].copy() for each in both]
        for way, rows in enumerate(bounded):
            side, records = sides[first + way], both[1 - way][Timed.RECORD]
            positions = _acknowledged(side, numbers_of(first + 1 - way, records))
            counts = runs.offsets[rows].searchsorted(positions - begins[first + way])
            counts[positions - side[Side.END] > AFTERMATH] = 0
            both[1 - way][Timed.NEEDS] = counts
        for _ in range(_MOST_STEPS):
            if not any([_bring_forward(both[way], both[1 - way]) for way in (0, 1)]):
                break
        order_runs(both[0], both[1], SKEW_NS)
        for each, times_ns in zip(both, before, strict=True):
            changed = np.flatnonzero(each[Timed.TIME] != times_ns)
            if len(changed):
                moved = each[Timed.TIME, changed]
                moved_ns = max(moved_ns, int(np.abs(moved - times_ns[changed]).max()))
                content.move(each[Timed.RECORD, changed], moved)
    return moved_ns


def close_behind_bytes(
    sides: Grid, ends: Ints, bounds: Ints, runs: Runs, content: Content, twice: Iterable[int] = ()
) -> int:
    """Move the times of packets that close a side behind the bytes before them: rule 4.

    `sides` are the rows of `Side`; their streams end at `ends`, and `bounds` and `runs` have the
    bytes of these. `twice` are sides of connections that two clocks captured: of them, the bytes of
    both that came last count. Return the largest change of a time, in nanoseconds.
    """
    closed = np.flatnonzero(sides[:, Side.CLOSING_RECORD] != NONE)
    records, moved_ns = sides[closed, Side.CLOSING_RECORD], 0
    numbers = sides[closed, Side.CLOSING_ACKNOWLEDGED]
    beyond = (numbers - sides[closed ^ 1, Side.BASE] - ends[closed ^ 1]) % _SEQUENCE_NUMBERS
    reaches_all = (numbers != NONE) & (beyond <= 1)  # a FIN has a number too
    last = np.where(bounds[1:] > bounds[:-1], bounds[1:] - 1, NONE)
    for side in {each for one in twice for each in (one, one ^ 1) if last[each] != NONE}:
        times_ns = content.times_of(runs.records[bounds[side] : bounds[side + 1]])
        last[side] = bounds[side] + int(times_ns.argmax())
    for before, applies in ((closed, np.ones_like(reaches_all)), (closed ^ 1, reaches_all)):
        rows = np.flatnonzero(applies & (last[before] != NONE))
        data = runs.records[last[before[rows]]]
        times_ns, data_ns = content.times_of(records[rows]), content.times_of(data)
        late_ns = data_ns - times_ns
        early = (late_ns > 0) | ((late_ns == 0) & (data > records[rows]))
        early &= (late_ns <= _LATE_NS) & (times_ns != NO_TIME) & (data != records[rows])
        if early.any():
            content.move(records[rows][early], data_ns[early] + 1)
            moved_ns = max(moved_ns, int(late_ns[early].max()) + 1)
    return moved_ns


def _timed(runs: Runs, rows: slice, content: Content) -> Grid:
    """Return the times and records of the runs of a side as a grid of `Timed`."""
    grid = np.empty((len(Timed), rows.stop - rows.start), np.int64)
    grid[Timed.RECORD] = runs.records[rows]
    grid[Timed.TIME] = content.times_of(grid[Timed.RECORD])
    return grid


def _acknowledged(side: Ints, numbers: Ints) -> Ints:
    """Return the positions in a stream that its receiver's packets acknowledge, in their order."""
    high = int(side[Side.HIGH])
    last = high + distance(int(numbers[-1]), int(side[Side.BASE]) + high)
    steps = np.diff(numbers).astype(np.uint32).view(np.int32).astype(np.int64)
    positions: Ints = last - np.append(np.cumsum(steps[::-1])[::-1], 0)
    return positions


def _bring_forward(runs: Grid, answers: Grid) -> bool:
    """Give bytes that were captured long behind their acknowledgment the time before it, in place.

    Returns whether there were any. Parameters are grids of `Timed`: of a stream, and of the stream
    that answers it.
    """
    times_ns, answered_ns, counts = runs[Timed.TIME], answers[Timed.TIME], answers[Timed.NEEDS]
    needs = np.flatnonzero(counts)
    late_ns = np.maximum.accumulate(times_ns)[counts[needs] - 1] - answered_ns[needs]
    far = needs[(late_ns > SKEW_NS) & (late_ns <= _LATE_NS)]
    if len(far):
        limits = np.full(len(times_ns), times_ns.max() + 1)
        np.minimum.at(limits, counts[far] - 1, answered_ns[far] - 1)
        np.minimum(times_ns, np.minimum.accumulate(limits[::-1])[::-1], out=times_ns)
    return bool(len(far))
