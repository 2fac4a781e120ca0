"""Make streams of segments with positions: sort them, resolve overlaps, copy the bytes.

Axes: r = segments; s = streams; u = runs, contiguous bytes of one segment each.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Bytes, Grid, Int32s, Ints, ReadOnly
from wireyard.memory import AHEAD_BYTES, copy_bytes, prefetch_lines

_MOVES_A_ROW: Final = 16
"""Capture order is nearly the right order. A stream that takes more moves is sorted by numpy."""
_PLACE_BITS: Final = 32
_PLACES: Final = (1 << _PLACE_BITS) - 1
_RUNS_AHEAD: Final = 8
"""The bytes of a run are prefetched so many runs before it is copied."""


class Run(IntEnum):
    """Rows of a grid of runs, which has a column for each run."""

    OFFSET = 0
    """Offset in the stream."""
    LENGTH = 1
    START = 2
    """Address in the capture's `Places`."""
    RECORD = 3
    """Number of its packet, from 0 on."""


@kernel
def group_rows(streams: Int32s, bounds: Ints, order: Ints) -> int:
    """Group rows by stream, keeping their order (a counting sort); return their number.

    Stream s gets the rows ``order[bounds[s] : bounds[s + 1]]``. `bounds` has two more entries than
    there are streams and begins as zeros.
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


@kernel
def sort_rows(positions: Ints, bounds: Ints, order: Ints, unsorted: Bytes) -> int:
    """Sort the rows of each stream by position, stably.

    Streams that take too many moves are marked `unsorted`: their rows are in any order. Returns
    the number of these.
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


@inlined
def push(heap: Ints, size: int, ranked: int) -> None:
    """Push a value onto a min-heap of `size` values."""
    while size > 0 and heap[(size - 1) >> 1] > ranked:
        heap[size] = heap[(size - 1) >> 1]
        size = (size - 1) >> 1
    heap[size] = ranked


@inlined
def pop(heap: Ints, size: int) -> None:
    """Pop the least value of a min-heap, which has `size` values afterwards."""
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


@kernel
def gather_rows(
    positions: Ints, captured: Int32s, starts: Ints, records: Int32s, order: Ints, pieces: Grid
) -> int:
    """Copy the columns of segments, in `order`, into a grid of `Run`; return their number.

    The segments lie far apart in memory; in a loop of their own, many loads are under way at once.
    """
    for place in range(len(order)):
        row = order[place]
        pieces[Run.OFFSET, place] = positions[row]
        pieces[Run.LENGTH, place] = captured[row]
        pieces[Run.START, place] = starts[row]
        pieces[Run.RECORD, place] = records[row]
    return len(order)


@kernel
def gather_datagrams(
    order: Ints,
    bounds: Ints,
    lengths: Int32s,
    captured: Int32s,
    starts: Ints,
    records: Int32s,
    runs: Grid,
    run_bounds: Ints,
    sizes: Ints,
) -> int:
    """Make runs of the datagrams of each stream, one after the other; return their number.

    Fills in where the runs of each stream begin, and its size. A datagram without captured bytes
    gets no run.
    """
    count = 0
    for stream in range(len(bounds) - 1):
        run_bounds[stream] = count
        offset = 0
        for place in range(bounds[stream], bounds[stream + 1]):
            row = order[place]
            if captured[row] > 0:
                runs[Run.OFFSET, count] = offset
                runs[Run.LENGTH, count] = captured[row]
                runs[Run.START, count] = starts[row]
                runs[Run.RECORD, count] = records[row]
                count += 1
            offset += int(lengths[row])
        sizes[stream] = offset
    run_bounds[len(bounds) - 1] = count
    return count


@inlined
def put_run(
    runs: Grid, count: int, pieces: Grid, place: int, position: int, length: int, begin: int
) -> None:
    """Write bytes of a segment as run number `count`."""
    runs[Run.OFFSET, count] = position - begin
    runs[Run.LENGTH, count] = length
    runs[Run.START, count] = pieces[Run.START, place] + position - pieces[Run.OFFSET, place]
    runs[Run.RECORD, count] = pieces[Run.RECORD, place]


