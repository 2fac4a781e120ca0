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

__all__ = ["find_conflicts"]

_ROWS: Final = 256
"""Segments that are compared at once: they have up to 16 MB."""


def find_conflicts(
    kept: Columns, begins: Ints, bounds: Ints, runs: Runs, places: Places
) -> list[tuple[int, int]]:
    """Return the side and the record of each segment that differs from the stream of its side.

    Parameters
    ----------
    kept
        The segments with bytes: their sides, positions, captured bytes, starts and records.
    begins, bounds, runs
        The positions at which the streams begin, and their bytes.
    """
    records = kept["records"]
    left = room(int(records[-1]) + 1 if len(records) else 0, np.int32)
    left[:] = 0
    left[records] = kept["captured"]
    for part in parts(len(runs.records)):
        np.subtract.at(left, runs.records[part], runs.lengths[part].astype(np.int32))
    rows = np.flatnonzero(left[records])  # some of their bytes were captured before
    if not len(rows):
        return []
    rows = rows[np.lexsort((kept["positions"][rows], kept["sides"][rows]))]
    sides, places_in = np.unique(kept["sides"][rows], return_inverse=True)
    # The streams of these sides are laid out one behind the other.
    counts = bounds[sides + 1] - bounds[sides]
    own = np.arange(counts.sum()) + np.repeat(bounds[sides] - np.cumsum(counts) + counts, counts)
    stream = Runs(*(column[own] for column in runs))
    sizes = runs.stops[bounds[sides + 1] - 1]
    shifts = np.cumsum(sizes) - sizes
    stream = stream._replace(offsets=stream.offsets + np.repeat(shifts, counts))
    starts = kept["positions"][rows] + (shifts - begins[sides])[places_in]
    lengths: Ints = kept["captured"][rows].astype(np.int64)
    found: list[tuple[int, int]] = []
    for part in parts(len(rows), _ROWS):
        theirs = kept["starts"][rows[part]]
        differing = rows[part][_differ(starts[part], lengths[part], theirs, stream, places)]
        found += zip(
            kept["sides"][differing].tolist(), kept["records"][differing].tolist(), strict=True
        )
    return found


def _differ(starts: Ints, lengths: Ints, places_of: Ints, stream: Runs, places: Places) -> Bools:
    """Return which segments, ascending by position, have other bytes than the stream."""
    # The runs of a segment have no gaps between them.
    first = stream.offsets.searchsorted(starts, "right") - 1
    behind = stream.offsets.searchsorted(starts + lengths)
    steps = np.zeros(len(stream.offsets) + 1, np.int64)
    np.add.at(steps, first, 1)
    np.subtract.at(steps, behind, 1)
    touched = np.flatnonzero(np.cumsum(steps)[:-1])
    run_lengths = stream.lengths[touched]
    ends = np.cumsum(run_lengths)
    at = touched.searchsorted(first)
    inside: Ints = starts - stream.offsets[first] + (ends - run_lengths)[at]
    ours, theirs = np.empty(int(ends[-1]), np.uint8), np.empty(int(lengths.sum()), np.uint8)
    places.copy(stream.starts[touched], run_lengths, ours)
    places.copy(places_of, lengths, theirs)
    differs = np.empty(len(starts), np.uint8)
    find_differing(ours, theirs, inside, lengths, differs)
    return differs.astype(np.bool_)
