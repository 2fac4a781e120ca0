"""Clock offsets from packets that capture points saw: bounds that hold, and none that are false."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireyard.layers.jmq.clocks import (
    CONTRADICTION,
    MAX_DRIFT_PPM,
    ONE_WAY,
    WINDOW_NS,
    Clocks,
    Track,
    Window,
    clocks,
)

MS = 1_000_000
S = 1_000 * MS


def slack(spread_ns: int) -> int:
    """Return what drift adds to bounds within a window, where differences are so far apart."""
    return (WINDOW_NS + spread_ns) * MAX_DRIFT_PPM // 1_000_000


SECOND_ORDER = 50_000
"""What a drift adds to a drift in a thousand seconds, and rounding."""
LINK = ("client", "broker")
UP, DOWN = Track(0, 1, LINK, True), Track(0, 1, LINK, False)


def one(spans: Mapping[Track, tuple[int, int]], points: int = 2) -> Clocks:
    """Return the clocks of a single window."""
    return clocks(points, {(0, 5): spans})[0, 5]


@pytest.mark.parametrize("ahead", [0, 7 * MS, -3600 * S])
@pytest.mark.parametrize("nearer", [0, 1])
def test_the_middle_of_both_directions(ahead: int, nearer: int) -> None:
    """Whichever point is nearer to the client, and whatever the clocks show."""
    way = 1 if nearer == 0 else -1
    up = sorted((ahead + way * 20 * MS, ahead + way * 26 * MS))
    down = sorted((ahead - way * 20 * MS, ahead - way * 21 * MS))
    found = one({UP: (up[0], up[1]), DOWN: (down[0], down[1])})
    assert (found.reference, found.ahead_ns, found.reason) == ((0, 0), (0, ahead), None)
    assert found.error_ns(0, 1, ahead) == found.error_ns(1, 0, -ahead) == 20 * MS + slack(47 * MS)
    assert found.error_ns(0, 1, ahead + MS) == 21 * MS + slack(47 * MS)


def test_a_delay_of_one_direction_stays_within_the_error() -> None:
    found = one({UP: (10 * MS, 12 * MS), DOWN: (-30 * MS, -30 * MS)})
    assert found.ahead_ns[1] == -10 * MS
    assert found.error_ns(0, 1, -10 * MS) == 20 * MS + slack(42 * MS)


@pytest.mark.parametrize("spans", [{}, {UP: (1, 2)}, {DOWN: (1, 2)}])
def test_one_direction_tells_nothing(spans: Mapping[Track, tuple[int, int]]) -> None:
    found = one(spans)
    assert (found.reference, found.ahead_ns, found.reason) == ((0, 1), (0, 0), ONE_WAY)


def test_what_contradicts_itself_tells_nothing_anywhere() -> None:
    """A clock that was set in between: neither the windows before it nor those after it count."""
    before = {UP: (20 * MS, 20 * MS), DOWN: (-20 * MS, -20 * MS)}
    after = {UP: (520 * MS, 520 * MS), DOWN: (480 * MS, 480 * MS)}
    found = clocks(2, {(0, 1): before, (0, 9): after})
    assert {each.reason for each in found.values()} == {CONTRADICTION}
    assert {each.reference for each in found.values()} == {(0, 1)}
    mixed = one({UP: (0, 50 * MS), DOWN: (10 * MS, 40 * MS)})
    assert (mixed.reference, mixed.reason) == ((0, 1), CONTRADICTION)


def test_copies_of_one_capture_have_one_clock() -> None:
    found = one({UP: (0, 0), DOWN: (0, 0)})
    assert (found.ahead_ns, found.error_ns(0, 1, 0)) == ((0, 0), slack(0))


def test_bounds_of_other_windows_count_with_the_drift_in_between() -> None:
    windows = {
        (0, 0): {UP: (20 * MS, 20 * MS), DOWN: (-20 * MS, -20 * MS)},
        (0, 50): {UP: (400 * MS, 400 * MS), DOWN: (-400 * MS, -400 * MS)},
        (0, 51): {},
        (1, 51): {},
    }
    found = clocks(2, windows)
    errors = {window: found[window].error_ns(0, 1, 0) for window in windows}
    drift = WINDOW_NS * MAX_DRIFT_PPM // 1_000_000
    assert errors[0, 0] == 20 * MS + slack(800 * MS)
    assert errors[0, 50] == 20 * MS + 50 * drift + slack(800 * MS)
    assert errors[0, 51] == 20 * MS + 51 * drift + slack(800 * MS)
    # The axis of the other point is about right.
    assert abs(errors[1, 51] - errors[0, 51]) <= slack(800 * MS) - slack(0)


def test_a_third_point_may_give_closer_bounds() -> None:
    """Points 0 and 1 are far from each other, both are near to 2."""
    spans = {
        UP: (100 * MS, 100 * MS), DOWN: (-100 * MS, -100 * MS),
        Track(0, 2, LINK, True): (1 * MS, 1 * MS), Track(0, 2, LINK, False): (-1 * MS, -1 * MS),
        Track(1, 2, LINK, True): (2 * MS, 2 * MS), Track(1, 2, LINK, False): (-2 * MS, -2 * MS),
    }  # fmt: skip
    found = one(spans, 3)
    assert found.ahead_ns == (0, 0, 0)
    assert found.error_ns(0, 1, 0) == 3 * MS + 2 * slack(206 * MS)


def test_points_that_nothing_joins_are_references_of_their_own() -> None:
    joined = {Track(1, 2, LINK, True): (MS, MS), Track(1, 2, LINK, False): (-MS, -MS)}
    found = one(joined, 3)
    assert (found.reference, found.reason) == ((0, 1, 1), ONE_WAY)


@given(st.data())
def test_bounds_hold_whatever_clocks_and_transits_are(data: st.DataObject) -> None:
    """Three points in line, each with an offset and a drift; packets both ways, now and then."""
    points = 3
    offsets = [data.draw(st.integers(-100 * S, 100 * S)) for _ in range(points)]
    drifts = [
        data.draw(st.integers(-MAX_DRIFT_PPM // 2, MAX_DRIFT_PPM // 2)) for _ in range(points)
    ]

    def shown(point: int, ns: int) -> int:
        return ns + offsets[point] + ns * drifts[point] // 1_000_000

    spans: dict[Window, dict[Track, tuple[int, int]]] = {}
    seen: list[tuple[Window, int]] = []
    moments = st.tuples(st.integers(0, 1000 * S), st.booleans())
    for start, forward in data.draw(st.lists(moments, min_size=1, max_size=20)):
        line = range(points) if forward else reversed(range(points))
        now, at = start, {}
        for point in line:
            at[point] = now
            now += data.draw(st.integers(0, 50 * MS))
        for i in range(points):
            window = i, shown(i, at[i]) // WINDOW_NS
            seen.append((window, at[i]))
            tracks = spans.setdefault(window, {})
            for j in range(i + 1, points):
                track = Track(i, j, LINK, forward)
                difference = shown(j, at[j]) - shown(i, at[i])
                before = tracks.get(track, (difference, difference))
                tracks[track] = min(before[0], difference), max(before[1], difference)
    found = clocks(points, spans)
    for window, ns in seen:
        known = found[window]
        assert known.reason in (None, ONE_WAY)
        for p in range(points):
            for q in range(points):
                if known.reference[p] == known.reference[q]:
                    ahead = known.ahead_ns[q] - known.ahead_ns[p]
                    actual = shown(q, ns) - shown(p, ns)
                    assert abs(actual - ahead) <= known.error_ns(p, q, ahead) + SECOND_ORDER
