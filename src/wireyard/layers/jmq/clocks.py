"""Clock offsets between capture points, from packets that several of them saw.

A packet that was seen at two points, and one that went the other way, bound how far the clock of
one point is ahead of the other's (Cristian 1989, the bounds behind NTP's offset): no packet takes
less than no time. With ``d`` = time at j minus time at i of the same packet, and `ahead` = how far
the clock of j is ahead of i's:

    packets from i to j    d = ahead + transit    ahead <= the smallest d
    packets from j to i    d = ahead - transit    ahead >= the largest d

Rules of this file:

1. The estimate is the middle of the two bounds, as NTP's is, and its error at most half of what is
   between them: half of the shortest round trip. It is exact if the fastest packets of both
   directions took equally long. No measurement of both directions shows more: what one direction
   takes longer than the other shifts the estimate by its half, which stays within the error.
2. Clocks drift. Bounds are those of a window of `WINDOW_NS`; the bounds of other windows count too,
   wider by `MAX_DRIFT_PPM` of the time in between. So a quiet minute has bounds, if wider ones.
   A window is one of a point's own clock: all windows are put on one axis by a rough offset.
3. Which of two points is nearer to the first end of a link follows from the times alone: if packets
   took any time, the bounds of only one of both leave room. Where both do, the wider bounds count.
4. Bounds that leave nothing between them mean that a clock was set, or drifts faster, or that a
   timestamp is wrong. Then nothing is estimated from these points: no offset rather than a false
   one. The same where packets went one way only.
5. Of more than two points all bounds are combined (the closure of difference constraints): a bound
   by way of a third point may be closer than the direct one. The middles of the closure fit all
   bounds, so no packet arrives before it was sent.

All times are whole nanoseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple

__all__ = [
    "CONTRADICTION",
    "MAX_DRIFT_PPM",
    "ONE_WAY",
    "WINDOW_NS",
    "Clocks",
    "Spans",
    "Track",
    "clocks",
    "separate_clocks",
    "widened",
]

WINDOW_NS: Final = 2_000_000_000
"""How long bounds are taken together: drift adds no more than 0.2 ms to them."""
MAX_DRIFT_PPM: Final = 100
"""How much two clocks may drift apart, in microseconds a second: crystals are sold with up to 50,
and two of them may drift in opposite directions."""
_PPM: Final = 1_000_000
MAX_LINKS: Final = 64
"""Links of two points that are considered, those with the most windows: one would be enough."""

ONE_WAY: Final = "one_way"
CONTRADICTION: Final = "contradiction"


class Track(NamedTuple):
    """Packets of one direction of a link that two capture points saw."""

    i: int
    j: int
    """The points by their numbers, `i` < `j`."""
    link: tuple[str, str]
    forward: bool
    """Whether they go from the first end of the link to the second."""


Spans = Mapping[Track, tuple[int, int]]
"""The smallest and the largest difference of each track, time at j minus time at i."""
Window = tuple[int, int]
"""A capture point, and the number of a window of its clock."""
_Samples = Mapping[Window, tuple[int, int]]
"""The spans of one track by their windows."""
_Grid = list[list[int | None]]
"""``grid[p][q]``: how far the clock of point q is ahead of that of p at most; None: unbounded."""


class Clocks(NamedTuple):
    """How far the clocks of some capture points are ahead of each other, in one window."""

    reference: tuple[int, ...]
    """The first point whose clock each point's can be compared with; itself if none."""
    ahead_ns: tuple[int, ...]
    """How far each clock is ahead of its reference's, as estimated."""
    most_ns: Sequence[Sequence[int | None]]
    """``most_ns[p][q]``: how far the clock of q is ahead of that of p at most; None: unbounded."""
    reason: str | None = None
    """Why the clocks cannot all be compared; None if they can."""

    def error_ns(self, p: int, q: int, ahead: int) -> int:
        """Return how wrong it can be that the clock of q is `ahead` of that of p."""
        most, least = self.most_ns[p][q], self.most_ns[q][p]
        return max((most or 0) - ahead, (least or 0) + ahead)


def separate_clocks(points: int, reason: str | None = None) -> Clocks:
    """Return clocks none of which can be compared with another."""
    return Clocks(tuple(range(points)), (0,) * points, _grid(points), reason)


def clocks(points: int, windows: Mapping[Window, Spans]) -> dict[Window, Clocks]:
    """Return how the clocks of some points differ, window by window.

    Parameters
    ----------
    windows
        The spans of each window: of the tracks whose point i has that window.
    """
    seen: dict[tuple[int, int], tuple[int, int]] = {}
    for spans in windows.values():
        for track, span in spans.items():
            pair = track.i, track.j
            seen[pair] = widened(seen.get(pair), span)
    axis = _axis(points, windows, {pair: least for pair, (least, _) in seen.items()})
    # Times of one window may be all of it apart; the axis is as rough as differences are wide.
    slack = _drift(WINDOW_NS + sum(most - least for least, most in seen.values()))
    grids = [_grid(points) for _ in axis]
    for (i, j), forward, backward in _busiest(windows):
        bounds = _bounds_of_link(forward, backward, axis, slack)
        for grid, (low, high) in zip(grids, bounds, strict=True):
            grid[i][j] = _less(grid[i][j], high)
            grid[j][i] = _less(grid[j][i], -low)
    for grid in grids:
        _close(grid)
    if any((grid[p][p] or 0) < 0 for grid in grids for p in range(points)):
        return dict.fromkeys(windows, separate_clocks(points, CONTRADICTION))
    return {window: _middles(grid) for window, grid in zip(axis, grids, strict=True)}


