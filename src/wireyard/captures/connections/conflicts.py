"""Find segments with bytes that were sent before, but others.

A sender sends the same bytes again. Others are of a broken or an evading sender, or of another
connection; one of the two is what the receiver got.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from wireyard.arena import parts
from wireyard.arrays import Ints
from wireyard.captures.connections.merge_kernels import find_differing
from wireyard.captures.connections.stream import Runs
from wireyard.captures.files.places import Places
from wireyard.captures.packets.units import Columns

__all__ = ["find_conflicts"]

_ROWS: Final = 256
"""Segments that are compared at once: they have up to 16 MB."""


def find_conflicts(
    kept: Columns,
    rows_of: Callable[[int], Ints],
    begins: Ints,
    bounds: Ints,
    runs: Runs,
    places: Places,
) -> list[tuple[int, int]]:
    """Return the side and the record of each segment that differs from the stream of its side.

    Parameters
    ----------
    kept
        The segments with bytes: their sides, positions, captured bytes, starts and records.
    rows_of
        Returns the segments of a side.
    begins, bounds, runs
        The positions at which the streams begin, and their bytes.
    """
    sides, captured = kept["sides"], kept["captured"]
    sent = np.zeros(len(begins), np.int64)
    for part in parts(len(sides)):
        sent += np.bincount(sides[part], captured[part], len(begins)).astype(np.int64)
    filled = bounds[:-1] < bounds[1:]
    taken = np.zeros(len(begins), np.int64)
    if filled.any():
        taken[filled] = np.add.reduceat(runs.lengths, bounds[:-1][filled])
    found = []
    for side in np.flatnonzero(sent != taken).tolist():
        own = slice(*bounds[side : side + 2].tolist())
        stream = Runs(*(column[own] for column in runs))
        stream = stream._replace(offsets=stream.offsets + begins[side])
        rows = rows_of(side)
        rows = rows[np.argsort(kept["positions"][rows], kind="stable")]
        for part in parts(len(rows), _ROWS):
            found += [(side, record) for record in _conflicts(kept, rows[part], stream, places)]
    return found


def _conflicts(kept: Columns, rows: Ints, stream: Runs, places: Places) -> list[int]:
    """Return the records of those of some segments, ascending by position, that differ."""
    starts = kept["positions"][rows]
    lengths: Ints = kept["captured"][rows].astype(np.int64)
    touched = slice(*stream.reaching(starts[0], (starts + lengths).max()))
    offsets, run_lengths = stream.offsets[touched], stream.lengths[touched]
    # The runs of a segment have no gaps between them.
    at = offsets.searchsorted(starts, "right") - 1
    inside: Ints = starts - offsets[at] + (np.cumsum(run_lengths) - run_lengths)[at]
    ours = np.empty(int(run_lengths.sum()), np.uint8)
    theirs = np.empty(int(lengths.sum()), np.uint8)
    places.copy(stream.starts[touched], run_lengths, ours)
    places.copy(kept["starts"][rows], lengths, theirs)
    differs = np.empty(len(rows), np.uint8)
    find_differing(ours, theirs, inside, lengths, differs)
    records: list[int] = kept["records"][rows[differs != 0]].tolist()
    return records
