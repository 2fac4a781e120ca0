"""Clock offsets between capture points, from packets that were captured at several of them.

A packet captured at two points bounds the offset of their clocks from one side, a packet in the
other direction from the other side, because the transit time is never negative (Cristian 1989, the
bounds behind NTP's offset). With ``d`` = time at j minus time at i of the same packet, and `ahead`
= the offset of the clock of j from that of i:

    packets from i to j    d = ahead + transit    ahead <= the smallest d
    packets from j to i    d = ahead - transit    ahead >= the largest d

Rules of this file:

1. The estimate is the middle of the two bounds, as in NTP, and its error is at most half of their
   distance: half of the shortest round trip. It is exact if the fastest packets of both directions
   took equally long. If not, it is wrong by half of the difference, which is within the error; no
   measurement of both directions can show that difference.
2. Clocks drift. Bounds are computed for windows of `WINDOW_NS`. The bounds of other windows count
   too, widened by `MAX_DRIFT_PPM` of the time between, so a quiet minute has bounds as well. A
   window is a window of a point's own clock; rough offsets put all windows on one axis.
3. The times show which of two points is nearer to the first end of a link: if transit takes any
   time, only one of the two assumptions gives bounds that do not contradict each other. If both do,
   the wider bounds are used.
4. Bounds that contradict each other mean that a clock was set or drifts faster, or that a timestamp
   is wrong. Then no offset is estimated, rather than a wrong one. The same where packets went in
   one direction only.
5. The bounds of more than two points are combined (the closure of difference constraints): a bound
   through a third point may be tighter than the direct one. The middles of the closure satisfy all
   bounds, so no packet arrives before it was sent.

All times are whole nanoseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from operator import itemgetter
from typing import Final, NamedTuple

WINDOW_NS: Final = 2_000_000_000
"""The length of a window: drift adds no more than 0.2 ms to its bounds."""
MAX_DRIFT_PPM: Final = 100
"""The largest drift between two clocks, in microseconds a second: crystals are sold with up to 50,
and two of them may drift in opposite directions."""
_PPM: Final = 1_000_000
MAX_LINKS: Final = 64
"""The most links of two points that are used, those with the most windows first: one would do."""

ONE_WAY: Final = "one_way"
CONTRADICTION: Final = "contradiction"


class Track(NamedTuple):
    """Packets of one direction of a link, captured at two points."""

    i: int
    j: int
    """The numbers of the points, `i` < `j`."""
    link: tuple[str, str]
    forward: bool
    """Whether the packets go from the first end of the link to the second."""


Spans = Mapping[Track, tuple[int, int]]
"""The smallest and the largest difference of each track, time at j minus time at i."""
Window = tuple[int, int]
"""A capture point, and the number of a window of its clock."""
_Samples = Mapping[Window, tuple[int, int]]
"""The spans of one track by their windows."""
_Grid = list[list[int | None]]
"""``grid[p][q]``: upper bound of the offset of the clock of q from that of p; None: unbounded."""


class Clocks(NamedTuple):
    """The offsets between the clocks of capture points in one window."""

    reference: tuple[int, ...]
    """For each point, the first point whose clock it can be compared with; itself if none."""
    ahead_ns: tuple[int, ...]
    """The estimated offset of each clock from that of its reference."""
    most_ns: Sequence[Sequence[int | None]]
    """``most_ns[p][q]``: upper bound of the offset of q's clock from that of p; None: unbounded."""
    reason: str | None = None
    """Why the clocks cannot all be compared; None if they can."""

    def error_ns(self, p: int, q: int, ahead: int) -> int:
        """Return the largest error of the estimate that the clock of q is `ahead` of that of p."""
        most, least = self.most_ns[p][q], self.most_ns[q][p]
        return max((most or 0) - ahead, (least or 0) + ahead)


def separate_clocks(points: int, reason: str | None = None) -> Clocks:
    """Return clocks that cannot be compared with each other."""
    return Clocks(tuple(range(points)), (0,) * points, _grid(points), reason)


