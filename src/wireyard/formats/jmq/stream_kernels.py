"""Kernels over many small streams in one call: detection of JMQ, and framing.

A header is enough to detect JMQ: random bytes have one with a chance of 4e-12. The streams lie one
after the other in one buffer here.

Axes: t = streams, r = rows.
"""

from __future__ import annotations

from typing import Final

from wireyard.accelerate import inlined, kernel
from wireyard.arrays import Bytes, Ints, ReadOnly
from wireyard.formats.base import Shown
from wireyard.formats.jmq.kernels import SIZE_AT, has_magic
from wireyard.formats.jmq.layout import HEADER_BYTES, HEADERS, PREFIX_BYTES
from wireyard.formats.packet_kernels import find_frames
from wireyard.memory import load_i32, load_u16

_EITHER: Final = int(Shown.EITHER)
"""The value of `Shown` as an integer, as kernels need it."""
_VERSION_AT: Final = HEADERS[301]["version"].offset


@inlined
def header_shown(data: Bytes, start: int, stop: int, max_packet_bytes: int) -> bool:
    """Return whether a header begins at `start`, by the checks of `find_header` in the framing."""
    if stop - start < PREFIX_BYTES or not has_magic(data, start):
        return False
    version, size = load_u16(data, start + _VERSION_AT), load_i32(data, start + SIZE_AT)
    is_known = version == 301 or version == 200 or version == 103
    return (HEADER_BYTES if is_known else PREFIX_BYTES) <= size <= max_packet_bytes


@kernel
def sniff_heads(
    heads: ReadOnly[Bytes], starts: Ints, stops: Ints, max_packet_bytes: int, shown: Bytes
) -> int:
    """Find the evidence (`Shown`) in the first bytes of streams; return how many streams have any.

    Shapes: starts, stops (t), the extents in `heads` of each stream's first bytes; shown (t).
    """
    detected = 0
    for stream in range(len(shown)):
        shown[stream] = 0
        if header_shown(heads, starts[stream], stops[stream], max_packet_bytes):
            shown[stream] = _EITHER
            detected += 1
    return detected


@kernel
def walk_streams(
    data: ReadOnly[Bytes],
    bounds: Ints,
    pieces: Ints,
    behind_gap: Bytes,
    max_packet_bytes: int,
    starts: Ints,
    sizes: Ints,
    rows: Ints,
) -> int:
    """Find the packets of streams that consist of whole packets only; return their number.

    Other streams have no rows. Behind a gap a packet has to begin.

    Shapes: bounds (p + 1), the extents in `data` of the streams' contiguous pieces; pieces (t + 1),
    the first piece of each stream; behind_gap (p), whether bytes before a piece are missing;
    starts, sizes (r), at least one for every `HEADER_BYTES` bytes of the streams; rows (p + 1), the
    first row of each piece.
    """
    row = 0
    for stream in range(len(pieces) - 1):
        first, whole = row, True
        for part in range(pieces[stream], pieces[stream + 1]):
            rows[part] = begin = row
            at, stop = bounds[part], bounds[part + 1]
            if behind_gap[part] and not header_shown(data, at, stop, max_packet_bytes):
                whole = False
                break
            row = find_frames(
                data, at, stop, stop, max_packet_bytes, has_magic, SIZE_AT, HEADER_BYTES, starts,
                sizes, row, len(starts),
            )  # fmt: skip
            whole = row > begin and starts[row - 1] + sizes[row - 1] == stop
            if not whole:
                break
        if not whole:
            row = first
            for part in range(pieces[stream], pieces[stream + 1]):
                rows[part] = first
    rows[len(rows) - 1] = row
    return row