def widened(span: tuple[int, int] | None, other: tuple[int, int]) -> tuple[int, int]:
    """Return the span of two spans."""
    return other if span is None else (min(span[0], other[0]), max(span[1], other[1]))


def _axis(
    points: int, windows: Iterable[Window], rough: Mapping[tuple[int, int], int]
) -> dict[Window, int]:
    """Return when windows begin, about, by the clock of the first point; the earliest first.

    Parameters
    ----------
    rough
        For some pairs of points, how far the clock of the second is ahead, about.
    """
    ahead: list[int | None] = [0, *(None for _ in range(points - 1))]
    for _ in range(points):
        for (i, j), difference in rough.items():
            one, other = ahead[i], ahead[j]
            if one is not None and other is None:
                ahead[j] = one + difference
            elif one is None and other is not None:
                ahead[i] = other - difference
    times = {(point, n): n * WINDOW_NS - (ahead[point] or 0) for point, n in windows}
    return dict(sorted(times.items(), key=lambda one: one[1]))


# --- one link -------------------------------------------------------------------------------


def _busiest(
    windows: Mapping[Window, Spans],
) -> Iterator[tuple[tuple[int, int], _Samples, _Samples]]:
    """Yield two points and the samples of both directions, link by link, of some links each."""
    samples: defaultdict[Track, dict[Window, tuple[int, int]]] = defaultdict(dict)
    for window, spans in windows.items():
        for track, span in spans.items():
            samples[track][window] = span
    both_ways: defaultdict[tuple[int, int], list[tuple[_Samples, _Samples]]] = defaultdict(list)
    for track, forward in samples.items():
        backward = samples.get(track._replace(forward=False))
        if track.forward and backward is not None:
            both_ways[track.i, track.j].append((forward, backward))
    for pair, links in both_ways.items():
        links.sort(key=lambda link: len(link[0]) + len(link[1]), reverse=True)
        yield from ((pair, *link) for link in links[:MAX_LINKS])


def _bounds_of_link(
    forward: _Samples, backward: _Samples, axis: Mapping[Window, int], slack: int
) -> list[tuple[int, int]]:
    """Return the least and the most that the clock of j is ahead of that of i, window by window."""
    i_first = _bounds(backward, forward, axis, slack)
    j_first = _bounds(forward, backward, axis, slack)
    possible = [one for one in (i_first, j_first) if all(low <= high for low, high in one)]
    return [
        (min(low for low, _ in both), max(high for _, high in both))
        for both in zip(*(possible or [i_first]), strict=True)
    ]


def _bounds(
    to_i: _Samples,
    to_j: _Samples,
    axis: Mapping[Window, int],
    slack: int,
) -> list[tuple[int, int]]:
    """Return bounds from the spans of what travels towards i and towards j."""
    high = _relaxed({window: least for window, (least, _) in to_j.items()}, axis, slack)
    low = _relaxed({window: -most for window, (_, most) in to_i.items()}, axis, slack)
    return [(-low[window], high[window]) for window in axis]


def _relaxed(
    samples: Mapping[Window, int], axis: Mapping[Window, int], slack: int
) -> dict[Window, int]:
    """Return the upper bound of each window, also from the samples of all the others."""
    found: dict[Window, int] = {}
    for windows in (list(axis), list(axis)[::-1]):
        best, before = None, 0
        for window in windows:
            if best is not None:
                best += _drift(abs(axis[window] - before))
            best, before = _less(best, samples.get(window)), axis[window]
            if best is not None:
                found[window] = min(found.get(window, best + slack), best + slack)
    return found


def _drift(time_ns: int) -> int:
    return -(-time_ns * MAX_DRIFT_PPM // _PPM)


# --- several points -------------------------------------------------------------------------


def _grid(points: int) -> _Grid:
    return [[0 if p == q else None for q in range(points)] for p in range(points)]


def _less(one: int | None, other: int | None) -> int | None:
    return min((x for x in (one, other) if x is not None), default=None)


def _close(grid: _Grid) -> None:
    """Make every bound as close as the others allow (Floyd and Warshall)."""
    points = range(len(grid))
    for via, p, q in product(points, points, points):
        first, second = grid[p][via], grid[via][q]
        if first is not None and second is not None:
            grid[p][q] = _less(grid[p][q], first + second)


def _middles(grid: _Grid) -> Clocks:
    """Return the clocks whose bounds are in a closed grid."""
    points = range(len(grid))
    reference, ahead = [], []
    for q in points:
        for p in points:
            most, least = grid[p][q], grid[q][p]
            if most is not None and least is not None:
                reference.append(p)
                ahead.append((most - least) // 2)
                break
    reason = ONE_WAY if any(reference) else None
    return Clocks(tuple(reference), tuple(ahead), grid, reason)