def clocks(points: int, windows: Mapping[Window, Spans]) -> dict[Window, Clocks]:
    """Estimate the offsets between the clocks of points, window by window.

    `windows` has the spans of each window, of the tracks whose point i has that window.
    """
    seen: dict[tuple[int, int], tuple[int, int]] = {}
    for spans in windows.values():
        for track, span in spans.items():
            pair = track.i, track.j
            seen[pair] = widened(seen.get(pair), span)
    axis = _axis(points, windows, {pair: least for pair, (least, _) in seen.items()})
    # Times may differ by the length of a window; the axis is as rough as the spans are wide.
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
    """Return the smallest span that contains two spans."""
    return other if span is None else (min(span[0], other[0]), max(span[1], other[1]))


def _axis(
    points: int, windows: Iterable[Window], rough: Mapping[tuple[int, int], int]
) -> dict[Window, int]:
    """Return the rough start of each window by the clock of the first point, the earliest first.

    `rough` is the rough offset of the second clock from the first, for some pairs of points.
    """
    ahead: list[int | None] = [0, *(None for _ in range(points - 1))]
    for _ in range(points):
        for (i, j), difference in rough.items():
            at_i, at_j = ahead[i], ahead[j]
            if at_i is not None and at_j is None:
                ahead[j] = at_i + difference
            elif at_i is None and at_j is not None:
                ahead[i] = at_j - difference
    times = {(point, n): n * WINDOW_NS - (ahead[point] or 0) for point, n in windows}
    return dict(sorted(times.items(), key=itemgetter(1)))


# --- one link -------------------------------------------------------------------------------


def _busiest(
    windows: Mapping[Window, Spans],
) -> Iterator[tuple[tuple[int, int], _Samples, _Samples]]:
    """Yield each pair of points with the samples of both directions of up to `MAX_LINKS` links."""
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
    """Return the bounds of the offset of the clock of j from that of i, window by window."""
    i_first = _bounds(backward, forward, axis, slack)
    j_first = _bounds(forward, backward, axis, slack)
    possible = [bounds for bounds in (i_first, j_first) if all(low <= high for low, high in bounds)]
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
    """Return bounds from the spans of packets towards i and towards j."""
    high = _relaxed({window: least for window, (least, _) in to_j.items()}, axis, slack)
    low = _relaxed({window: -most for window, (_, most) in to_i.items()}, axis, slack)
    return [(-low[window], high[window]) for window in axis]


def _relaxed(
    samples: Mapping[Window, int], axis: Mapping[Window, int], slack: int
) -> dict[Window, int]:
    """Return the upper bound of each window from the samples of all windows."""
    bounds: dict[Window, int] = {}
    for windows in (list(axis), list(axis)[::-1]):
        best, before = None, 0
        for window in windows:
            if best is not None:
                best += _drift(abs(axis[window] - before))
            best, before = _less(best, samples.get(window)), axis[window]
            if best is not None:
                bounds[window] = min(bounds.get(window, best + slack), best + slack)
    return bounds


def _drift(time_ns: int) -> int:
    return -(-time_ns * MAX_DRIFT_PPM // _PPM)


# --- several points -------------------------------------------------------------------------


def _grid(points: int) -> _Grid:
    return [[0 if p == q else None for q in range(points)] for p in range(points)]


def _less(first: int | None, second: int | None) -> int | None:
    return min((bound for bound in (first, second) if bound is not None), default=None)


def _close(grid: _Grid) -> None:
    """Tighten every bound by the others (Floyd and Warshall)."""
    points = range(len(grid))
    for via, p, q in product(points, points, points):
        first, second = grid[p][via], grid[via][q]
        if first is not None and second is not None:
            grid[p][q] = _less(grid[p][q], first + second)


def _middles(grid: _Grid) -> Clocks:
    """Return the clocks whose bounds are those of a closed grid."""
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
