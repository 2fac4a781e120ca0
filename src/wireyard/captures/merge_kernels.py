"""Segments with places to streams of bytes: sorting, deciding overlaps, gathering.

Axes: r = segments, s = streams, u = runs: bytes of one segment that follow each other.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

from wireyard.accelerate import I64, READ, TEXT, array, kernel, piece
from wireyard.memory import AHEAD_BYTES, Bytes, copy_bytes, prefetch_lines

__all__ = ["Run", "complete_rows", "copy_runs", "group_rows", "merge_rows", "sort_rows"]

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Shorts = np.ndarray[tuple[int], np.dtype[np.int32]]
Octets = np.ndarray[tuple[int], np.dtype[np.uint8]]
Grid = np.ndarray[tuple[int, int], np.dtype[np.int64]]

_INTS: Final = array("int64")
_SHORTS: Final = array("int32")
_GRID: Final = array("int64", 2)
_MOVES_A_ROW: Final = 16
"""Capture order is nearly the right order; what needs more moves than this is sorted elsewhere."""
_RUNS_AHEAD: Final = 2
"""How many runs before it is copied the bytes of one are asked for."""


class Run(IntEnum):
    """Rows of the grid of runs, one column a run."""

    POSITION = 0
    LENGTH = 1
    ROW = 2


@kernel(I64(_SHORTS, _INTS, _INTS))
def group_rows(streams: Shorts, bounds: Ints, order: Ints) -> int:
    """Put the rows of each stream together, in their order; stream s has ``bounds[s : s + 2]``.

    `bounds` has two more than there are streams and begins as zeros. Returns the number of rows.
    """
    for row in range(len(streams)):
        bounds[int(streams[row]) + 2] += 1
    for stream in range(2, len(bounds)):
        bounds[stream] += bounds[stream - 1]
    for row in range(len(streams)):
        stream = int(streams[row]) + 1
        order[bounds[stream]] = row
        bounds[stream] += 1
    return len(streams)


@kernel(I64(_INTS, _INTS, _INTS, TEXT))
def sort_rows(positions: Ints, bounds: Ints, order: Ints, unsorted: Octets) -> int:
    """Sort the rows of each stream by position, equal ones staying in order.

    Marks the streams that take too many moves; their rows are in any order. Returns how many.
    """
    count = 0
    for stream in range(len(bounds) - 1):
        start, stop = bounds[stream], bounds[stream + 1]
        moves = (stop - start) * _MOVES_A_ROW
        unsorted[stream] = 0
        for place in range(start + 1, stop):
            row = order[place]
            position, hole = positions[row], place
            while hole > start and positions[order[hole - 1]] > position:
                order[hole] = order[hole - 1]
                hole -= 1
            order[hole] = row
            moves -= place - hole
            if moves < 0:
                unsorted[stream] = 1
                count += 1
                break
    return count


@piece
def push(heap: Ints, size: int, ranked: int) -> None:
    """Put a value into a heap of `size`; the least is first."""
    while size > 0 and heap[(size - 1) >> 1] > ranked:
        heap[size] = heap[(size - 1) >> 1]
        size = (size - 1) >> 1
    heap[size] = ranked


@piece
def pop(heap: Ints, size: int) -> None:
    """Take the least value out of a heap that has `size` after that."""
    last, hole = heap[size], 0
    child = 1
    while child < size:
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= last:
            break
        heap[hole] = heap[child]
        hole = child
        child = 2 * hole + 1
    heap[hole] = last


@kernel(I64(_INTS, _SHORTS, _INTS, _INTS, I64, _INTS, _GRID, _INTS))
def merge_rows(
    positions: Ints,
    captured: Shorts,
    bounds: Ints,
    order: Ints,
    newest: int,
    heap: Ints,
    runs: Grid,
    run_bounds: Ints,
) -> int:
    """Decide which segment each byte is taken from: the first that brought it, or the last.

    Goes through each stream from the lowest position on. The heap holds the segments that reach
    beyond it, or did: the one that counts is on top. There are fewer than two runs a row.
    Returns how many.
    """
    count = 0
    for stream in range(len(bounds) - 1):
        run_bounds[stream] = count
        size, place, stop = 0, bounds[stream], bounds[stream + 1]
        position = 0
        while size > 0 or place < stop:
            if size == 0:
                position = positions[order[place]]
            while place < stop and positions[order[place]] <= position:
                push(heap, size, -order[place] if newest else order[place])
                size += 1
                place += 1
            row = abs(heap[0])
            limit = positions[row] + int(captured[row])
            if limit <= position:
                size -= 1
                pop(heap, size)
                continue
            if place < stop:
                limit = min(limit, positions[order[place]])
            if (
                count > run_bounds[stream]
                and runs[Run.ROW, count - 1] == row
                and runs[Run.POSITION, count - 1] + runs[Run.LENGTH, count - 1] == position
            ):
                runs[Run.LENGTH, count - 1] += limit - position
            else:
                runs[Run.POSITION, count] = position
                runs[Run.LENGTH, count] = limit - position
                runs[Run.ROW, count] = row
                count += 1
            position = limit
    run_bounds[len(bounds) - 1] = count
    return count


@kernel(I64(READ, I64, _INTS, _INTS, TEXT))
def copy_runs(data: Bytes, base: int, starts: Ints, lengths: Ints, out: Bytes) -> int:
    """Copy runs of `data`, which begins at `base`, to `out`; return their bytes.

    They lie far apart, so the bytes of one are asked for while those before it are copied.
    """
    at = 0
    for run in range(len(starts)):
        if run + _RUNS_AHEAD < len(starts):
            ahead = int(starts[run + _RUNS_AHEAD]) - base
            prefetch_lines(data, ahead, ahead + min(lengths[run + _RUNS_AHEAD], AHEAD_BYTES))
        length = int(lengths[run])
        copy_bytes(out, at, data, int(starts[run]) - base, length)
        at += length
    return at


@piece
def place_in(values: Ints, value: int) -> int:
    """Return the place of the last of ascending values that is not over `value`, else 0."""
    low, high = 0, len(values)
    while low + 1 < high:
        middle = (low + high) >> 1
        if values[middle] <= value:
            low = middle
        else:
            high = middle
    return low


@kernel(I64(_INTS, _INTS, _INTS, _INTS, _INTS, _INTS, _INTS))
def complete_rows(
    starts: Ints,
    stops: Ints,
    offsets: Ints,
    records: Ints,
    known_ns: Ints,
    frames: Ints,
    times_ns: Ints,
) -> int:
    """Find the newest record that brought some of each row's bytes; return how many rows there are.

    Shapes: starts, stops, frames, times_ns (r); offsets, records, known_ns (u), at least one.
    Frames are records counted from 1 on.
    """
    run = 0
    for row in range(len(starts)):
        start, stop = starts[row], stops[row]
        if row == 0 or offsets[run] > start:
            run = place_in(offsets, start)
        while run + 1 < len(offsets) and offsets[run + 1] <= start:
            run += 1
        newest, after = run, run + 1
        while after < len(offsets) and offsets[after] < stop:
            if records[after] > records[newest]:
                newest = after
            after += 1
        frames[row] = records[newest] + 1
        times_ns[row] = known_ns[newest]
    return len(starts)
