"""Finding the rows of a stream at an offset, or in a captured frame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from wireyard.captures.directed import CapturedStream
from wireyard.errors import DecodeError, SourceError, UsageError
from wireyard.formats import Format
from wireyard.streams.blocks import Block, DirectedStream
from wireyard.streams.framer import GAP, MALFORMED, OK, Framer
from wireyard.streams.scan import OpenedStream, load_fast_path

__all__ = ["FoundFrame", "find_frame", "find_frames", "offsets_in"]


@dataclass(frozen=True, slots=True)
class FoundFrame:
    """A row of a stream with its bytes and its neighbours."""

    start: int
    stop: int
    status: str
    context: int
    error: DecodeError | None
    data: bytes
    """Its bytes; for garbage larger than a window only the last ones."""
    previous: int | None
    """Offset of the previous row; None if it is the first."""
    has_next: bool


def find_frame(
    opened: DirectedStream, format: Format, at: int, max_packet_bytes: int | None
) -> FoundFrame:
    """Return the row of a stream that contains the byte at offset `at`.

    Raises
    ------
    SourceError
        The stream is empty.
    UsageError
        There is no such offset.
    """
    if at < 0:
        raise UsageError(f"--at {at}: offsets count from the start of the stream, from 0")
    limit = max_packet_bytes or format.max_packet_bytes
    framer = Framer(format, limit, context=opened.context)
    for found in _find(opened, format, at, at + 1, framer):
        return found
    if not framer.position:
        raise SourceError(f"{opened.name}: is empty")
    raise UsageError(f"--at {at}: {opened.stream} has {framer.position} bytes")


def find_frames(
    opened: DirectedStream, format: Format, start: int, stop: int, max_packet_bytes: int | None
) -> Iterator[FoundFrame]:
    """Yield the rows of a stream that overlap the bytes ``[start, stop)``."""
    limit = max_packet_bytes or format.max_packet_bytes
    return _find(opened, format, start, stop, Framer(format, limit, context=opened.context))


def offsets_in(opened: CapturedStream, frame: int) -> list[tuple[int, int]]:
    """Return the ranges of a stream, start and stop, that arrived in a captured frame.

    Parameters
    ----------
    frame
        Number of the frame, from 1 on.
    """
    captured = opened.captured
    runs = captured.runs
    places = np.flatnonzero(np.isin(runs.records, captured.content.completed_with(frame - 1)))
    starts = runs.offsets[places]
    return list(zip(starts.tolist(), (starts + runs.lengths[places]).tolist(), strict=True))


def _find(
    opened: DirectedStream, format: Format, start: int, stop: int, framer: Framer
) -> Iterator[FoundFrame]:
    """Yield the rows that overlap the bytes ``[start, stop)``.

    The stream is read from its beginning, because rows depend on all bytes before them.
    """
    fast = load_fast_path(format, opened.bytes_ahead)
    previous: int | None = None
    for block in opened.blocks(framer, fast.scan_frames if fast else None, stop):
        offsets = block.offsets.tolist()
        for row in np.flatnonzero(block.offsets + block.lengths > start).tolist():
            if offsets[row] < stop:
                before = offsets[row - 1] if row else previous
                yield _frame(opened, format, block, row, before)
        previous = offsets[-1]


def _frame(
    opened: DirectedStream, format: Format, block: Block, row: int, previous: int | None
) -> FoundFrame:
    start = int(block.offsets[row])
    stop = start + int(block.lengths[row])
    place = int(block.places[row])
    end = place + stop - start
    data = block.data[max(place, 0) : end].tobytes()
    context = int(block.contexts[row])
    odd = block.odd.get(row)
    if odd is not None:
        status, error = odd.status, odd.error
        data = b"" if status == GAP else data  # not captured
    else:
        _, error = format.read_row(data, context)
        status = MALFORMED if error else OK
    if isinstance(opened, OpenedStream):  # its size may be unknown
        following = next(opened.rest, None) if end == block.stop else None
        more = end < block.stop or (following is not None and len(following.view) > 0)
    else:
        more = opened.size is not None and stop < opened.size
    return FoundFrame(start, stop, status, context, error, data, previous, more)