@kernel
def merge_rows(
    pieces: Grid,
    order: Ints,
    bounds: Ints,
    begins: Ints,
    newest: int,
    heap: Ints,
    runs: Grid,
    count: int,
    run_bounds: Ints,
) -> int:
    """Resolve overlaps: take each byte from the segment captured first, or last if `newest`.

    Sweeps over each stream in ascending position. The heap holds the segments that have begun,
    including some that are over; the one to take bytes from is on top. There are fewer than two
    runs for each row. The first gets number `count`; returns the number after the last.
    """
    for stream in range(len(bounds) - 1):
        run_bounds[stream] = count
        size, place, stop = 0, bounds[stream], bounds[stream + 1]
        begin, position, before = begins[stream], 0, -1
        while size > 0 or place < stop:
            if size == 0:
                position = pieces[Run.OFFSET, place]
                length = pieces[Run.LENGTH, place]
                # Most segments overlap with none.
                if place + 1 == stop or position + length <= pieces[Run.OFFSET, place + 1]:
                    put_run(runs, count, pieces, place, position, length, begin)
                    count += 1
                    place += 1
                    continue
            while place < stop and pieces[Run.OFFSET, place] <= position:
                row = -order[place] if newest else order[place]
                push(heap, size, row << _PLACE_BITS | place)
                size += 1
                place += 1
            top = heap[0] & _PLACES
            limit = pieces[Run.OFFSET, top] + pieces[Run.LENGTH, top]
            if limit <= position:
                size -= 1
                pop(heap, size)
                continue
            if place < stop:
                limit = min(limit, pieces[Run.OFFSET, place])
            # Consecutive runs of the same segment touch, so they are one.
            if top == before:
                runs[Run.LENGTH, count - 1] += limit - position
            else:
                put_run(runs, count, pieces, top, position, limit - position, begin)
                count += 1
            position, before = limit, top
    run_bounds[len(bounds) - 1] = count
    return count


@kernel
def copy_runs(
    data: ReadOnly[Bytes], base: int, starts: Ints, lengths: Ints, skip: int, out: Bytes
) -> int:
    """Copy runs of `data`, whose address is `base`, to `out` until it is full.

    Skips the first `skip` bytes of the first run. Runs lie far apart, so they are prefetched.
    Returns the number of bytes copied.
    """
    at = 0
    for run in range(len(starts)):
        if run + _RUNS_AHEAD < len(starts):
            ahead = int(starts[run + _RUNS_AHEAD]) - base
            prefetch_lines(data, ahead, ahead + min(lengths[run + _RUNS_AHEAD], AHEAD_BYTES))
        length = max(min(int(lengths[run]) - skip, len(out) - at), 0)
        copy_bytes(out, at, data, int(starts[run]) + skip - base, length)
        at += length
        skip = 0
    return at


@kernel
def find_differing(
    stream: ReadOnly[Bytes], pieces: ReadOnly[Bytes], starts: Ints, lengths: Ints, out: Bytes
) -> int:
    """Mark in `out` the pieces whose bytes differ from those of their stream; return how many do.

    Shapes: starts, lengths, out (r): where each piece is in `stream`, and its bytes, which are one
    piece behind the other in `pieces`.
    """
    at, count = 0, 0
    for piece in range(len(starts)):
        out[piece] = 0
        for byte in range(lengths[piece]):
            if stream[starts[piece] + byte] != pieces[at + byte]:
                out[piece] = 1
                count += 1
                break
        at += lengths[piece]
    return count


@inlined
def place_in(values: Ints, value: int) -> int:
    """Return the index of the last of ascending values that is at most `value`; 0 if none is."""
    low, high = 0, len(values)
    while low + 1 < high:
        middle = (low + high) >> 1
        if values[middle] <= value:
            low = middle
        else:
            high = middle
    return low


@kernel
def complete_rows(
    starts: Ints,
    stops: Ints,
    offsets: Ints,
    records: Ints,
    known_ns: Ints,
    frames: Ints,
    times_ns: Ints,
) -> int:
    """Find the frame that completed each row: the last one with some of its bytes.

    Shapes: starts, stops, frames, times_ns (r); offsets, records, known_ns (u), at least one.
    Frames are record numbers plus 1. Returns the number of rows.
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
