"""Finding the packet, or what else there is, at an offset of a stream."""

from __future__ import annotations

from dataclasses import dataclass

from wireyard.errors import DecodeError, SourceError, UsageError
from wireyard.formats import Format
from wireyard.streams.blocks import Block, cut_blocks
from wireyard.streams.framer import MALFORMED, OK, Framer
from wireyard.streams.scan import OpenedStream, load_fast_path

__all__ = ["FoundFrame", "find_frame"]


@dataclass(frozen=True, slots=True)
class FoundFrame:
    """One row of a stream, its bytes, and its neighbours."""

    start: int
    stop: int
    status: str
    context: int
    error: DecodeError | None
    data: bytes
    """Its bytes; of garbage larger than a window only those at its end."""
    previous: int | None
    """Where the row before it begins; None if it is the first."""
    has_next: bool


def find_frame(
    opened: OpenedStream, format: Format, at: int, max_packet_bytes: int | None
) -> FoundFrame:
    """Return the row of a stream that holds the byte at offset `at`.

    The stream is walked from its beginning: what lies before a byte decides what it is part of.

    Raises
    ------
    SourceError
        The stream is empty.
    UsageError
        There is no such offset.
    """
    fast = load_fast_path(format, opened.bytes_ahead)
    framer = Framer(format, max_packet_bytes)
    last: Block | None = None
    previous: int | None = None
    for block in cut_blocks(opened.windows, framer, fast.scan_frames if fast else None, at + 1):
        if len(block.offsets) > 1:
            previous = int(block.offsets[-2])
        elif last is not None:
            previous = int(last.offsets[-1])
        last = block
    if last is None:
        if at < 0:
            raise UsageError(f"--at {at}: offsets count from the start of the stream, from 0")
        raise SourceError(f"{opened.name}: is empty")
    if at >= framer.position:
        raise UsageError(f"--at {at}: {opened.name} has {framer.position} bytes")
    return _frame(opened, format, last, previous)


def _frame(opened: OpenedStream, format: Format, block: Block, previous: int | None) -> FoundFrame:
    start = int(block.offsets[-1])
    stop = start + int(block.lengths[-1])
    place = int(block.places[-1])
    end = place + stop - start
    data = block.data[max(place, 0) : end].tobytes()
    context = int(block.contexts[-1])
    odd = block.odd.get(len(block.offsets) - 1)
    if odd is not None:
        status, error = odd.status, odd.error
    else:
        _, error = format.read_row(data, context)
        status = MALFORMED if error else OK
    following = next(opened.rest, None)
    more = end < block.stop or (following is not None and len(following.view) > 0)
    return FoundFrame(start, stop, status, context, error, data, previous, more)
