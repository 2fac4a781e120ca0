"""Split one capture file for many readers: guess, walk, stitch, as streams are split.

Each piece of the file is entered at the first offset where a run of record headers begins, and
walked, record by record, to the first record that begins at or after its end. A packet that carries
a capture may contain such a run; stitching detects that. In pcapng the earlier blocks of a file
decide how a record is read. A piece is read with the context of the file's beginning, and again if
another piece changes it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from wireyard.arrays import Bytes
from wireyard.captures.files.file import Extent, find_record, map_extent, read_records
from wireyard.captures.records import NO_TIME, Context
from wireyard.streams.mapped import map_bytes
from wireyard.streams.split import cut_evenly, stitch

_HEAD_BYTES = 1 << 16
"""Beginning of a capture that has to describe its interfaces."""


def first_context(data: Bytes, name: str) -> Context | None:
    """Return the context after the beginning of a file; None if there is none."""
    head = Extent(0, min(_HEAD_BYTES, len(data)), None, None, 0)
    return walk_records(data, name, head).next_context


def first_time_ns(data: Bytes, name: str) -> int:
    """Return the time of the first packet of a file, by which files are ordered."""
    first = next(read_records(data, name, Extent(0, min(_HEAD_BYTES, len(data)), None, None, 0)))
    return int(first.times_ns[0]) if len(first) else NO_TIME


def plan_extents(path: str, piece_bytes: int) -> list[Extent] | None:
    """Split a capture file into extents of about `piece_bytes` each.

    Returns None if the file is not local, or compressed. `SourceError` is raised if it is no
    capture.
    """
    data = map_bytes(path, 0, _HEAD_BYTES)
    if data is None:
        return None
    context = first_context(data, path)
    bounds = cut_evenly(len(data), piece_bytes)

    def enter(start: int, stop: int) -> Extent | None:
        first = enter_extent(map_extent(path, start, stop), start, stop, context)
        if first is None:
            return None
        return walk_extent(path, first, stop, context if first else None)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        walked = list(pool.map(enter, bounds[:-1], bounds[1:]))
    return stitch_extents(path, bounds, walked)


def stitch_extents(
    path: str, bounds: Sequence[int], walked: Sequence[Extent | None]
) -> list[Extent]:
    """Join the walked pieces of a file into extents that cover it.

    By induction from the start of the file, every bound is one that a single reader would find: see
    ``wireyard.streams.split``. Pieces that were entered at a wrong place are walked again here. The
    last extent ends with the file, so that its reader reports damage.
    """
    joined = stitch(bounds, walked, partial(walk_extent, path), None, contextual=True)
    extents = [extent for extent in joined if extent.packets] or joined[:1]
    return [*extents[:-1], extents[-1]._replace(stop=bounds[-1])]


def enter_extent(data: Bytes, start: int, stop: int, context: Context | None) -> int | None:
    """Return where the records of a piece begin: a guess, except at the start of the file."""
    if start == 0:
        return 0
    return None if context is None else find_record(data, start, stop, context)


def walk_extent(path: str, start: int, stop: int, context: Context | None) -> Extent:
    """Walk the records of a file from the bound `start` to the first bound at or after `stop`."""
    return walk_records(map_extent(path, start, stop), path, Extent(start, stop, context, None, 0))


def walk_records(data: Bytes, name: str, extent: Extent) -> Extent:
    """Walk the records of an extent; return it with its real end and its number of records."""
    packets = 0
    for records in read_records(data, name, extent):
        packets += len(records)
        last = records
    return extent._replace(stop=last.stop, next_context=last.context, packets=packets)
