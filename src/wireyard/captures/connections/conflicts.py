"""Find segments with bytes that were sent before, but others.

A sender sends the same bytes again. Others are of a broken or an evading sender, or of another
connection; one of the two is what the receiver got.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wireyard.arena import parts, room
from wireyard.arrays import Bools, Ints
from wireyard.captures.connections.merge_kernels import find_differing
from wireyard.captures.connections.stream import Runs
from wireyard.captures.files.places import Places
from wireyard.captures.packets.units import Columns

_ROWS: Final = 256
"""Segments that are compared at once: they have up to 16 MB."""


def find_conflicts(
    kept: Columns, begins: Ints, bounds: Ints, runs: Runs, places: Places
) -> list[tuple[int, int]]:
    """Return the side and the record of each segment that differs from the stream of its side.

    `kept` are the segments with bytes: their sides, positions, captured bytes, starts and records.
    The streams begin at the positions `begins`, and `bounds` and `runs` have their bytes.
    """
    records = kept["records"]
    left = room(int(records[-1]) + 1 if len(records) else 0, np.int32)
    left[:] = 0
    left[records] = kept["captured"]
    for part in parts(len(runs.records)):
        np.subtract.at(left, runs.records[part], runs.lengths[part].astype(np.int32))
    # Segments of which some bytes were captured before.
    again = [part.start + np.flatnonzero(left[records[part]]) for part in parts(len(records))]
    rows = np.concatenate([np.empty(0, np.int64), *again])
    found: list[tuple[int, int]] = []
    for part in parts(len(rows), _ROWS):
        own = rows[part]
        differing = own[_differ(kept, own, begins, bounds, runs, places)]
        found += zip(
            kept["sides"][differing].tolist(), kept["records"][differing].tolist(), strict=True
        )
    return sorted(found)


def _differ(
    kept: Columns, rows: Ints, begins: Ints, bounds: Ints, runs: Runs, places: Places
) -> Bools:
    """Return which of some segments have other bytes than the streams of their sides."""
    sides = kept["sides"][rows]
    starts: Ints = kept["positions"][rows] - begins[sides]
    lengths: Ints = kept["captured"][rows].astype(np.int64)
    # The runs of a segment have no gaps between them.
    first = _runs_up_to(starts, runs.offsets, bounds[sides], bounds[sides + 1]) - 1
    last = _runs_up_to(starts + lengths - 1, runs.offsets, bounds[sides], bounds[sides + 1])
    counts = last - first
    before = np.cumsum(counts) - counts
    touched = np.unique(np.repeat(first - before, counts) + np.arange(int(counts.sum())))
    run_lengths = runs.lengths[touched]
    ends = np.cumsum(run_lengths)
    inside: Ints = starts - runs.offsets[first] + (ends - run_lengths)[touched.searchsorted(first)]
    ours, theirs = np.empty(int(ends[-1]), np.uint8), np.empty(int(lengths.sum()), np.uint8)
    places.copy(runs.starts[touched], run_lengths, ours)
    places.copy(kept["starts"][rows], lengths, theirs)
    differs = np.empty(len(rows), np.uint8)
    find_differing(ours, theirs, inside, lengths, differs)
    return differs.astype(np.bool_)


def _runs_up_to(positions: Ints, offsets: Ints, low: Ints, high: Ints) -> Ints:
    """Return the end of the runs, within the range of each position, that begin up to it."""
    low, high = low.copy(), high.copy()
    while (is_open := low < high).any():
        middle = (low + high) // 2
        is_before = is_open & (offsets[np.minimum(middle, len(offsets) - 1)] <= positions)
        high = np.where(is_open & ~is_before, middle, high)
        low = np.where(is_before, middle + 1, low)
    return low
